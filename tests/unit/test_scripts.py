"""The Lua scripts: what each is headed by, limits with names, no name that is not there."""

from __future__ import annotations

import re

import pytest

from holdfast._lua import _TEXTS, PARTS, SCRIPTS

#: A number in code; one that only changes a unit is no limit.
_NUMBER = re.compile(r"(?<![\w.'\[])(?<![*/] )\d{2,}\b|[*/] (?!1000\b|1000000\b)\d{2,}\b")
_CONSTANT = re.compile(r"\b[A-Z][A-Z_]{2,}\b")
_DECLARED = re.compile(r"^\s*local ([A-Z_]+(?:, [A-Z_]+)*) = ")
#: What Redis gives to every script.
_GIVEN = {"KEYS", "ARGV"}


def code(text: str) -> list[tuple[int, str]]:
    """Numbered lines without comments and strings."""
    lines = enumerate(text.splitlines(), 1)
    return [(number, re.sub(r"'[^']*'|\"[^\"]*\"", "''", line).split("--")[0]) for number, line in lines]


def bare_numbers(text: str) -> list[str]:
    """Numbers of two digits and more that have no name."""
    return [f"{at}: {line}" for at, line in code(text) if not _DECLARED.match(line) and _NUMBER.search(line)]


def undeclared(text: str) -> list[str]:
    """Names of limits that are used before they are declared: an error, but only when a server gets there."""
    known, found = set(_GIVEN), []
    for at, line in code(text):
        declared = _DECLARED.match(line)
        if declared:
            known |= set(declared[1].split(", "))
        found += [f"{at}: {name}" for name in _CONSTANT.findall(line) if name not in known]
    return found


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_limits_have_names(name: str) -> None:
    assert bare_numbers(SCRIPTS[name].text) == []
    assert undeclared(SCRIPTS[name].text) == []


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_script_says_what_it_takes_and_returns(name: str) -> None:
    head = "\n".join(line for line in SCRIPTS[name].text.split("\n\n")[0].splitlines() if line.startswith("--"))
    assert not head.startswith("-- Part:")
    assert re.search(r"^-- KEYS ", head, re.MULTILINE) and re.search(r"^-- Returns ", head, re.MULTILINE)
    assert "ARGV" not in SCRIPTS[name].text or re.search(r"^-- ARGV ", head, re.MULTILINE)


def test_every_part_is_included() -> None:
    text = "".join(script.text for script in SCRIPTS.values())
    assert [part for part in PARTS if _TEXTS[part].splitlines()[0] not in text] == []


@pytest.mark.parametrize(
    "line", ["redis.call('PEXPIRE', key, 60000)", "if n > 250 then", "x = now_ms * 250", "ZRANGE(0, 15)"]
)
def test_a_bare_number_is_found(line: str) -> None:
    assert bare_numbers(line)


@pytest.mark.parametrize("line", ["local MOST = 250", "s * 1000 + us / 1000", "-- 250", "at('2^53')", "x[1] + y2"])
def test_what_is_no_bare_number(line: str) -> None:
    assert not bare_numbers(line)


def test_a_name_that_is_not_declared_is_found() -> None:
    assert undeclared("local x = SLACK_MS\nlocal SLACK_MS = 1\nlocal y = SLACK_MS") == ["1: SLACK_MS"]
