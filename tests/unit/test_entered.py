"""Which lease a block leaves."""

from __future__ import annotations

import pytest

from holdfast._api.lease_stack import LeaseStack


def entered(*leases: tuple[str, int]) -> LeaseStack[str, int]:
    return LeaseStack((owner, lease, None) for owner, lease in leases)


def none_has(owner: str) -> bool:
    return False


def test_everybody_leaves_their_own() -> None:
    blocks = entered(("a", 1), ("b", 2), ("a", 3))
    assert [blocks.take(owner, None, none_has) for owner in ("a", "b", "a")] == [3, 2, 1]


def test_another_leaves_the_only_one() -> None:
    assert entered(("a", 1)).take("b", None, none_has) == 1


def test_another_leaves_that_of_the_one_who_has_ended() -> None:
    assert entered(("a", 1), ("b", 2)).take("c", None, lambda owner: owner == "a") == 1


@pytest.mark.parametrize("ended", [(), ("a", "b")])
def test_in_doubt_nothing_is_released(ended: tuple[str, ...]) -> None:
    blocks = entered(("a", 1), ("b", 2))
    with pytest.raises(RuntimeError, match="which lease"):
        blocks.take("c", None, lambda owner: owner in ended)
    assert [blocks.take(owner, None, none_has) for owner in ("b", "a")] == [2, 1]
