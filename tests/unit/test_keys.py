"""Names and keys: two names never share a key, and all keys of a name share a slot."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast._core.condition import condition_key
from holdfast._core.keys import LockKeys, lock_keys, slot_of
from holdfast.errors import ConfigurationError

#: What keys are made of, and little else, so that they meet.
names = st.lists(
    st.sampled_from(
        ["{", "}", ":", "%", "%c", "a", "b", "1", "fence", "queue", "gone", "cond", "last", "sem", "holders"]
    ),
    min_size=1,
    max_size=7,
).map("".join)
namespaces = st.sampled_from([None, "holdfast", "h"])
PARTS = ("sem", "leader", "event", "latch", "barrier")


def keys_of(namespace: str | None, name: str, condition: str = "default") -> set[str] | None:
    """All keys that anything of that name may have; None for a name that is refused."""
    try:
        keys = lock_keys(namespace, name)
    except ConfigurationError:
        return None
    cond = condition_key(keys, condition)
    found = {*keys.more("readers", "upgraded"), cond, f"{cond}:last", keys.order_of("0:1:1"), f"{keys.base}:fenced"}
    for kind in PARTS:
        part = keys.part(kind)
        found |= {*part.more("holders", "arrived", "released"), part.order_of("0:1:1")}
    return found


@given(namespaces, names, names, names, names)
def test_two_names_never_share_a_key(namespace: str | None, one: str, other: str, condition: str, another: str) -> None:
    assume(one != other)
    first, second = keys_of(namespace, one, condition), keys_of(namespace, other, another)
    assume(first is not None and second is not None)
    assert first is not None
    assert second is not None
    assert not first & second


@given(namespaces, names, names)
def test_all_keys_of_a_name_share_a_slot(namespace: str | None, name: str, condition: str) -> None:
    found = keys_of(namespace, name, condition)
    assume(found is not None)
    assert found is not None
    assert len({*map(slot_of, found)}) == 1
    assert len({*map(slot_of, found)} | {slot_of(lock_keys(namespace, name).lock)}) == 1


@given(names, names, names)
def test_conditions_of_a_lock_share_no_key(name: str, one: str, other: str) -> None:
    assume(one != other)
    keys = lock_keys("holdfast", name)
    first, second = condition_key(keys, one), condition_key(keys, other)
    assert not {first, f"{first}:last"} & {second, f"{second}:last"}


NASTY = [
    "{",
    "{{}",
    "orders",
    "{orders}",
    "a}b",
    "}",
    "{}",
    "{}a",
    "a{}b",
    "}{",
    "{a",
    "a{b}c",
    "{{a}}",
    "{a}{b}",
    "%",
    "%}",
]


def test_nasty_names_without_a_namespace() -> None:
    found: dict[str, set[str]] = {}
    for name in NASTY:
        assert lock_keys(None, name).lock == name, "as other clients have it"
        keys = keys_of(None, name)
        assert keys is not None
        assert {*map(slot_of, keys)} == {slot_of(name)}
        found[name] = keys
    for one, other in itertools.combinations(NASTY, 2):
        assert not found[one] & found[other], (one, other)


@pytest.mark.parametrize(
    "name", ["{orders}:fence", "{a}b%:queue", "{orders}:cond:x:last", "{5}a}b%c:gone", "{}:sem:holders"]
)
def test_a_name_that_is_a_key_of_another_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="use another name"):
        lock_keys(None, name)
    assert isinstance(lock_keys("holdfast", name), LockKeys)
