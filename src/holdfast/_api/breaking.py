"""Protocols of `Client.break_` and `Client.ask`: the acts, and their reports. The same for both APIs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from holdfast._api.client_info import who_we_are
from holdfast._api.holder import Holder
from holdfast._api.looking import described
from holdfast._api.options import Duration, timeout_of
from holdfast._api.overview import Listed, listed
from holdfast._api.session import SessionBase
from holdfast._core.breaking import FORCED, GONE, Held, held_by, holders, take_away, want
from holdfast._core.kinds import ALONE, LISTED, LISTED_AS
from holdfast._core.overview import Entry
from holdfast._core.tokens import BLOCK, MARK
from holdfast.errors import ConfigurationError, quoted

__all__ = ["Asked", "Broken", "asking", "breaking"]

#: Longer reasons are a mistake.
_REASON_MAX = 200


@dataclass(frozen=True, slots=True)
class Broken:
    """What came of a `break_`. True where a lease was broken.

    `holders`: those whose leases were broken, as they were before; `forced`: those of them that did not let go by
    themselves in time: they may not know yet. `found`: who held it instead, where the holder that was named did not any
    more. `kind`: of what, as in a listing; None where nothing of that name was held.
    """

    name: str
    kind: str | None
    holders: tuple[Holder, ...] = ()
    forced: tuple[Holder, ...] = ()
    found: tuple[Holder, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.holders)


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of an `ask`. True where a holder was told.

    `holders`: those that were told. `deaf`: those that were not, since their client hears nothing: it holds for less
    than a tenth of a second, was cut off, or is not a holdfast client. `found` and `kind` are as in `Broken`.
    """

    name: str
    kind: str | None
    holders: tuple[Holder, ...] = ()
    deaf: tuple[Holder, ...] = ()
    found: tuple[Holder, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.holders)


async def breaking(
    session: SessionBase, name: str, kind: str | None, holder: Holder | str | int | None, reason: str, grace: Duration
) -> Broken:
    """See `Client.break_`."""
    text, grace_s = _said(reason), timeout_of(grace, "grace") or 0.0
    seen, held = await _find(session, name, kind, holder)
    if seen is None:
        return Broken(name, None)
    if not held:
        return Broken(name, seen.kind, found=seen.holders)
    became = await take_away(held, text, grace_s, session.settings)
    ends = {each.token: end for each, end in zip(held, became, strict=True) if end != GONE}
    forced = [token for token, end in ends.items() if end == FORCED]
    return Broken(name, seen.kind, _named(seen, ends), _named(seen, forced))


async def asking(
    session: SessionBase, name: str, kind: str | None, holder: Holder | str | int | None, reason: str
) -> Asked:
    """See `Client.ask`."""
    text = _said(reason)
    seen, held = await _find(session, name, kind, holder)
    if seen is None:
        return Asked(name, None)
    if not held:
        return Asked(name, seen.kind, found=seen.holders)
    told: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for each in held:
        told[await want(each, text, session.settings)].append(each.token)
    return Asked(name, seen.kind, _named(seen, told[2]), _named(seen, told[1]))


def _named(seen: Listed, tokens: Collection[str]) -> tuple[Holder, ...]:
    return tuple(each for each in seen.holders if each.token in tokens)


async def _find(session: SessionBase, name: str, kind: str | None, holder: object) -> tuple[Listed | None, list[Held]]:
    """Look at what is held under that name, and which of its leases are meant."""
    if holder is not None and (isinstance(holder, bool) or not isinstance(holder, (Holder, str, int))):
        raise ConfigurationError("holder", holder, "a Holder, a token, a fencing token, or None")
    found = await holders(session.namespace, name, _kinds_of(kind), session.settings)
    of_all = [(seen, each) for seen in found for each in held_by(seen, session.namespace)]
    held = [(seen, each) for seen, each in of_all if _is_meant(seen, each.token, holder)]
    kinds = {seen.kind for seen, _ in held}
    if len(kinds) > 1:
        allowed = f"one of {', '.join(sorted(kinds))}: {quoted(name)} is held as each of these"
        raise ConfigurationError("kind", None, allowed)
    if not found:
        return None, []
    shown = held[0][0] if held else found[0]
    return listed(shown, await described(session, [shown])), [each for _, each in held]


def _kinds_of(kind: object) -> tuple[str, ...]:
    """Under which kinds to look; None: under all."""
    if kind is None:
        return tuple(LISTED)
    if isinstance(kind, str) and kind in LISTED_AS:
        return (LISTED_AS[kind],)
    raise ConfigurationError("kind", kind, 'None, "lock", "rwlock", "multilock", "semaphore" or "election"')


def _said(reason: object) -> str:
    """Return the reason that a holder is told: who we are, and why. Holders know it by its form (`NOTE`)."""
    if not isinstance(reason, str) or len(reason) > _REASON_MAX or not reason.isprintable():
        raise ConfigurationError("reason", reason, f"a str of one line, of at most {_REASON_MAX} characters")
    who = who_we_are()
    return f"{who['program']} on {who['host']}, pid {who['pid']}" + (f": {reason}" if reason else "")


def _is_meant(seen: Entry, token: str, holder: object) -> bool:
    if holder is None:
        return True
    if isinstance(holder, Holder):
        return token == holder.token
    if isinstance(holder, str):
        return token == holder
    block = BLOCK if token.endswith(MARK) else 1
    return seen.kind in ALONE and seen.fence <= holder < seen.fence + block  # type: ignore[operator]
