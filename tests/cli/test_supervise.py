"""When a command is told to end, and when it is killed: with a made-up lease, a made-up command, no time passing."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from holdfast.cli import supervise
from holdfast.cli.supervise import Supervisor


class Lost:
    reason: str | None = None

    def is_set(self) -> bool:
        return self.reason is not None


class World:
    """A supervisor in the middle of a run; `left_s` is what the lease has left."""

    def __init__(self, span_s: float, monkeypatch: pytest.MonkeyPatch, max_hold_s: float | None = None) -> None:
        self.now = 1000.0
        self.left_s = span_s
        self.lost = Lost()
        self.name = "x"
        self.sent: list[int] = []
        self.kill_at: list[float] = []
        self.status: int | None = None
        monkeypatch.setattr(supervise, "clock", lambda: self.now)
        self.supervisor = Supervisor.__new__(Supervisor)
        self.supervisor.prepare(self, span_s, max_hold_s)  # type: ignore[arg-type]
        parts: dict[str, Any] = {"_command": self, "_guard": self, "ended_for": None, "_killed": False}
        vars(self.supervisor).update(parts, _unguarded=False)

    def remaining(self) -> float:
        return max(self.left_s, 0.0)

    def signal(self, number: int) -> None:
        self.sent.append(number)

    def protect(self, kill_at: float) -> bool:
        self.kill_at.append(kill_at)
        return True

    def look(self, left_s: float) -> float:
        self.now += self.left_s - left_s
        self.left_s = left_s
        return self.supervisor._look_after_lease()


def test_nothing_happens_while_renewal_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(30.0, monkeypatch)
    for _ in range(10):
        assert 0 < world.look(30.0) <= 5.0
        world.look(20.0)
        world.left_s = 29.7  # renewed
        world.look(29.7)
    assert world.sent == []
    # The guard hears of every renewal, long before it would kill.
    assert world.kill_at == sorted(world.kill_at)
    assert world.kill_at[-1] == pytest.approx(world.now + 29.7 - 1.5)


@pytest.mark.parametrize("span_s", [1.0, 2.0, 30.0, 3600.0])
def test_told_to_end_then_killed_before_the_deadline(span_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(span_s, monkeypatch)
    deadline = world.now + span_s
    while signal.SIGTERM not in world.sent:
        wait_s = world.look(world.left_s)
        assert wait_s > 0 or signal.SIGTERM in world.sent
        world.look(world.left_s - wait_s)
    told_at = world.now
    assert world.sent == [signal.SIGTERM, signal.SIGCONT]
    assert deadline - told_at >= min(span_s / 4, 15.0) - 1e-6
    assert deadline - told_at <= span_s / 4 + 1e-6  # not sooner than needed
    while signal.SIGKILL not in world.sent:
        world.look(world.left_s - world.look(world.left_s))
    killed_at = world.now
    assert deadline - killed_at >= min(span_s / 20, 2.0) - 1e-6
    assert killed_at - told_at >= span_s / 8 or killed_at - told_at > 10.0  # time to clean up
    assert world.sent == [signal.SIGTERM, signal.SIGCONT, signal.SIGKILL]
    assert world.kill_at[-1] == pytest.approx(killed_at)  # the guard would have done it at the same time
    world.look(0.0)
    assert world.sent.count(signal.SIGKILL) == 1


def test_a_lease_that_was_taken_away_kills_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(30.0, monkeypatch)
    world.lost.reason = "taken"
    world.look(25.0)
    assert world.sent == [signal.SIGKILL]
    assert world.supervisor.ended_for is not None and "taken" in world.supervisor.ended_for


def test_a_lease_that_comes_back_gives_a_command_that_was_told_to_end_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(30.0, monkeypatch)
    world.look(7.0)
    assert world.sent == [signal.SIGTERM, signal.SIGCONT]
    world.left_s = 29.7  # the server is back
    world.look(29.7)
    assert world.sent == [signal.SIGTERM, signal.SIGCONT]
    assert world.kill_at[-1] == pytest.approx(world.now + 29.7 - 1.5)


def test_max_hold_is_called_by_its_name(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    world = World(30.0, monkeypatch, max_hold_s=100.0)
    world.now += 70.0  # renewed all the time
    world.look(30.0)
    world.look(7.0)
    assert "--max-hold ends in 7.0 s" in capfd.readouterr().err


def test_max_hold_is_called_by_its_name_where_the_command_began_late(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    world = World(2.0, monkeypatch, max_hold_s=2.0)
    world.left_s = 1.7  # the lease has lasted for 0.3 s by then
    world.look(1.7)
    world.look(0.5)
    assert "--max-hold ends in 0.5 s" in capfd.readouterr().err
