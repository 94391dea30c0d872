"""What the lab says of schemes, faults and verdicts, in two languages (`texts.toml`), and theory (`oracle.toml`)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["Expected", "Listing", "Text", "expected", "listings", "phrases", "sources", "text_of", "theory"]

#: Field → sentence; a field with `_zh` behind its name is the same in Chinese.
Text: TypeAlias = dict[str, str]


@cache
def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def text_of(group: str, name: str) -> Text:
    """The texts of that scheme, fault or verdict; empty for a user's own."""
    found: Text = _read("texts.toml")[group].get(name, {})
    return found


@dataclass(frozen=True, slots=True)
class Listing:
    """A listing of an article, and the scheme that is its reading.

    ``faults``: cells to show of it, as "none" or "crowd threads". ``changed``: what the reading changes of it.
    """

    article: Text
    heading: str
    heading_zh: str
    scheme: str
    rung: int
    faults: tuple[tuple[str, str], ...]
    changed: str = ""
    changed_zh: str = ""

    @property
    def text(self) -> Text:
        """Return its source and the changes as a sentence, in both languages."""
        of, en, zh = self.article, f"; changed: {self.changed}", f"；改动：{self.changed_zh}"
        return {
            "en": f'As printed in "{of["en"]}" ({of["zh"]}), "{self.heading}"{en if self.changed else ""}.',
            "zh": f"照《{of['zh']}》“{self.heading_zh}”所印{zh if self.changed else ''}。",
        }


@cache
def listings() -> tuple[Listing, ...]:
    """Every listing of the articles, in the order of the ladder."""
    found = _read("texts.toml")
    made = []
    for printed in found["printed"]:
        faults = tuple((fault, *rest, "processes")[:2] for fault, *rest in map(str.split, printed["faults"]))
        made.append(Listing(**{**printed, "article": found["article"][printed["article"] - 1], "faults": faults}))
    return tuple(made)


def sources(scheme: str) -> list[Text]:
    """Of each listing that the scheme is a reading of, a sentence in both languages; none: no article prints it."""
    return [listing.text for listing in listings() if listing.scheme == scheme]


def phrases() -> list[tuple[str, str]]:
    """Sentences of timelines, with {} where something particular stands, and the same in Chinese."""
    return [(phrase["en"], phrase["zh"]) for phrase in _read("texts.toml")["phrase"]]


@dataclass(frozen=True, slots=True)
class Expected:
    """Theory's word on a cell: a verdict and its reason."""

    verdict: str
    why: str
    zh: str
    #: Verdicts that it may come to as well, where it depends on timing.
    others: tuple[str, ...] = ()
    #: Whether it is said of one kind of clients only.
    particular: bool = False


@cache
def theory() -> dict[tuple[str, str, str], list[Expected]]:
    """All of `oracle.toml`, by scheme, fault and clients. A list, so that a cell named twice can be found.

    What is said of no particular kind of clients is said of both, unless something else is said of threads.
    """
    cells: dict[tuple[str, str, str], list[Expected]] = {}
    both = ("processes", "threads")
    for fault, groups in sorted(_read("oracle.toml").items()):
        for group in sorted(groups, key=lambda group: "clients" not in group):
            found = Expected(group["verdict"], group["why"], group["zh"], tuple(group.get("or", ())))
            for scheme in group["schemes"].split():
                for clients in [group["clients"]] if "clients" in group else both:
                    said = cells.setdefault((scheme, fault, clients), [])
                    if "clients" in group or not (said and said[0].particular):
                        said.append(replace(found, particular="clients" in group))
    return cells


def expected(scheme: str, fault: str, clients: str = "processes") -> Expected | None:
    """Theory's word on that cell; None for a lock that is not in it."""
    return next(iter(theory().get((scheme, fault, clients), ())), None)
