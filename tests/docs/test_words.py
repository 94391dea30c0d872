"""Plain English: phrases that read as archaic or translated are refused, with what to write instead.

Read are the pages, and the sources with all that is in them (docstrings, comments, messages, names). Where one of the
phrases is right, it stands in `ALLOWED`, with its reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("src", "lab", "sim", "rig", "tests", "testbed", "bench", "examples", "models", "tools")
SUFFIXES = {".py", ".lua", ".pml", ".md", ".html"}
LEFT_OUT = {"__pycache__"}

#: Nowhere.
BANNED = {
    r"shall": "must, should, will",
    r"of late": "recently",
    r"for ever": "forever, indefinitely, no ttl",
    r"whoever": "a client that …, the caller, the thread that …",
    r"upon": "on",
    r"twice is once": "idempotent",
    r"cannot be had": "is not supported, is not available",
    r"in the order of their coming": "in arrival order",
    r"excluded badly": "exclusion violated",
    r"(?:either|both) (?:faces?|colours?)": "either API, both APIs",
    r"for so (?:long|many)(?!\s(?:as|that)\b)": "for this long, for that many",
    r"a unit mistaken": "almost certainly ms passed as s",
    r"what was asked may have been done": "the command may have been executed",
    r"nobody|somebody": "no client, none, another client; or the passive",
    r"everybody|anybody": "all, all clients; any client",
    r"deeds?": "action, request, change",
    r"heirs?": "next holder, new master",
    r"strangers?": "foreign client, user",
    r"so many": "that many, a number",
    r"anew": "again, over",
    r"as a rule|one day": "usually; later",
    r"lately|by and by": "recently; over time",
    r"put up with": "tolerated, accepted",
    r"be it": "whether, or",
    r"no holdfast client": "not a holdfast client",
}
#: Nor, in prose for readers of the pages: there are too many of them in names and comments.
BANNED_ON_PAGES = {
    r"so (?:long|many)(?! as\b)": "this long, that many, a number",
    r"who (?:waits|holds it waits|asks first)": "waiters, the client that …",
    r"mend(?:s|ed)?": "fix",
    r"bury|buried|buries|burials?": "leave a tombstone",
    r"faces?|colours?": "API",
    r"rough|smooth": "contended, uncontended",
    r"dice": "random numbers",
    r"carried out": "executed",
    r"let(?:s|ting)? go of": "release",
    r"lies about": "is left over",
    r"(?<!there\s)(?:is|are) no (?!longer|more|one)[a-z-]+": "is not a …",
    r"wherefore|thereof|whereof|thereby": "plain words",
}
#: A docstring of a function that begins so says what happens to something, and leaves open what the function does.
HEAD = re.compile(r"(?:It|That|Those|They|Its|Who|What|(Whether))\b")
#: (path, phrase): why it is right there.
ALLOWED: dict[tuple[str, str], str] = {}


def pages() -> list[Path]:
    """Every page but the Chinese ones."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    found += [*ROOT.glob("lab/*.md"), *ROOT.glob("models/*.md")]
    return [page for page in found if not page.name.endswith(".zh-CN.md")]


def sources() -> list[Path]:
    found = (path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES)
    return [path for path in found if path != Path(__file__).resolve() and not LEFT_OUT & {*path.parts}]


def finds(text: str, banned: dict[str, str]) -> Iterator[tuple[int, str, str]]:
    """(line, what stands there, what to write); a phrase may be broken over two lines."""
    lower = text.lower()
    for phrase, better in banned.items():
        pattern = phrase.replace(" ", r"\s+(?:#+:? |-- |// |\* )?")
        # A search for what begins with letters is ten times as fast as one for what begins with \b.
        for found in re.finditer(rf"(?:{pattern})\b", lower):
            start, end = found.span()
            if not (start and re.match(r"\w", lower[start - 1])):
                yield text.count("\n", 0, start) + 1, " ".join(text[start:end].split()), better


def report(paths: list[Path], banned: dict[str, str]) -> list[str]:
    said = []
    for path in sorted(paths):
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            text = re.sub(r"`[^`\n]+`", "``", text)  # names are not prose
        for line, found, better in finds(text, banned):
            if (name, found.lower()) not in ALLOWED:
                said.append(f"{name}:{line}: {found!r}: write {better}")
    return said


def heads(source: str) -> Iterator[tuple[int, str]]:
    """Find docstrings of functions that begin with a pronoun, or of methods with Whether: (line, first line)."""
    if not re.search(rf"[\"']\s*{HEAD.pattern}", source):
        return  # most have none, and parsing takes long
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node) or ""
            found = HEAD.match(docstring)
            if found and not (found[1] and any("property" in ast.unparse(each) for each in node.decorator_list)):
                yield node.body[0].lineno, docstring.partition("\n")[0]


def test_docstrings_begin_with_a_verb_or_a_name() -> None:
    found = []
    for path in sorted(path for folder in (*SOURCES, "verify") for path in (ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not LEFT_OUT & {*path.parts}:
            found += [f"{name}:{line}: {said!r}" for line, said in heads(path.read_text(encoding="utf-8"))]
    assert found == [], "begin with what the function does: Return …, Send …, True if …"


def long_lines(text: str) -> Iterator[int]:
    """Find lines of prose that are longer than the code's: tables, code and headings cannot be broken."""
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        code ^= line.lstrip().startswith("```")
        if len(line) > 120 and not code and not line.lstrip().startswith(("|", "#")):
            yield number


def test_records_have_lines_that_can_be_read() -> None:
    records = sorted(ROOT.glob("docs/design/*.md"))
    found = {path.name: [*long_lines(path.read_text(encoding="utf-8"))] for path in records}
    assert {name: lines for name, lines in found.items() if lines} == {}, "break them at 120 characters"


def test_long_lines_are_found() -> None:
    assert [*long_lines(f"{'x' * 120}\n{'x ' * 61}\n| {'x' * 120} |\n```\n{'x' * 121}\n```\n- {'x' * 119}")] == [2, 7]


def test_sources_are_plain_english() -> None:
    assert report(sources(), BANNED) == []


def test_pages_are_plain_english() -> None:
    assert report(pages(), BANNED | BANNED_ON_PAGES) == []


def test_nothing_is_allowed_in_vain() -> None:
    for name, phrase in ALLOWED:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert any(found.lower() == phrase for _, found, _ in finds(text, BANNED | BANNED_ON_PAGES)), (name, phrase)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Nobody waits\nwhere so\nmany do", [(1, "Nobody"), (2, "so many")]),
        ("It shall wait.", [(1, "shall")]),
        ("one\nthat was seen of\nlate", [(2, "of late")]),
        ("# kept for\n# ever", [(1, "for # ever")]),
        ("forever, shallow, latest, thereupon", []),
    ],
)
def test_what_is_found(text: str, found: list[tuple[int, str]]) -> None:
    assert [(line, said) for line, said, _ in finds(text, BANNED)] == found


@pytest.mark.parametrize(
    ("docstring", "function", "attribute"),
    [
        ("It has ended.", True, True),
        ("What it returns.", True, True),
        ("Those that wait.", True, True),
        ("Itself, or None.", False, False),
        ("Return what it is.", False, False),
        ("Whether it is held.", True, False),
    ],
)
def test_which_docstrings_are_found(docstring: str, function: bool, attribute: bool) -> None:
    source = f'class Kind:\n    """It."""\n    {{}}def act(self):\n        """{docstring}"""\n'
    assert [*heads(source.format("async "))] == ([(4, docstring)] if function else [])
    assert [*heads(source.format("@property\n    "))] == ([(5, docstring)] if attribute else [])
