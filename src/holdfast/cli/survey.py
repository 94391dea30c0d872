"""What there is to know about the place where locks live: asked, not judged (that is `doctor`).

What a server does not tell this user is "not known", and no error. A lock is really taken, handed over and
released, since that alone proves that this user may do it all.
"""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from holdfast.cli.services import Service, recognize

__all__ = ["Facts", "Survey", "survey"]

#: How long a server has for each answer, s.
_PATIENCE_S = 5.0

_KINDS = {"redis+sentinel": "sentinel", "redis+cluster": "cluster", "redlock": "quorum"}
#: What CONFIG GET is asked for.
_SETTINGS = ("save", "appendfsync", "min-replicas-to-write", "min-replicas-max-lag", "timeout")
_TELL = "return {redis.call('PUBLISH', ARGV[1], '-'), redis.call('PUBSUB', 'NUMSUB', ARGV[1])[2]}"
#: Options of a place, which are not for the connections to its servers.
_OF_PLACES = re.compile("restart_delay|member_timeout|sentinel_.*")


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
    import holdfast

    holdfast.connect(url, namespace=namespace).close()  # refuses what is wrong with the arguments
    url = url if url is not None else os.environ.get("HOLDFAST_URL") or "redis://localhost:6379"
    parts = urlsplit(url)
    kind = _KINDS.get(parts.scheme.replace("rediss", "redis").replace("redlocks", "redlock"), "single")
    found = Survey(_shown(url), kind)
    delay = dict(parse_qsl(parts.query)).get("restart_delay")
    for each in _servers(found, url, parts):
        try:
            facts = _ask(each, namespace, kind)
        except holdfast.ServerUnreachable as error:
            if kind in ("single", "sentinel"):
                raise
            found.silent[_shown(each)] = error.because
        else:
            facts.restart_delay_s = None if delay is None else float(delay)
            found.servers.append(facts)
    if not found.servers:
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


# ---- the servers of each kind of place ----


def _servers(found: Survey, url: str, parts: SplitResult) -> list[str]:
    """Return the URL of each, with the user, the password and the options of the whole place."""
    credentials, at, hosts = parts.netloc.rpartition("@")
    scheme = "rediss" if parts.scheme.startswith(("rediss", "redlocks")) else "redis"
    options = parse_qsl(parts.query)
    own = urlencode([pair for pair in options if not _OF_PLACES.fullmatch(pair[0])])
    addresses = hosts.split(",")

    def url_of(address: str, path: str) -> str:
        return f"{scheme}://{credentials}{at}{address}{path}?{own}"

    if found.kind == "sentinel":
        service, _, database = parts.path.strip("/").partition("/")
        theirs = urlencode([(name[9:], value) for name, value in options if name.startswith("sentinel_")])
        ports = ["" if ":" in each else ":26379" for each in addresses]
        urls = {each: f"{scheme}://{each}{port}?{theirs}" for each, port in zip(addresses, ports, strict=True)}
        return [url_of(each, f"/{database or 0}") for each in _of_sentinels(found, urls, service)[:1]]
    if found.kind == "cluster":
        return [url_of(each, "/0") for each in _of_cluster(found, {each: url_of(each, "/0") for each in addresses})]
    return [url] if found.kind == "single" else [url_of(each, parts.path) for each in addresses]


@contextmanager
def _asking(found: Survey, address: str, url: str) -> Iterator[Any]:
    """Yield a client of a Sentinel, or of a member of a Cluster, that was named; notes what is wrong with it."""
    import redis

    try:
        with redis.Redis.from_url(url, **_plain()) as client:
            yield client
    except redis.exceptions.ResponseError as error:
        found.complaint = f"{address}: {error}"
    except (redis.exceptions.RedisError, OSError) as error:
        found.silent[address] = str(error)


def _of_sentinels(found: Survey, urls: dict[str, str], service: str) -> list[str]:
    found.sentinels = len(urls)
    masters = []
    for address, url in urls.items():
        with _asking(found, address, url) as client:
            told = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
            if told:
                masters.append(":".join(told))
                client.execute_command("SENTINEL", "CKQUORUM", service)
            else:
                found.complaint = f"{address} knows no service {service!r}"
    return masters


def _of_cluster(found: Survey, urls: dict[str, str]) -> list[str]:
    masters: set[tuple[str, int]] = set()
    for address, url in urls.items():
        with _asking(found, address, url) as client:
            # In two words, for whose replies redis-py has no parser of its own.
            for _, _, (host, port, *_), *_ in client.execute_command("CLUSTER", "SLOTS"):
                masters.add((host or address.rpartition(":")[0] or address, int(port)))
            state = re.search(r"cluster_state:(\w*)", client.execute_command("CLUSTER", "INFO"))
            if state is None or state[1] != "ok":
                found.complaint = f"{address} says cluster_state:{state[1] if state else ''}"
        if masters:
            break
    return [f"{host}:{port}" for host, port in sorted(masters)]


def _plain() -> dict[str, Any]:
    """Return the options of all connections: they send no HELLO and no CLIENT, at which some proxies hang up."""
    import redis

    named = ("driver_info",) if hasattr(redis, "driver_info") else ("lib_name", "lib_version")  # by version
    waits = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), _PATIENCE_S)
    return {"protocol": 2, "decode_responses": True, "encoding_errors": "replace", **waits, **dict.fromkeys(named)}


# ---- one server ----


def _ask(url: str, namespace: str | None, kind: str) -> Facts:
    import redis

    # Small waits, no repeats: a server in trouble is what we want to see.
    with redis.Redis.from_url(url, **_plain()) as client:
        facts = Facts(_shown(url), namespace, kind=kind)
        _let_in(client, facts.server)
        facts.info = _told(lambda: client.info("everything")) or _told(client.info, facts.refusals) or {}
        for name in (*_SETTINGS, "active-replica", "multi-master"):
            got = _told(partial(client.config_get, name), facts.refusals) or {}
            facts.config.update(got)
        _measure(client, facts)
        try:
            facts.tells = _tells(client, f"{namespace or 'holdfast'}:inbox:doctor")
        except redis.exceptions.RedisError as error:  # if PING is not answered either, it has gone meanwhile
            facts.hangs_up = isinstance(error, redis.exceptions.ConnectionError) and bool(_told(client.ping))
    return facts


def _tells(client: Any, channel: str) -> bool:
    with client.pubsub() as inbox:
        inbox.subscribe(channel)
        inbox.get_message(timeout=_PATIENCE_S)  # once it is subscribed
        told, there = client.eval(_TELL, 1, channel, channel)
        return bool(told and there)


def _let_in(client: Any, server: str) -> None:
    """Raise what a lock would raise if it could not even connect."""
    import redis

    from holdfast import errors

    try:
        client.ping()
    except redis.exceptions.NoPermissionError:
        pass  # PING is not needed
    except (redis.exceptions.RedisError, OSError) as error:
        said = str(error)
        refusals = redis.exceptions.AuthenticationError, redis.exceptions.AuthorizationError
        if isinstance(error, refusals) or re.search("authentication|wrongpass", said, re.IGNORECASE):
            raise errors.ServerError(server, "NOAUTH", said, "check user name and password") from None
        if isinstance(error, (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError)):
            raise errors.ServerUnreachable(server, said) from None
        raise errors.ServerError(server, type(error).__name__, said) from None


def _told(ask: Callable[[], Any], refusals: list[str] | None = None) -> Any:
    """The answer, or None when this user does not get one; `refusals` gets what was said instead."""
    import redis

    try:
        return ask()
    except redis.exceptions.RedisError as error:
        if refusals is not None:
            refusals.append(str(error))
        return None


def _measure(client: Any, facts: Facts) -> None:
    """Round trips and the server's clock against ours; the quickest answer says most about the clock."""
    best_s = float("inf")
    for _ in range(9):
        sent_at, sent_on = time.perf_counter(), time.time()
        told = _told(client.time)
        took_s = time.perf_counter() - sent_at
        if told is None:
            return
        facts.round_trips_ms.append(took_s * 1000)
        if took_s < best_s:
            best_s = took_s
            facts.clocks_apart_s = told[0] + told[1] / 1_000_000 - (sent_on + took_s / 2)


def _try_a_lock(found: Survey, url: str, namespace: str | None) -> None:
    """Take a lock, extend it, hand it over to a waiter, release it."""
    import holdfast

    name = f"holdfast-doctor-{os.urandom(8).hex()}"

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
