"""What made a worker trust its leases: notes of the last requests of each, written to the history beside its looks.

And when its requests came to stand in a queue.

An overlap whose cause cannot be told is a defect of the rig. A note costs some microseconds. Workers only: in a
life under process faults, exceptions would strike here instead of in the library.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from rig.history import now_ns

__all__ = ["Trace", "as_lines", "asks", "queued_ns"]

#: Leases whose notes are kept, and notes of each between two looks.
_LEASES_MAX = 1_000
_NOTES_MAX = 40


#: Arrivals in a queue of the server, in its µs, that the present thread or task was told of by the present acquire.
_ARRIVALS: ContextVar[list[int]] = ContextVar("arrivals")


def asks() -> None:
    """An acquire begins."""
    _ARRIVALS.set([])


def queued_ns() -> int | None:
    """When it came to stand in the server's queue, by our clock; None where it has not."""
    arrivals = _ARRIVALS.get()
    return min(arrivals) * 1000 - (time.time_ns() - now_ns()) if arrivals else None


class Trace:
    """Notes of one process, by lease."""

    def __init__(self) -> None:
        self._notes: OrderedDict[str, deque[list[Any]]] = OrderedDict()

    def install(self) -> None:
        """Note each answer that lengthens a lease, and over a quorum what each member answered."""
        from holdfast._core import fast_path, record, redlock, waiting

        ask, extended, taken_of = redlock._ask, record.LeaseRecord.extended, waiting.taken_of  # type: ignore[attr-defined]

        def noted_taken(reply: Any) -> Any:
            taken = taken_of(reply)
            if taken.place >= 0 and (arrivals := _ARRIVALS.get(None)) is not None:
                arrivals.append(taken.arrival)
            return taken

        async def noted_ask(calls: Sequence[Any], *args: Any) -> Any:
            begin_ns, answers = now_ns(), None
            try:
                answers = await ask(calls, *args)
                return answers
            finally:
                said = None if answers is None else [_brief(answer) for answer in answers]
                members = [call.node for call in calls]
                if calls[0].args:
                    self._note(str(calls[0].args[0]), [begin_ns, now_ns(), calls[0].script, members, said])

        def noted_extended(lease: Any, ttl_ms: int, sent_at: float, now: float, *args: Any) -> bool:
            before_s = lease.deadline - now
            kept: bool = extended(lease, ttl_ms, sent_at, now, *args)
            told = f"asked {1000 * (now - sent_at):.1f} ms ago for {ttl_ms} ms, left {before_s:.3f} s"
            at_ns = now_ns()
            self._note(lease.token, [at_ns, at_ns, "extended", [], f"{told}, now {lease.deadline - now:.3f} s"])
            return kept

        fast_path.taken_of = waiting.taken_of = noted_taken  # type: ignore[attr-defined]
        redlock._ask = noted_ask  # type: ignore[assignment]
        record.LeaseRecord.extended = noted_extended  # type: ignore[assignment, method-assign]

    def _note(self, token: str, note: list[Any]) -> None:
        key = _lease_of(token)
        notes = self._notes.get(key)
        if notes is None:
            notes = self._notes[key] = deque(maxlen=_NOTES_MAX)
            if len(self._notes) > _LEASES_MAX:
                self._notes.popitem(last=False)
        notes.append(note)

    def take(self, token: str) -> list[list[Any]]:
        """What was noted since the last time."""
        return list(self._notes.pop(_lease_of(token), ()))


def _lease_of(token: str) -> str:
    """The token without the number of its round."""
    client, _, rest = token.partition(":")
    return f"{client}:{rest.rpartition(':')[2]}"


def _brief(answer: Any) -> Any:
    if isinstance(answer, list):  # a vote: who holds it instead
        return f"0 ({answer[2].decode()[-12:]})" if answer[0] == 0 else answer[0]
    return answer if answer is None or isinstance(answer, int) else getattr(answer, "kind", type(answer).__name__)


def as_lines(notes: Sequence[Sequence[Any]], zero_ns: int, most: int = 16) -> list[str]:
    """The last of them, for people; times in ms from `zero_ns`."""
    shown: Callable[[int], str] = lambda at_ns: f"{(at_ns - zero_ns) / 1e6:,.1f}"  # noqa: E731
    lines = [f"… {len(notes) - most} more before"] if len(notes) > most else []
    for begin_ns, end_ns, what, members, said in notes[-most:]:
        lines.append(f"{shown(begin_ns)} to {shown(end_ns)} ms: {what} {f'at {members}: ' if members else ''}{said}")
    return lines
