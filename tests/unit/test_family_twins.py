"""Both APIs of the family have the same names, with the same arguments."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import holdfast
import holdfast.asyncio

#: The classes that each API has its own of; a lease's `lost` and `wanted` are the events of each world.
KINDS = sorted(
    name
    for name in {*holdfast.asyncio.__all__} - {"Loss", "Wanted"}
    if isinstance(made := getattr(holdfast.asyncio, name), type) and made is not getattr(holdfast, name)
)


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    """Names, kinds and defaults. `cancel` is for threads only: a task is cancelled."""
    return [
        (each.name, each.kind, each.default)
        for each in inspect.signature(function).parameters.values()
        if each.name != "cancel"
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_names_and_arguments(kind: str) -> None:
    blocking, waiting = public(getattr(holdfast, kind)), public(getattr(holdfast.asyncio, kind))
    assert kind != "Client" or blocking.pop("tasks")  # the way from the one to the other
    assert blocking.keys() == waiting.keys()
    for name, function in blocking.items():
        if callable(function):
            assert parameters(function) == parameters(waiting[name]), f"{kind}.{name}"
        assert type(function) is type(waiting[name]), f"{kind}.{name}"


@pytest.mark.parametrize("kind", KINDS)
def test_everything_public_is_described(kind: str) -> None:
    for module in (holdfast, holdfast.asyncio):
        described = getattr(module, kind)
        assert described.__doc__, kind
        for name, member in public(described).items():
            assert inspect.getdoc(member), f"{module.__name__}.{kind}.{name}"


@pytest.mark.parametrize("module", [holdfast, holdfast.asyncio], ids=["threads", "asyncio"])
@pytest.mark.parametrize("maker", ["rwlock", "semaphore", "multilock", "election", "locked"])
def test_what_is_held_under_a_lease_takes_the_options_of_a_lock(module: Any, maker: str) -> None:
    def options(name: str) -> set[Any]:
        return {each for each in parameters(getattr(module.Client, name)) if each[0] not in ("name", "reentrant")}

    assert options("lock") <= options(maker)
