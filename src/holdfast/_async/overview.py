"""Listing the locks of a namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator

from holdfast._api.client_info import client_id_of, client_key
from holdfast._api.overview import Listed, listed
from holdfast._async.lifecycle import Session
from holdfast._core.describe import look_up
from holdfast._core.overview import Seen, Walk
from holdfast.errors import ConfigurationError

__all__ = ["list_locks"]

#: How many holders and waiters of a lock are named.
_NAMED_MAX = 16
#: Descriptions of clients that one listing remembers.
_CLIENTS_MAX = 10_000


async def list_locks(session: Session, pattern: str) -> AsyncIterator[Listed]:
    """Each lock, semaphore and election of the namespace whose name fits."""
    namespace = session.namespace
    if namespace is None:
        raise ConfigurationError("namespace", None, "a client with a namespace: without one, any key may be a lock")
    clients: dict[str, bytes | None] = {}
    node = 0
    while True:
        walk = Walk(namespace, pattern, _NAMED_MAX, not session.moves, session.settings)
        more = True
        while more:
            page, more = await session.run(walk.page(node))
            for seen in page:
                yield listed(seen, await _described(session, seen, clients))
        node += 1
        if node >= session.masters():
            return


async def _described(session: Session, seen: Seen, clients: dict[str, bytes | None]) -> dict[str, bytes | None]:
    """What the clients behind its tokens say of themselves; asked once for each."""
    found = {}
    for token, _ in (*seen.holders, *seen.waiters):
        client_id = client_id_of(token)
        if client_id is None:
            continue
        if client_id not in clients:
            if len(clients) >= _CLIENTS_MAX:
                clients.clear()
            clients[client_id] = await session.run(look_up(client_key(session.namespace, client_id)))
        found[token] = clients[client_id]
    return found
