"""Breaking the leases of others, and asking for them."""

from __future__ import annotations

from holdfast._api.breaking import Asked, Broken, chosen, holders_of, kinds_of, said
from holdfast._api.holder import Described, Holder
from holdfast._api.options import Duration, timeout_of
from holdfast._api.overview import kind_of
from holdfast._async.lifecycle import Session
from holdfast._async.overview import described
from holdfast._core.breaking import FORCED, GONE, Held, holders, take_away, want
from holdfast._core.overview import Entry

__all__ = ["ask", "break_"]


async def break_(
    session: Session, name: str, kind: str | None, holder: Holder | str | int | None, reason: str, grace: Duration
) -> Broken:
    """See `Client.break_`."""
    text, grace_s = said(reason), timeout_of(grace, "grace") or 0.0
    seen, held, about = await _found(session, name, kind, holder)
    if seen is None:
        return Broken(name, None)
    if not held:
        return Broken(name, kind_of(seen), found=holders_of(seen, None, about))
    became = await session.run(take_away(held, text, grace_s, session.settings))
    ends = {each.token: end for each, end in zip(held, became, strict=True) if end != GONE}
    forced = [token for token, end in ends.items() if end == FORCED]
    broken = Broken(name, kind_of(seen), holders_of(seen, [*ends], about), holders_of(seen, forced, about))
    for each in broken.holders:
        session.reports.broke(kind_of(seen), name, each.fencing_token or 0, each.who, reason, each in broken.forced)
    return broken


async def ask(session: Session, name: str, kind: str | None, holder: Holder | str | int | None, reason: str) -> Asked:
    """See `Client.ask`."""
    text = said(reason)
    seen, held, about = await _found(session, name, kind, holder)
    if seen is None:
        return Asked(name, None)
    if not held:
        return Asked(name, kind_of(seen), found=holders_of(seen, None, about))
    told: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for each in held:
        told[await session.run(want(each, text, session.settings))].append(each.token)
    return Asked(name, kind_of(seen), holders_of(seen, told[2], about), holders_of(seen, told[1], about))


async def _found(
    session: Session, name: str, kind: str | None, holder: object
) -> tuple[Entry | None, list[Held], Described]:
    """Find what is held under that name, which of its holders are meant, and what their clients say of themselves."""
    found = await session.run(holders(session.namespace, name, kinds_of(kind), session.settings))
    seen, held = chosen(found, holder, session.namespace, name)
    return seen, held, {} if seen is None else await described(session, seen)
