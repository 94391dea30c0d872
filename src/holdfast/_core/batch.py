"""Renewals of many leases in one request.

Laws: each lease gets the answer that its own request would have got; what went wrong with one lease is none of the
others' business; what one request does on the server is bounded.

Theory: a renewal's first effect is nearly always a `Call` of one of four scripts. `batches` makes one call of
`renew_many.lua` out of those that one server can carry out together: in a Cluster of one slot, and with equal demands
on replicas. Its answers are handed to the protocols as if each had asked by itself. Where there is none (the server has
refused the request as a whole, or one lease of it), the lease is asked for alone, and what comes of that counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast._core.effects import Answer, Call, Effect, Reply
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import slot_of
from holdfast._core.kinds import KINDS

#: Keys of one request: 60 locks have as many, which take a server about half a millisecond.
_KEYS_MAX = 120
#: A lease with more keys is asked for alone.
_KEYS_MAX_OF_ONE = 40
_SCRIPTS = frozenset({"crash_renew", *(kind.extend for kind in KINDS if kind.extend)})


class Batch(NamedTuple):
    """A request, and the leases that it is for: by their positions in what `batches` was given."""

    call: Call
    members: list[int]

    def answers(self, reply: Reply | RequestFailed) -> list[Answer]:
        """The answer for each of `members`; None: it has to be asked for alone."""
        count = len(self.members)
        if count == 1:
            return [reply]
        if isinstance(reply, RequestFailed):
            if not reply.kind.islower():  # an error of the server: one lease may be the cause
                return [None] * count
            return [reply.again(maybe_executed=reply.maybe_executed) for _ in self.members]
        told, *acked = (reply,) if self.call.sync is None else reply
        if len(told) != count:
            return [None] * count
        if acked:
            return [None if answer < 0 else (answer, *acked) for answer in told]
        return [None if answer < 0 else answer for answer in told]


def batches(effects: Sequence[Effect[Any]], moves: bool) -> list[Batch]:
    """Group the calls among these effects into requests. `moves`: keys of one request have to share a slot."""
    alone: list[Batch] = []
    alike: dict[tuple[Any, ...], list[int]] = {}  # as most are
    for position, effect in enumerate(effects):
        if not isinstance(effect, Call):
            continue
        keys, script = effect.keys, effect.script
        if script not in _SCRIPTS or len(keys) > _KEYS_MAX_OF_ONE:
            alone.append(Batch(effect, [position]))
            continue
        # Not with those that are given up much sooner.
        place = (effect.node, effect.sync, math.frexp(effect.request_timeout_s)[1], moves and slot_of(keys[0]))
        alike.setdefault((place, script, len(keys), effect.args[1:]), []).append(position)
    places: dict[tuple[Any, ...], dict[tuple[Any, ...], list[int]]] = {}
    for (place, *group), members in alike.items():
        places.setdefault(place, {})[tuple(group)] = members
    return [*alone, *(batch for groups in places.values() for batch in _of_one_place(effects, groups))]


def _of_one_place(effects: Sequence[Any], groups: dict[tuple[object, ...], list[int]]) -> list[Batch]:
    found: list[Batch] = []
    some: list[tuple[tuple[Any, ...], list[int]]] = []
    room = _KEYS_MAX
    for group, positions in groups.items():
        width: Any = group[1]
        while positions:
            if room < width:
                found.append(_batch(effects, some))
                some, room = [], _KEYS_MAX
            taken, positions = positions[: room // width], positions[room // width :]
            some.append((group, taken))
            room -= width * len(taken)
    found.append(_batch(effects, some))
    return found


def _batch(effects: Sequence[Call], groups: list[tuple[tuple[Any, ...], list[int]]]) -> Batch:
    members = [position for _, positions in groups for position in positions]
    first = effects[members[0]]
    if len(members) == 1:
        return Batch(first, members)
    args: list[str | int | bytes] = []
    for (script, width, shared), positions in groups:
        args += (script, len(positions), width, len(shared), *shared)
        args += [effects[position].args[0] for position in positions]
    keys = [key for position in members for key in effects[position].keys]
    request_timeout_s = min(effects[position].request_timeout_s for position in members)
    return Batch(Call("renew_many", keys, args, request_timeout_s, first.node, first.sync), members)
