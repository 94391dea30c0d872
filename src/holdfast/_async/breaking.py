"""Breaking the leases of others, and asking for them."""

from __future__ import annotations

from holdfast._api.breaking import Asked, Broken, chosen, holders_of, kinds_of, said
from holdfast._api.holder import Holder
from holdfast._api.options import Duration, timeout_of
from holdfast._async.lifecycle import Session
from holdfast._async.overview import described
from holdfast._core.breaking import FORCED, GONE, holders, take_away, want

__all__ = ["ask", "break_"]


async def break_(
    session: Session, name: str, kind: str | None, holder: Holder | str | int | None, reason: str, grace: Duration
) -> Broken:
    """See `Client.break_`."""
    text, grace_s = said(reason), timeout_of(grace, "grace") or 0.0
    namespace, settings = session.namespace, session.settings
    found = await session.run(holders(namespace, name, kinds_of(kind), settings))
    seen, held = chosen(found, holder, namespace, name)
    if seen is None:
        return Broken(name, None)
    about = await described(session, seen)
    everyone = holders_of(seen, [token for token, _ in seen.holders], about)
    if not held:
        return Broken(name, seen.kind, found=everyone)
    became = await session.run(take_away(held, text, grace_s, settings))
    ends = {each.token: end for each, end in zip(held, became, strict=True) if end != GONE}
    forced = [token for token, end in ends.items() if end == FORCED]
    return Broken(name, seen.kind, holders_of(seen, [*ends], about), holders_of(seen, forced, about))


async def ask(session: Session, name: str, kind: str | None, holder: Holder | str | int | None, reason: str) -> Asked:
    """See `Client.ask`."""
    text = said(reason)
    namespace, settings = session.namespace, session.settings
    found = await session.run(holders(namespace, name, kinds_of(kind), settings))
    seen, held = chosen(found, holder, namespace, name)
    if seen is None:
        return Asked(name, None)
    about = await described(session, seen)
    everyone = holders_of(seen, [token for token, _ in seen.holders], about)
    told: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for each in held:
        told[await session.run(want(each, text, settings))].append(each.token)
    if not held:
        return Asked(name, seen.kind, found=everyone)
    return Asked(name, seen.kind, holders_of(seen, told[2], about), holders_of(seen, told[1], about))
