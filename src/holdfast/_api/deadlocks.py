"""What is told of a deadlock: `Client.deadlocks`, `DeadlockDetected`. The same for both APIs."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast._api.client_info import client_id_of
from holdfast._api.holder import holder_of
from holdfast._core.deadlocks import Step, party_of
from holdfast._core.describe import note_parts
from holdfast._core.detecting import Found
from holdfast.errors import DeadlockDetected, quoted, shown


@dataclass(frozen=True, slots=True)
class DeadlockParty:
    """A thread or task in a deadlock.

    It has waited for `name` (of that `kind`, as in a listing) for `waited_s` seconds, by `token`. `held_name` is what
    the party before it waits for: it holds that by `held_token`, or, where `holds` is False, stands before that party
    in its queue. `owner`: the number of the thread or task in its process. `where`: the line of code that waits, and
    `timeout_left_s`: for how long it still will, as far as they are known: waiters with `deadlock_check` say so.
    """

    token: str
    kind: str
    name: str
    waited_s: float
    held_kind: str
    held_name: str
    held_token: str
    holds: bool
    owner: str
    host: str | None = None
    pid: int | None = None
    program: str | None = None
    where: str | None = None
    timeout_left_s: float | None = None

    @property
    def who(self) -> str:
        """The party's place and name, in a few words."""
        host, program, token = (shown(each, 128) for each in (self.host, self.program, self.token))
        owner = f", thread or task {shown(self.owner)}" if self.owner else ""
        return f"{program} ({host}, pid {self.pid}{owner})" if self.host else f"token {token}"

    def __str__(self) -> str:
        has = "holds" if self.holds else "stands in the queue of"
        left = "" if self.timeout_left_s is None else f", for another {self.timeout_left_s:.1f} s at most"
        where = f", at {shown(self.where)}" if self.where else ""
        return (
            f"{self.who} {has} {self.held_kind} {quoted(self.held_name)} and waits for {self.kind} {quoted(self.name)} "
            f"for {self.waited_s:.1f} s{left}{where}"
        )


@dataclass(frozen=True, slots=True)
class Deadlock:
    """A circle of parties: each waits for what the next one holds, and the last one for what the first one holds."""

    parties: tuple[DeadlockParty, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.parties))


def deadlock_of(found: Found) -> Deadlock:
    """Put together what was found, and what clients say of themselves."""
    return Deadlock(tuple(_party(step, found) for step in found.circle))


def detected(name: str, kind: str, found: Found) -> DeadlockDetected:
    return DeadlockDetected(name, deadlock_of(found), kind)


def _party(step: Step, found: Found) -> DeadlockParty:
    who = holder_of(step.token, 0, 0, found.told.get(client_id_of(step.token) or ""))
    timeout_s, _, where = note_parts(found.notes.get(step.token))
    party = party_of(step.token, {}, False)
    left_s = None if timeout_s is None else max(0.0, timeout_s - step.waited_s)
    owner = party[1] if party else ""
    return DeadlockParty(*step, owner, who.host, who.pid, who.program, where or None, left_s)
