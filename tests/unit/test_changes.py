"""What two looks at a lock say has happened between them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Change, Holder, Listed, Waiter
from holdfast._api.changes import changes
from holdfast._api.overview import Kind

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def look(
    at_s: float = 0.0,
    holders: str = "",
    queue: str = "",
    *,
    fence: int = 0,
    left_s: float = 30.0,
    age_s: float = 0.0,
    kind: Kind = "lock",
    more: int = 0,
) -> Listed:
    """A look: each letter is a token; `more` are not named: holders of a semaphore, else waiters."""
    holding = tuple(Holder(token, True, left_s, fence, None) for token in holders)
    waiting = tuple(Waiter(token, age_s) for token in queue)
    at = NOW + timedelta(seconds=at_s)
    held, waiters = (more, 0) if kind == "semaphore" else (0, more)
    return Listed(kind, "a", holding, len(holders) + held, waiting, len(queue) + waiters, fence, 0, at)


def told(before: Listed | None, after: Listed) -> list[str]:
    return [f"{each.what} {each.who.token}" if each.who else each.what for each in changes(before, after)]


@pytest.mark.parametrize(
    "before, after, expected",
    [
        (None, look(0, "a", "bc"), ["held a", "waiting b", "waiting c"]),
        (None, look(), []),
        (look(0, "a", "b", fence=1), look(1, "a", "b", fence=1), []),
        (look(0, "", fence=1), look(1, "a", fence=2), ["held a"]),
        (look(0, "a", fence=1), look(1, fence=1), ["released a"]),
        (look(0, "a", fence=1, left_s=0.9), look(1, fence=1), ["expired a"]),
        (look(0, "a", left_s=9e15), look(1), ["released a"]),
        (look(0, "a", "b", fence=1), look(1, "b", fence=2), ["released a", "handed_on b"]),
        (look(0, "a", "b", fence=1, left_s=0.5), look(1, "b", fence=2), ["expired a", "handed_on b"]),
        (look(0, "a", fence=1), look(1, "c", fence=2), ["released a", "held c"]),
        (look(0, "a", fence=1), look(1, "a", "bc", fence=1), ["waiting b", "waiting c"]),
        (look(0, "a", "bc", fence=1), look(1, "a", "c", fence=1), ["left b"]),
    ],
)
def test_what_is_seen(before: Listed | None, after: Listed, expected: list[str]) -> None:
    assert told(before, after) == expected


def test_what_began_and_ended_between_two_looks_is_said_to_be_missed() -> None:
    assert told(look(fence=1), look(1, fence=2)) == ["missed"]
    assert told(look(0, "a", "b", fence=1), look(1, fence=2)) == ["released a", "missed b"]
    # Its own fencing token may have grown meanwhile, as that of several locks at once does.
    assert told(look(0, "a", fence=1), look(1, "a", fence=2)) == []
    assert told(look(0, "a", fence=1, kind="semaphore"), look(1, "a", fence=2, kind="semaphore")) == ["missed"]
    # A block that was not used up is given back.
    assert told(look(0, "a", fence=1024), look(1, fence=3)) == ["released a"]


def test_of_lists_that_are_cut_nothing_is_made_up() -> None:
    # "b" was renewed and so moved behind the cut; "c" was behind it.
    assert told(look(0, "ab", kind="semaphore", more=3), look(1, "ac", kind="semaphore", more=3)) == []
    # "c" has waited for longer than since the last look: it stood behind the cut.
    before, after = look(0, "h", "ab", age_s=9, more=3), look(1, "h", "bc", age_s=8, more=2)
    assert told(before, after) == ["left a"]
    # "b" may stand behind the cut again only if it has come later than what is named.
    assert told(look(0, "h", "ab", age_s=1, more=3), look(1, "h", "a", age_s=8, more=3)) == []


@pytest.mark.parametrize(
    "before, after, expected",
    [
        (None, look(0, "a", "b"), 1),
        (look(0, "a", "b", fence=1), look(1, "b", fence=2), 1),
        (look(0, "a", fence=1), look(1, "a", "b", fence=1), 0),
        (look(0, "", "abc", fence=1), look(1, fence=2), 1),  # three have gone: one was granted, two may have given up
        (look(0, "a", kind="semaphore"), look(1, "abc", fence=3, kind="semaphore"), 2),
    ],
)
def test_grants_are_counted(before: Listed | None, after: Listed, expected: int) -> None:
    assert Change.grants(before, after) == expected


def test_a_change_says_how_it_was() -> None:
    (change,) = changes(look(fence=1), look(1, "a", fence=2))
    assert isinstance(change.who, Holder)
    assert (change.kind, change.name, change.at) == ("lock", "a", NOW + timedelta(seconds=1))
    assert (change.held, change.waiters, change.fencing_token) == (1, 0, 2)
