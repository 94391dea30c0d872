"""Asking Sentinels where the master is, for URLs; a Sentinel client that the user made asks in its own way.

Laws: whatever is wrong with one Sentinel, the next one is asked; no connection to a Sentinel is kept, since they are
asked when a connection is made, which is rare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError
from redis.sentinel import Sentinel

from holdfast._core.failure import RequestFailed
from holdfast._engine.handshake import connection_failed


class Discovery(Sentinel):
    """Sentinels."""

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """The master's address."""
        troubles: list[tuple[Any, Exception]] = []
        for sentinel in tuple(self.sentinels):
            try:
                address = _address(self, service_name, sentinel.sentinel_masters())
            except Exception as error:
                troubles.append((sentinel, error))
            else:
                if address is not None:
                    _ask_first(self.sentinels, sentinel)
                    return address
            finally:
                sentinel.connection_pool.disconnect(inuse_connections=False)
        raise _not_found(service_name, troubles, len(self.sentinels))


def _address(asked: Any, service: str, masters: Any) -> tuple[str, int] | None:
    """Return the master's address as one Sentinel says it; None when it does not know."""
    state = masters.get(service)
    if not state or not asked.check_master_state(state, service):
        return None
    host, port = state["ip"], int(state["port"])
    if not isinstance(host, str) or not host or not 0 < port < 65536:
        raise ResponseError(f"the master's address is {host!r}, port {port!r}")
    return host, port


def _ask_first(sentinels: list[Any], sentinel: Any) -> None:
    """The next time, too."""
    sentinels[:] = sorted(sentinels, key=lambda each: each is not sentinel)  # at once: other threads go through it


def _place(sentinel: Any) -> str:
    kwargs = sentinel.connection_pool.connection_kwargs
    return f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 26379)}"


def _not_found(service: str, troubles: Sequence[tuple[Any, Exception]], asked: int) -> RequestFailed:
    """Why no Sentinel has named a master."""
    failures = [connection_failed(error, _place(sentinel)) for sentinel, error in troubles]
    others = [each for each in failures if "unknown command 'sentinel'" in each.message.lower().replace("`", "'")]
    if others and len(others) == asked:
        message = "it is not a Sentinel: use redis:// for a server, or the port of a Sentinel (26379)"
        places = ", ".join(each.node for each in others)
        return RequestFailed("foreign", message, places, maybe_executed=False, transient=False)
    for failure in failures:
        if failure.kind == "unfit":
            failure.message = "an answer that makes no sense"
        if failure.kind in ("NOAUTH", "WRONGPASS", "NOPERM"):
            failure.way_out = "sentinel_username=… and sentinel_password=… in the URL are for the Sentinels"
            return failure
    if failures:
        said = "; ".join(f"{each.node}: {each.message}" for each in failures)
        message, way_out = f"no Sentinel names it ({said})", failures[0].way_out
    else:
        message = "no Sentinel knows it"
        way_out = "check the service's name, which is the path of the URL (SENTINEL MASTERS lists them)"
    transient = not failures or any(each.transient for each in failures)
    failure = RequestFailed(
        "refused", message, f"{service} (through Sentinel)", maybe_executed=False, transient=transient
    )
    failure.way_out = way_out
    return failure
