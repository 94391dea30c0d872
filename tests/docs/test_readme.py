"""What the READMEs show, runs: every Python example, on a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import embedded

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_URL = "redis://localhost:6379"


def examples(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)


EXAMPLES = [
    pytest.param(code, id=f"{page}-{number}")
    for page in ("README.md", "README.zh-CN.md")
    for number, code in enumerate(examples(page), start=1)
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_example_runs(code: str, valkey_server: embedded.Server) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code.replace(DEFAULT_URL, valkey_server.url)],
        env={**os.environ, "HOLDFAST_URL": valkey_server.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout != ""


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_first_command_is_the_demo_and_the_first_example_has_a_timeout(page: str) -> None:
    text = (ROOT / page).read_text()
    commands = re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)[0].splitlines()
    assert [command.split("  ")[0] for command in commands] == ["make demo", "make test"]
    assert "with lock.acquire(timeout=5) as lease:" in examples(page)[0]


def test_both_languages_show_the_same_code() -> None:
    def bare(code: str) -> str:
        return re.sub(r'"[^"]*"|\s*#.*', "", code)

    english, chinese = examples("README.md"), examples("README.zh-CN.md")
    assert len(english) == 3
    assert [bare(code) for code in english] == [bare(code) for code in chinese]


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/README.md"])
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert ((ROOT / page).parent / target).exists(), f"{page} → {target}"


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md", "CONTRIBUTING.md"])
def test_make_targets_exist(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`)make ([a-z-]+)\b", (ROOT / page).read_text(), flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
