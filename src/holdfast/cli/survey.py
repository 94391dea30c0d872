"""What there is to know about the place where locks live: asked, not judged (that is `doctor`).

What a server does not tell this user is "not known", and no error. A lock is really taken, handed over and
released, since that alone proves that this user may do it all. All is asked by clients of ours: what keeps locks from
a server keeps this from it, too, and is told in the same words.
"""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

import holdfast
from holdfast._core.overview import hears, say
from holdfast.cli.services import Service, recognize

#: How long a server has for each answer, s.
_PATIENCE_S = 5.0

#: What the locks that are tried are called.
_NAME = "holdfast-doctor"
_KINDS = {"redis+sentinel": "sentinel", "redis+cluster": "cluster", "redlock": "quorum"}
#: What CONFIG GET is asked for.
_SETTINGS = ("save", "appendfsync", "min-replicas-to-write", "min-replicas-max-lag", "timeout")


@dataclass
class Facts:
    """What was found out. An empty `info` or None: the server does not tell this user."""

    server: str
    namespace: str | None
    info: dict[str, Any] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    round_trips_ms: list[float] = field(default_factory=list)
    clocks_apart_s: float | None = None
    #: What kind of place it belongs to, as in `Survey`.
    kind: str = "single"
    #: Of a member of a quorum: for how long it does not vote after a start, s; None: a ttl.
    restart_delay_s: float | None = None
    #: What it said to INFO and CONFIG GET instead of an answer.
    refusals: list[str] = field(default_factory=list)
    #: Whether a script can tell a client something, and sees that it subscribes.
    tells: bool | None = None
    #: Whether it ends the connection at SUBSCRIBE.
    hangs_up: bool = False

    @property
    def is_sentinel(self) -> bool:
        return "sentinel" in [self.info.get(f"{prefix}_mode") for prefix in ("redis", "server", "redict")]

    @property
    def service(self) -> Service | None:
        """The service, if it is known by name."""
        return recognize(self.server, self.info, self.refusals)

    @property
    def is_durable(self) -> bool:
        """Whether a failover and a restart lose nothing that was confirmed."""
        return self.service is not None and self.service.is_durable

    def number(self, name: str) -> int | None:
        value = self.info.get(name)
        return value if isinstance(value, int) else None

    def setting(self, *names: str) -> str | None:
        """The first of these that CONFIG GET told."""
        return next((self.config[name] for name in names if name in self.config), None)

    @property
    def product(self) -> tuple[str, tuple[int, ...]] | None:
        """(redis, valkey or another that says it is itself, version)."""
        for product in ("valkey", "redict", "dragonfly", "garnet", "kvrocks", "redis"):  # most have the last one, too
            version = self.info.get(f"{product}_version")
            if version is not None:
                named = "keydb" if product == "redis" and "mvcc_depth" in self.info else product
                return named, tuple(int(part) for part in re.findall(r"\d+", str(version))[:3])
        return None


@dataclass
class Survey:
    """The whole place."""

    #: As it was named, without users and passwords.
    place: str
    #: single, sentinel, cluster or quorum.
    kind: str
    #: The servers that could be asked.
    servers: list[Facts] = field(default_factory=list)
    #: Those (of Sentinels: the Sentinels) that could not, and why.
    silent: dict[str, str] = field(default_factory=dict)
    #: How many Sentinels were named.
    sentinels: int = 0
    #: What Sentinels or the Cluster say is wrong with them, or None.
    complaint: str | None = None
    #: The lock that was tried.
    handoff_ms: float | None = None
    trial_error: BaseException | None = None
    #: What the client warned of, as that there are no scripts.
    trial_warning: str | None = None


def survey(url: str | None, namespace: str | None) -> Survey:
    """Ask around. Raises when no server can be reached, or does not let us in."""
    with holdfast.connect(url, namespace=namespace) as client:
        url = url if url is not None else os.environ.get("HOLDFAST_URL") or "redis://localhost:6379"
        parts = urlsplit(url)
        kind = _KINDS.get(parts.scheme.replace("rediss", "redis").replace("redlocks", "redlock"), "single")
        found = Survey(_shown(url), kind)
        masters = _ask_sentinels(found, parts) if kind == "sentinel" else []
        delay = dict(parse_qsl(parts.query)).get("restart_delay")
        for place, name in enumerate(_servers(client, kind)):
            facts = Facts(masters[0] if masters else name, namespace, kind=kind)
            facts.restart_delay_s = None if delay is None else float(delay)
            try:
                _ask(client, place, facts)
            except (holdfast.ServerUnreachable, holdfast.OutcomeUnknown) as error:
                if kind in ("single", "sentinel"):
                    raise
                found.silent[name] = _why(error)
            else:
                found.servers.append(facts)
        if kind == "cluster":
            state = re.search(r"cluster_state:(\w*)", _told(partial(_say, client, None), "CLUSTER", "INFO") or "")
            if state is not None and state[1] != "ok":
                found.complaint = f"cluster_state:{state[1]}"
        if not found.servers:
            client.lock(_NAME).locked()  # raises what any other command would
            raise holdfast.ServerUnreachable(found.place, found.complaint or "; ".join(found.silent.values()))
    if any(each.info.get("role") != "slave" and not (each.is_sentinel or each.hangs_up) for each in found.servers):
        _try_a_lock(found, url, namespace)
    return found


def _shown(url: str) -> str:
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2]
    if parts.scheme in ("redis", "rediss"):
        return hosts if ":" in hosts else f"{hosts or 'localhost'}:6379"
    return unquote(parts.path) if parts.scheme == "unix" else f"{parts.scheme}://{hosts}{parts.path}"


def _servers(client: Any, kind: str) -> list[str]:
    """Name the servers that have keys, each in its place."""
    topology = client._session.driver.topology
    if kind == "cluster":
        _let_in(partial(_say, client, None))  # then its masters are known
        return [each.name for each in topology.masters()]
    return [each.name for each in topology.nodes()]


def _ask_sentinels(found: Survey, parts: SplitResult) -> list[str]:
    """Return the addresses of the master that they name, and note what is wrong with them."""
    addresses, options = parts.netloc.rpartition("@")[2].split(","), parse_qsl(parts.query)
    theirs = urlencode([(name[9:], value) for name, value in options if name.startswith("sentinel_")])
    scheme, service = parts.scheme.partition("+")[0], parts.path.split("/")[1]
    found.sentinels = len(addresses)
    masters = []
    for address in addresses:
        port = "" if re.search(r":\d+$", address) else ":26379"
        try:
            with holdfast.connect(f"{scheme}://{address}{port}?{theirs}") as client:
                told = _say(client, None, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
                if told:
                    masters.append("{}:{}".format(*told))
                    _say(client, None, "SENTINEL", "CKQUORUM", service)
                else:
                    found.complaint = f"{address} knows no service {service!r}"
        except holdfast.ServerError as error:
            found.complaint = f"{address}: {error.server_message}"
        except (holdfast.ServerUnreachable, holdfast.OutcomeUnknown) as error:
            found.silent[address] = _why(error)
    return masters


def _why(error: Exception) -> str:
    return getattr(error, "because", None) or str(error)


# ---- one server ----


def _ask(client: Any, place: int, facts: Facts) -> None:
    ask = partial(_say, client, place)
    _let_in(ask)
    facts.info = _parsed(_told(ask, "INFO", "everything") or _told(ask, "INFO", refusals=facts.refusals) or "")
    for name in (*_SETTINGS, "active-replica", "multi-master"):
        got = _told(ask, "CONFIG", "GET", name, refusals=facts.refusals) or {}
        facts.config.update(got if isinstance(got, dict) else zip(got[::2], got[1::2], strict=True))
    _measure(ask, facts)
    if facts.kind in ("single", "sentinel"):
        key = f"{facts.namespace or 'holdfast'}:{{doctor}}"
        facts.tells, hung_up = client._session.run(hears(key, _PATIENCE_S))
        facts.hangs_up = hung_up and _told(ask, "PING") is not None  # else it has gone meanwhile


def _let_in(ask: Callable[..., Any]) -> None:
    """Raise what a lock would raise if it could not even connect."""
    try:
        ask("PING")
    except holdfast.ServerError as error:
        if error.kind != "NOPERM":  # that one is let in, and PING is not needed
            raise


def _say(client: Any, place: int | None, *words: str) -> Any:
    return client._session.run(say(words, place, _PATIENCE_S))


def _told(ask: Callable[..., Any], *words: str, refusals: list[str] | None = None) -> Any:
    """The answer, or None when this user does not get one; `refusals` gets what was said instead."""
    try:
        return ask(*words)
    except holdfast.HoldfastError as error:
        if refusals is not None:
            refusals.append(getattr(error, "server_message", str(error)))
        return None


def _parsed(info: str) -> dict[str, Any]:
    """Return what INFO says, with its numbers as such."""
    pairs = (line.partition(":") for line in info.splitlines() if ":" in line)
    return {name: int(value) if value.isdecimal() else value for name, _, value in pairs}


def _measure(ask: Callable[..., Any], facts: Facts) -> None:
    """Round trips and the server's clock against ours; the quickest answer says most about the clock."""
    best_s = float("inf")
    for _ in range(9):
        sent_at, sent_on = time.perf_counter(), time.time()
        told = _told(ask, "TIME")
        took_s = time.perf_counter() - sent_at
        if told is None:
            return
        facts.round_trips_ms.append(took_s * 1000)
        if took_s < best_s:
            best_s = took_s
            facts.clocks_apart_s = int(told[0]) + int(told[1]) / 1_000_000 - (sent_on + took_s / 2)


def _try_a_lock(found: Survey, url: str, namespace: str | None) -> None:
    """Take a lock, extend it, hand it over to a waiter, release it."""
    name = f"{_NAME}-{os.urandom(8).hex()}"

    def wait() -> float:
        with there.lock(name).acquire(timeout=2 * _PATIENCE_S):
            return time.perf_counter()

    try:
        with (
            warnings.catch_warnings(record=True) as warned,
            ThreadPoolExecutor(1) as waiter,
            holdfast.connect(url, namespace=namespace, ttl=10) as here,
            holdfast.connect(url, namespace=namespace, ttl=10) as there,
        ):
            warnings.simplefilter("always", RuntimeWarning)
            lock = here.lock(name)
            lease = lock.acquire(timeout=_PATIENCE_S)
            lease.extend(10)
            granted = waiter.submit(wait)
            # Over a quorum there is no queue: waiters ask from time to time.
            until = time.monotonic() + (_PATIENCE_S if found.kind != "quorum" else 0.1)
            while lock.waiters() == 0 and not granted.done() and time.monotonic() < until:
                time.sleep(0.005)
            time.sleep(0.02)  # it sleeps now
            released_at = time.perf_counter()
            lease.release()
            found.handoff_ms = (granted.result() - released_at) * 1000
            found.trial_warning = next((str(w.message) for w in warned if w.category is RuntimeWarning), None)
    except Exception as error:
        found.trial_error = error
