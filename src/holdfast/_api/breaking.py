"""What `Client.break_` and `Client.ask` tell. The same for both APIs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast._api.client_info import who_we_are
from holdfast._api.holder import Described, Holder, holder_of
from holdfast._core.breaking import Held, held_by
from holdfast._core.kinds import ALONE, LISTED, LISTED_AS
from holdfast._core.overview import Entry
from holdfast._core.tokens import BLOCK, MARK
from holdfast.errors import ConfigurationError, quoted

__all__ = ["Asked", "Broken", "chosen", "holders_of", "kinds_of", "said"]

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


def kinds_of(kind: object) -> tuple[str, ...]:
    """Under which kinds to look; None: under all."""
    if kind is None:
        return tuple(LISTED)
    if isinstance(kind, str) and kind in LISTED_AS:
        return (LISTED_AS[kind],)
    raise ConfigurationError("kind", kind, 'None, "lock", "rwlock", "multilock", "semaphore" or "election"')


def said(reason: object) -> str:
    """Return the reason that a holder is told: who we are, and why. Holders know it by its form (`NOTE`)."""
    if not isinstance(reason, str) or len(reason) > _REASON_MAX or not reason.isprintable():
        raise ConfigurationError("reason", reason, f"a str of one line, of at most {_REASON_MAX} characters")
    who = who_we_are()
    return f"{who['program']} on {who['host']}, pid {who['pid']}" + (f": {reason}" if reason else "")


def chosen(found: Sequence[Entry], holder: object, namespace: str | None, name: str) -> tuple[Entry | None, list[Held]]:
    """Pick what is held under that name, and those of its holders that are meant: all that were seen, or one."""
    if holder is not None and (isinstance(holder, bool) or not isinstance(holder, (Holder, str, int))):
        raise ConfigurationError("holder", holder, "a Holder, a token, a fencing token, or None")
    held = [(seen, each) for seen in found for each in held_by(seen, namespace) if _is_meant(seen, each.token, holder)]
    kinds = {seen.kind for seen, _ in held}
    if len(kinds) > 1:
        allowed = f"one of {', '.join(sorted(kinds))}: {quoted(name)} is held as each of these"
        raise ConfigurationError("kind", None, allowed)
    if held:
        return held[0][0], [each for _, each in held]
    return (found[0] if found else None), []


def _is_meant(seen: Entry, token: str, holder: object) -> bool:
    if holder is None:
        return True
    if isinstance(holder, Holder):
        return token == holder.token
    if isinstance(holder, str):
        return token == holder
    block = BLOCK if token.endswith(MARK) else 1
    return seen.kind in ALONE and seen.fence <= holder < seen.fence + block  # type: ignore[operator]


def holders_of(seen: Entry, tokens: Sequence[str] | None, described: Described) -> tuple[Holder, ...]:
    """Return the holders with these tokens; None: all."""
    alone = seen.kind in ALONE
    return tuple(
        holder_of(token, remaining_ms, seen.fence if alone else 0, *described[token])
        for token, remaining_ms in seen.holders
        if tokens is None or token in tokens
    )
