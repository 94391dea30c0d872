"""Build the documentation site: `make docs`.

README, CHANGELOG and SECURITY are pages of the site too, under names of their own, and so is the
reference, which mkdocstrings makes from docstrings. Links to other files of the repository become plain text, since the
site does not have them.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Container, Sequence
from pathlib import Path, PurePosixPath
from posixpath import normpath

__all__ = ["main", "stage"]

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
#: What mkdocs.yml calls `docs_dir`.
STAGED = ROOT / "build" / "docs"
PICTURES = {".svg", ".png"}
#: What the site has beside pages and pictures.
ASSETS = ROOT / "tools" / "site"
#: The table of contents for readers of the repository: the site has its own.
INDEX = PurePosixPath("docs/README.md")
#: For those who work on holdfast: in the repository alone.
INSIDE = ("docs/design", "docs/evidence")
LANGUAGES = {"English", "中文"}
#: What lies beside docs/, and what it is called on the site.
BESIDE = {
    "README.md": "index.md",
    "README.zh-CN.md": "index.zh.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
_OF_SITE = {name: source for source, name in BESIDE.items()}
_LINK = re.compile(r"(!?)\[((?:[^\]\\]|\\.)*)\]\((?!https?:|#|mailto:)([^)#\s]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)

REFERENCE = """# Reference

The same names are in `holdfast` (threads) and in `holdfast.asyncio`, where what waits is awaited.

{}
"""
#: Of the asyncio API only what differs in more than an `await`.
_OBJECTS = (
    ("Client", ("holdfast.connect", "holdfast.Client")),
    ("Locks", ("holdfast.Lock", "holdfast.Lease", "holdfast.MultiLock", "holdfast.RWLock", "holdfast.Semaphore")),
    (
        "More",
        ("holdfast.Condition", "holdfast.Election", "holdfast.CountDownLatch", "holdfast.Event", "holdfast.Barrier"),
    ),
    ("Without a lock", ("holdfast.Optimistic", "holdfast.Transaction")),
    ("Modules", tuple(f"holdfast.{name}" for name in ("errors", "fencing", "interrupting", "embedded", "testing"))),
)


def _name_of(path: str) -> str:
    """What a file of the repository is called on the site; "" where it is not there."""
    name = BESIDE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else "")
    return name.replace(".zh-CN.md", ".zh.md")


def _pages() -> dict[str, tuple[PurePosixPath, str]]:
    """All pages of the site by their name there: where each is in the repository, and its text."""
    pages: dict[str, tuple[PurePosixPath, str]] = {}
    for source in [*DOCS.rglob("*.md"), *(ROOT / name for name in BESIDE)]:
        where = PurePosixPath(source.relative_to(ROOT).as_posix())
        if where != INDEX and str(where.parent) not in INSIDE:
            pages[_name_of(str(where))] = where, source.read_text(encoding="utf-8")
    sections = (f"## {title}\n\n" + "\n\n".join(f"::: {each}" for each in objects) for title, objects in _OBJECTS)
    pages["reference.md"] = PurePosixPath("docs/reference.md"), REFERENCE.format("\n\n".join(sections))
    return pages


def _linked(name: str, where: PurePosixPath, text: str, known: Container[str]) -> str:
    """The text with links that lead to where their pages are on the site."""
    up = "../" * (len(PurePosixPath(name).parts) - 1)

    def link(found: re.Match[str]) -> str:
        image, words, target, anchor = found[1], found[2], found[3], found[4] or ""
        if words in LANGUAGES:
            return ""  # the site has a switch for that
        there = normpath(str(where.parent / target))
        on_site = _name_of(there)
        if on_site in known or (DOCS / on_site).suffix in PICTURES:
            return f"{image}[{words}]({up}{on_site}{anchor})"
        return words

    parts = _FENCE.split(text)
    return "".join(part if number % 2 else _LINK.sub(link, part) for number, part in enumerate(parts))


def stage(folder: Path) -> None:
    """Write the site's sources there."""
    pages = _pages()
    for name, (where, text) in pages.items():
        page = folder / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(_linked(name, where, text, pages), encoding="utf-8")
    for picture in DOCS.rglob("*"):
        if picture.suffix in PICTURES:
            there = folder / picture.relative_to(DOCS)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(picture, there)
    shutil.copytree(ASSETS, folder / "assets")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the site; the exit status."""
    parser = argparse.ArgumentParser(prog="site", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", nargs="?", default="site", help="where to (%(default)s)")
    asked = parser.parse_args(arguments)
    shutil.rmtree(STAGED, ignore_errors=True)
    stage(STAGED)
    mkdocs = Path(sys.executable).with_name("mkdocs")
    return subprocess.run(
        [mkdocs, "build", "--quiet", "--strict", "-d", Path(asked.out).resolve()], cwd=ROOT
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
