"""Packed requests: what is remembered of them is bounded."""

from __future__ import annotations

from holdfast._core.keys import lock_keys
from holdfast._engine import pack
from holdfast._lua import SCRIPTS


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


def test_what_changes_with_each_call_is_not_remembered() -> None:
    """Which leading arguments do is said by the script's head."""
    for name, varying in (("acquire", 1), ("quorum_acquire", 2), ("raise_fence", 2), ("multi_renew", 3)):
        script = SCRIPTS[name]
        assert script.varying == varying
        known = {*pack._around_token}
        for number in range(5):
            args = (f"token-{number}", *range(number, number + varying - 1), "the same", 1)
            packed = pack.pack_script(script, ("{k}", f"{{k}}:{name}"), args)
            assert packed == b"".join(pack._pack_parts(script, ("{k}", f"{{k}}:{name}"), args))
        assert len({*pack._around_token} - known) == 1
