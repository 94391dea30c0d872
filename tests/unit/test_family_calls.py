"""Single facts about what the family's protocols ask for: those that worlds meet too seldom."""

from __future__ import annotations

from holdfast._core.condition import ConditionAcquisition, condition_key
from holdfast._core.effects import Command
from holdfast._core.keys import lock_keys
from holdfast._core.optimistic import compare_and_set
from holdfast._core.plain import Scripts

KEYS = lock_keys("holdfast", "a")


def test_who_waits_for_a_notification_looks_within_a_ttl() -> None:
    """A holder that notifies and dies hands over to no one."""

    def looks_after_ms(ttl_ms: int) -> str | int | bytes:
        return (
            ConditionAcquisition(KEYS, condition_key(KEYS, "changed"), "holder", "waiter", ttl_ms)
            .ask(True, 0, 1.0)
            .args[8]
        )

    assert looks_after_ms(700) == 700
    assert looks_after_ms(30_000) == 5_000


def test_a_first_set_is_refused_when_there_is_something() -> None:
    setting = compare_and_set("a", None, "new", 1000, Scripts())
    effect = setting.send(None)
    assert isinstance(effect, Command)
    assert effect.args == ("SET", "a", "new", "NX", "PX", 1000)
    setting.close()
