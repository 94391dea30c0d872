"""Which lease a block leaves."""

from __future__ import annotations

import pytest

from holdfast._api.lease_stack import LeaseStack


def entered(*ended: str) -> LeaseStack[str, int]:
    return LeaseStack(lambda owner: owner in ended)


def test_everybody_leaves_their_own() -> None:
    blocks = entered()
    blocks.push("a", 1)
    blocks.push("b", 2)
    blocks.push("a", 3)
    assert [blocks.pop("a"), blocks.pop("b"), blocks.pop("a")] == [3, 2, 1]


def test_another_leaves_the_only_one() -> None:
    blocks = entered()
    blocks.push("a", 1)
    assert blocks.pop("b") == 1


def test_another_leaves_that_of_the_one_who_has_ended() -> None:
    blocks = entered("a")
    blocks.push("a", 1)
    blocks.push("b", 2)
    assert blocks.pop("c") == 1


@pytest.mark.parametrize("ended", [(), ("a", "b")])
def test_in_doubt_nothing_is_released(ended: tuple[str, ...]) -> None:
    blocks = entered(*ended)
    blocks.push("a", 1)
    blocks.push("b", 2)
    with pytest.raises(RuntimeError, match="which lease"):
        blocks.pop("c")
    assert [blocks.pop("b"), blocks.pop("a")] == [2, 1]
