"""The documentation site leads to every page."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from tools import docs_site, reference

ROOT = Path(__file__).resolve().parents[2]
#: For those who work on holdfast: in the repository alone, neither on the site nor in its search.
INSIDE = ("design/", "evidence/", "evidence.", "protocol.")


def test_every_page_is_in_the_navigation() -> None:
    configuration = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    linked = set(re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", configuration.split("\nnav:\n")[1], re.MULTILINE))
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md") if not path.name.endswith(".zh-CN.md")}
    pages -= {"README.md"}  # the table of contents for readers of the repository
    assert sorted(page for page in pages - linked if not page.startswith(INSIDE)) == [], "add it to nav in mkdocs.yml"
    beside = {"index.md", "changelog.md", "security.md", *(f"reference/{name}" for name in reference.pages())}
    assert sorted(linked - pages - beside) == [], "nav in mkdocs.yml names what is not there"


def test_every_user_page_is_in_chinese_too() -> None:
    """Pages about how it was made and tested are English only."""
    docs = ROOT / "docs"
    missing = [
        path.relative_to(docs).as_posix()
        for path in docs.rglob("*.md")
        if not path.name.endswith(".zh-CN.md")
        and not path.relative_to(docs).as_posix().startswith(INSIDE)
        and path != docs / "README.md"
        and not path.with_suffix(".zh-CN.md").exists()
    ]
    assert missing == []


def test_what_is_only_in_the_repository_is_named_by_its_path() -> None:
    text = "[laws](design/laws.md), [CONTRIBUTING](../CONTRIBUTING.md), [a page](b.md#c)"
    linked = docs_site.linked("a.md", PurePosixPath("docs/a.md"), text, "en", {"b.md"})
    assert linked == "laws (`docs/design/laws.md`), CONTRIBUTING, [a page](b.md#c)"
