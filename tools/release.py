"""Everything before a release that needs no rights: `make release-check`. Uploading is left to a person.

    python tools/release.py            # build, and check what was built; the files stay in dist/

Builds sdists and wheels of the package and the lab from the last commit; has twine and check-wheel-contents look at
them; installs them in fresh environments and uses them; and has mypy and pyright check a program against the installed
package, as users see its types. Exit status 1, with the tool's own words, at the first thing that is wrong.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[1]
#: What looks at the files, in an environment of its own.
CHECKERS = ("twine==7.0.0", "check-wheel-contents==0.6.3", "mypy", "pyright", "build")
STEP_S = 600.0

#: What users write, with what their type checkers have to say of it.
PROGRAM = """\
import asyncio
from typing import TYPE_CHECKING

import holdfast
import holdfast.asyncio

if TYPE_CHECKING:
    from holdfast.trio import *

    under_trio: Client


def threads() -> int:
    with holdfast.connect("redis://localhost", ttl=30) as locks:
        with locks.lock("orders:42").acquire(timeout=5) as lease:
            token: int = lease.fencing_token
        permit: holdfast.Lease | None = locks.semaphore("api", permits=3).try_acquire()
        assert permit is None
        page: bytes = locks.get_or_set("page", lambda: "text", expire=60)

        @locks.locked("order:{order_id}", skip_if_held=True)
        def ship(order_id: int) -> str:
            return str(order_id)

        shipped: str | None = ship(7)
    return token + len(page) + len(shipped or "")


async def tasks() -> int:
    async with holdfast.asyncio.connect() as locks:
        async with locks.rwlock("catalogue").read() as lease:
            return lease.fencing_token


if __name__ == "__main__":
    print(threads(), asyncio.run(tasks()))
"""
#: What they must not let through.
MISTAKE = """\
import holdfast

holdfast.connect().lock("name", ttl="soon")
holdfast.connect().lock("name", nonsense=1)
"""


class _Wrong(Exception):
    """What is wrong, in the words of who found it."""


def _run(*command: object, cwd: Path = ROOT, fails: bool = False) -> str:
    """Run a command and return its output. `fails`: it has to."""
    words = [str(word) for word in command]
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=STEP_S, env=environment)
    if (done.returncode != 0) is not fails:
        raise _Wrong(f"{' '.join(words)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def _version() -> str:
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for path in (ROOT / "src/holdfast/__init__.py", ROOT / "CHANGELOG.md"):
        if not re.search(rf'^(__version__ = "|## ){re.escape(version)}', path.read_text(), re.MULTILINE):
            raise _Wrong(f"{path.relative_to(ROOT)} does not name the version of pyproject.toml, {version}")
    lab = (ROOT / "lab/pyproject.toml").read_text()
    for needed in (f'version = "{version}"', f'"holdfast-locks[embedded]=={version}"'):
        if needed not in lab:
            raise _Wrong(f"lab/pyproject.toml does not have {needed}, which is the version of pyproject.toml")
    return version


def _build(tools: Path, folder: Path) -> tuple[list[Path], list[Path]]:
    """Wheels and sdists of what is committed: first the package, then the lab."""
    source = folder / "source"
    source.mkdir()
    archive = folder / "source.tar"
    _run("git", "archive", "--output", archive, "HEAD")
    _run("tar", "-xf", archive, "-C", source)
    dist = folder / "dist"
    for project in (source, source / "lab"):
        _run(tools / "python", "-m", "build", "--outdir", dist, project)
    wheels, sdists = (
        [next(dist.glob(f"{name}-*{suffix}")) for name in ("holdfast_locks", "holdfast_lab")]
        for suffix in (".whl", ".tar.gz")
    )
    return wheels, sdists


def _environment(folder: Path, name: str, *packages: object) -> Path:
    own = folder / name
    _run(sys.executable, "-m", "venv", own)
    _run(own / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return own / "bin"


def _use(folder: Path, archives: Sequence[Path], version: str) -> Path:
    """Install the archives by themselves, try them, and return the folder of their programs."""
    used = _environment(folder, f"from-{archives[0].suffix[1:]}", *archives)
    told = _run(used / "python", "-c", "import holdfast; print(holdfast.__version__)", cwd=folder)
    if told.strip() != version:
        raise _Wrong(f"installed from {archives[0].name}, it says that it is {told}")
    _run(used / "holdfast", "--help", cwd=folder)
    _run(used / "holdfast", "lab", "list", cwd=folder)
    return used


def _check_types(tools: Path, folder: Path, python: Path) -> None:
    outside = folder / "outside"
    outside.mkdir()
    (outside / "program.py").write_text(PROGRAM)
    (outside / "mistake.py").write_text(MISTAKE)
    checkers = (
        (tools / "mypy", "--strict", "--python-executable", python),
        (tools / "pyright", "--pythonpath", python),
    )
    for checker in checkers:
        _run(*checker, "program.py", cwd=outside)
        told = _run(*checker, "mistake.py", cwd=outside, fails=True)
        for argument in ("ttl", "nonsense"):
            if argument not in told:
                raise _Wrong(f"{checker[0]} does not see what is wrong with {argument}:\n{told}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build and check; the exit status."""
    if (sys.argv[1:] if arguments is None else arguments) != []:
        print(__doc__)
        return 2
    with tempfile.TemporaryDirectory(prefix="holdfast-release-") as name:
        folder = Path(name)
        try:
            version = _version()
            if _run("git", "status", "--porcelain").strip():
                print("note: what is not committed is not in it", flush=True)
            print("tools …", flush=True)
            tools = _environment(folder, "tools", *CHECKERS)
            print("sdists and wheels …", flush=True)
            wheels, sdists = _build(tools, folder)
            _run(tools / "twine", "check", "--strict", *wheels, *sdists)
            _run(tools / "check-wheel-contents", *wheels)
            print("a fresh environment for each …", flush=True)
            _use(folder, sdists, version)
            used = _use(folder, wheels, version)
            print("types, from outside …", flush=True)
            _check_types(tools, folder, used / "python")
        except _Wrong as wrong:
            print(f"wrong: {wrong}", file=sys.stderr)
            return 1
        dist = ROOT / "dist"
        dist.mkdir(exist_ok=True)
        for archive in (*wheels, *sdists):
            shutil.copy(archive, dist)
        names = ", ".join(f"dist/{archive.name}" for archive in (*wheels, *sdists))
        print(f"{version} can be released: {names}. Left to do: tag it, `twine upload`.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
