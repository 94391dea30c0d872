"""Packed requests: what is remembered of them is bounded."""

from __future__ import annotations

from holdfast._core.keys import lock_keys
from holdfast._lua import SCRIPTS
from holdfast._transport import pack


def test_what_is_remembered_is_bounded_by_its_size() -> None:
    """Names may be long: four keys of each stand in every request."""
    script = SCRIPTS["acquire"]
    for number in range(pack._AROUND_MAX):
        keys = lock_keys("n" * 500, f"{number}-" + "x" * 1_000).all
        args = ("token", 30_000, "wait", 0, 86_400_000, 2_000, "i:")
        packed = pack.pack_script(script, keys, args)
        assert pack.pack_script(script, keys, args) == packed
        if number % 50:
            continue
        kept = sum(len(before) + len(behind) for before, behind in pack._around_token.values())
        assert kept <= pack._AROUND_MAX_BYTES / 2
