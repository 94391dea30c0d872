"""What the pages tell their readers to type: options that exist, and our distribution, not the other one."""

from __future__ import annotations

import contextlib
import io
import re
from functools import cache
from pathlib import Path

from holdfast import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "lab" / "README.md"]
SOURCES = [*(ROOT / "src").rglob("*.py"), *(ROOT / "lab" / "src").rglob("*.py")]
_CALL = re.compile(rf"\bholdfast ({'|'.join(cli._COMMANDS)})\b([^`\n]*)")
#: The distribution called `holdfast` is another project: ours is `holdfast-locks`, or a folder.
_OTHER = re.compile(r"pip install[^\n`]*?(?<![\w./-])holdfast(?![\w/-])[^\n`]*")


@cache
def help_of(command: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        cli.main([*command.split(), "--help"])
    assert said.getvalue().startswith(f"usage: holdfast {command}")
    return said.getvalue()


def options_in(text: str) -> list[tuple[str, str]]:
    """(command, option) of each call of `holdfast` in a page, up to the command that it runs."""
    found = []
    for command, rest in _CALL.findall(text):
        words = re.split(r" -- |\s#|[;|)]", rest)[0].split()
        if command == "lab" and words:
            command = f"lab {words.pop(0)}"
        found += [(command, word.partition("=")[0].strip("[]'\"")) for word in words if word.startswith("--")]
    return found


def test_options_on_pages_exist() -> None:
    unknown, seen = [], 0
    for page in PAGES:
        for command, option in options_in(page.read_text(encoding="utf-8")):
            seen += 1
            if not re.search(rf"{re.escape(option)}\b", help_of(command)):
                unknown.append(f"{page.relative_to(ROOT)}: holdfast {command} {option}")
    assert seen > 40
    assert unknown == []


def test_options_of_a_call_are_found() -> None:
    text = "`holdfast run --no-wait --ttl=3s x -- ./y --all` and\nholdfast lab run a b --json  # --force"
    assert options_in(text) == [("run", "--no-wait"), ("run", "--ttl"), ("lab run", "--json")]


def test_no_page_installs_the_other_project() -> None:
    found = [(file.name, wrong) for file in [*PAGES, *SOURCES] for wrong in _OTHER.findall(file.read_text("utf-8"))]
    assert found == []


def test_the_other_project_is_noticed() -> None:
    assert _OTHER.findall('pip install "holdfast[cli]"') and _OTHER.findall("pip install -U holdfast")
    assert _OTHER.findall("pip install 'holdfast-locks[web]'\npip install '../holdfast[embedded]' .\n") == []
