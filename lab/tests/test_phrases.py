"""Everything that a timeline says has its phrase in Chinese (`texts.toml`)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import holdfast_lab
from holdfast_lab.faults import FAULTS
from holdfast_lab.story import OF_CLIENT
from holdfast_lab.texts import phrases

LAB = Path(holdfast_lab.__file__).parent
#: What is no language: commands, answers, keys and values.
_PLAIN = re.compile(r"[\W_]*(?:\{\}|KEY|\d|ms|×|[\W_])*")


def sentences(node: ast.AST) -> Iterator[str]:
    """The strings in an expression, with {} where something is put in."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
        case ast.Call(func=function, args=[*arguments]):
            if isinstance(function, ast.Attribute) and function.attr == "get" and isinstance(function.value, ast.Dict):
                arguments = list(function.value.values)
            elif not (isinstance(function, ast.Attribute) and function.attr == "either"):
                return
            for argument in arguments:
                yield from sentences(argument)
        case ast.IfExp(body=body, orelse=other):
            yield from sentences(body)
            yield from sentences(other)


def said() -> Iterator[str]:
    """All sentences of plays about themselves, and of stories about clients and servers."""
    for name in ("faults.py", "parts.py", "stage.py", "waiting.py"):
        for node in ast.walk(ast.parse((LAB / name).read_text())):
            verb = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
            if isinstance(node, ast.Call) and verb in ("fault", "healed", "either"):
                for argument in node.args[: 2 if verb == "either" else 1]:
                    yield from sentences(argument)
    for node in ast.walk(ast.parse((LAB / "story.py").read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == "_of_server":
            for part in ast.walk(node):
                if isinstance(part, ast.Return) and part.value is not None:
                    yield from sentences(part.value)
    for _, text in OF_CLIENT.values():
        yield re.sub(r"\{.*?\}", "{}", text)


def test_all_that_is_said_has_a_phrase() -> None:
    known = [re.compile(re.escape(en).replace(r"\{\}", ".+?"), re.DOTALL) for en, _ in phrases()]
    found = {text for text in said() if not _PLAIN.fullmatch(text)}
    assert len(found) > 45, "the sources say it in another way now"
    assert {text for text in found if not any(phrase.fullmatch(text) for phrase in known)} == set()
    variants = {
        variant
        for fault in FAULTS.values()
        for variant in (*fault.plays, *fault.steps)
        if not re.fullmatch(r"\d*", variant)
    }
    assert variants <= {en for en, _ in phrases()}


def test_a_phrase_has_as_many_places_in_both_languages() -> None:
    for en, zh in phrases():
        assert en.count("{}") == zh.count("{}")
        assert re.search("[\u4e00-\u9fff]", zh)
