"""`holdfast doctor`: can this server be used for locks, and how safely.

Theory: first everything that can be known is gathered (`Facts`), with "not known" for what the server does not
tell this user; then each check of `CHECKS` turns facts into findings, and they are shown by weight. A lock is
really taken, handed over and released on the way, since that alone proves that this user may do it all.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.cli import exits
from holdfast.cli.options import Parser, add_server_options, client_options
from holdfast.cli.report import clean, emit_json, json_error

__all__ = ["CHECKS", "Facts", "Finding", "examine", "gather", "main"]

#: How long the server has for each answer, s.
_PATIENCE_S = 5.0
#: Oldest versions that are supported.
_OLDEST = {"redis": (6, 2), "valkey": (7, 2)}
#: Beyond this the clocks of server and client are worth a word (it harms no lock), s.
_CLOCKS_APART_S = 1.0
#: Beyond this (median of the round trips) short leases get hard to renew, ms.
_SLOW_MS = 100.0
#: Part of maxmemory or maxclients from which it gets tight.
_TIGHT = 0.9

_PERMISSIONS = (
    "~{0}:* &{0}:inbox:* +@read +@write +@pubsub +evalsha +eval +script|load +time +info +config|get "
    "(as in: ACL SETUSER locks on >PASSWORD …)"
)

_EPILOG = """\
examples:
  holdfast doctor
  holdfast doctor --url rediss://locks@db1.example.org:6380 --json

Takes and releases a lock of its own under the given namespace, and changes nothing else.

exit status: 0 usable (read the warnings all the same)  78 must not be used for locks
  64 usage  69 server not available  77 server refuses us"""

#: Weights, heaviest first, with the mark shown for each.
_MARKS = {"fatal": "NO", "danger": "!!", "warning": "! ", "note": "- ", "ok": "ok"}


@dataclass(frozen=True)
class Finding:
    """One thing to know. `weight`: fatal (do not use it), danger (two holders are possible), warning, note, ok."""

    check: str
    weight: str
    what: str
    do: str | None = None


@dataclass
class Facts:
    """What was found out. An empty `info` or None: the server does not tell this user."""

    server: str
    namespace: str | None
    info: dict[str, Any] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    round_trips_ms: list[float] = field(default_factory=list)
    clocks_apart_s: float | None = None
    handoff_ms: float | None = None
    #: What went wrong with the lock that was tried, or None.
    trial_error: BaseException | None = None

    def number(self, name: str) -> int | None:
        """A number from INFO."""
        value = self.info.get(name)
        return value if isinstance(value, int) else None

    def setting(self, *names: str) -> str | None:
        """The first of these that CONFIG GET told."""
        return next((self.config[name] for name in names if name in self.config), None)

    @property
    def product(self) -> tuple[str, tuple[int, ...]] | None:
        """(redis or valkey, version)."""
        for product in ("valkey", "redis"):
            version = self.info.get(f"{product}_version")
            if isinstance(version, str):
                return product, tuple(int(part) for part in version.split(".") if part.isdigit())
        return None


def main(words: list[str]) -> int:
    """The command."""
    parser = Parser("doctor", description="Can this server be used for locks, and how safely?", epilog=_EPILOG)
    parser.add_argument("--json", action="store_true", help="for programs")
    add_server_options(parser)
    options = parser.parse_args(words)
    try:
        facts = _gather_from(options)
    except Exception as error:
        if not options.json:
            raise
        return json_error("doctor", error)
    findings = examine(facts)
    usable = all(finding.weight != "fatal" for finding in findings)
    if options.json:
        _print_json(facts, findings, usable)
    else:
        _print(facts, findings, usable)
    if usable:
        return exits.OK
    refused = facts.trial_error is not None and exits.status_of(facts.trial_error) == exits.REFUSED
    return exits.REFUSED if refused else exits.UNUSABLE


# ---- finding out ----


def _gather_from(options: argparse.Namespace) -> Facts:
    if not options.embedded:
        return gather(**client_options(options))
    from holdfast import embedded

    with embedded.server() as server:
        options.url = server.unix_url
        return gather(**client_options(options))


def gather(url: str | None, namespace: str | None) -> Facts:
    """Ask the server. Raises when it cannot be reached, or does not let us in."""
    import redis

    import holdfast

    holdfast.connect(url, namespace=namespace).close()  # refuses what is wrong with the arguments
    url = url if url is not None else os.environ.get("HOLDFAST_URL") or "redis://localhost:6379"
    # Small waits, no repeats: a server in trouble is what we want to see.
    with redis.Redis.from_url(url, socket_timeout=_PATIENCE_S, socket_connect_timeout=_PATIENCE_S) as client:
        facts = Facts(_name_of(client), namespace)
        _let_in(client, facts.server)
        facts.info = _told(lambda: client.info("everything")) or _told(client.info) or {}
        for name in ("save", "appendfsync", "min-replicas-to-write", "min-replicas-max-lag", "timeout"):
            got = _told(lambda name=name: client.config_get(name)) or {}  # type: ignore[misc]
            facts.config.update({_text(key): _text(value) for key, value in got.items()})
        _measure(client, facts)
    if facts.info.get("redis_mode") != "sentinel" and facts.info.get("role") != "slave":
        _try_a_lock(facts, url)
    return facts


def _name_of(client: Any) -> str:
    kwargs = client.connection_pool.connection_kwargs
    return str(kwargs.get("path") or f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}")


def _let_in(client: Any, server: str) -> None:
    """Raise what a lock would raise if it could not even connect."""
    import redis

    from holdfast import errors

    try:
        client.ping()
    except redis.exceptions.NoPermissionError:
        pass  # PING is not needed
    except (redis.exceptions.AuthenticationError, redis.exceptions.AuthorizationError) as error:
        raise errors.ServerError(server, "NOAUTH", str(error), "check user name and password") from None
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError) as error:
        if "authentication" in str(error).lower() or "wrongpass" in str(error).lower():
            raise errors.ServerError(server, "WRONGPASS", str(error), "check user name and password") from None
        raise errors.ServerUnreachable(server, str(error)) from None
    except redis.exceptions.RedisError as error:
        kind = "NOAUTH" if "authentication" in str(error).lower() else type(error).__name__
        raise errors.ServerError(server, kind, str(error)) from None


def _told(ask: Callable[[], Any]) -> Any:
    """The answer, or None when this user does not get one."""
    import redis

    try:
        return ask()
    except redis.exceptions.RedisError:
        return None


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


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


def _try_a_lock(facts: Facts, url: str) -> None:
    """Take a lock, extend it, hand it over to a waiter, release it."""
    import holdfast

    name = f"holdfast-doctor-{os.urandom(8).hex()}"
    granted: list[float] = []
    waiting_errors: list[BaseException] = []

    def wait() -> None:
        try:
            with there.lock(name).acquire(timeout=2 * _PATIENCE_S):
                granted.append(time.perf_counter())
        except BaseException as error:
            waiting_errors.append(error)

    try:
        with (
            holdfast.connect(url, namespace=facts.namespace, ttl=10) as here,
            holdfast.connect(url, namespace=facts.namespace, ttl=10) as there,
        ):
            lock = here.lock(name)
            lease = lock.acquire(timeout=_PATIENCE_S)
            lease.extend(10)
            waiter = threading.Thread(target=wait, daemon=True)
            waiter.start()
            until = time.monotonic() + _PATIENCE_S
            while lock.waiters() == 0 and not waiting_errors and time.monotonic() < until:
                time.sleep(0.005)
            time.sleep(0.02)  # it sleeps now
            released_at = time.perf_counter()
            lease.release()
            waiter.join(2 * _PATIENCE_S)
            if waiting_errors:
                raise waiting_errors[0]
            if granted:
                facts.handoff_ms = (granted[0] - released_at) * 1000
    except Exception as error:
        facts.trial_error = error


# ---- judging: each check gets the facts, and yields findings ----


def _check_role(facts: Facts) -> Iterator[Finding]:
    if facts.info.get("redis_mode") == "sentinel" or facts.info.get("server_mode") == "sentinel":
        yield Finding("role", "fatal", "this is a Sentinel, not a server that keeps data", "name the master's address")
    elif facts.info.get("role") == "slave":
        master = f"{facts.info.get('master_host')}:{facts.info.get('master_port')}"
        yield Finding("role", "fatal", f"this is a replica of {clean(master)}, and takes no writes", "name the master")


def _check_trial(facts: Facts) -> Iterator[Finding]:
    error = facts.trial_error
    if error is None:
        if facts.handoff_ms is not None:
            yield Finding("lock", "ok", f"a lock was taken, handed over ({facts.handoff_ms:.1f} ms) and released")
        return
    do = None
    if exits.status_of(error) == exits.REFUSED:
        do = f"give the user these rights: {_PERMISSIONS.format(facts.namespace or 'holdfast')}"
        if facts.namespace is None:
            do += ", and the locks' own names as keys"
    yield Finding("lock", "fatal", f"a lock could not be taken and handed over: {exits.sentence(error)}", do)


def _check_version(facts: Facts) -> Iterator[Finding]:
    found = facts.product
    if found is None:
        yield Finding(
            "version", "note", "not known: INFO is not allowed to this user", "Redis 6.2 or Valkey 7.2 at least"
        )
        return
    product, version = found
    shown = f"{product.capitalize()} {'.'.join(map(str, version))}"
    oldest = _OLDEST[product]
    if version < oldest:
        oldest_shown = ".".join(map(str, oldest))
        yield Finding("version", "fatal", f"{shown} is too old", f"use {product.capitalize()} {oldest_shown} or newer")
    else:
        yield Finding("version", "ok", shown)


def _check_eviction(facts: Facts) -> Iterator[Finding]:
    limit, used, policy = facts.number("maxmemory"), facts.number("used_memory"), facts.info.get("maxmemory_policy")
    if limit is None or policy is None:
        yield Finding("memory", "note", "eviction policy not known: INFO is not allowed to this user")
    elif policy != "noeviction" and limit > 0:
        yield Finding(
            "memory",
            "danger",
            f"maxmemory-policy is {clean(policy)}: under memory pressure the server deletes locks that are held",
            "set maxmemory-policy noeviction, or keep locks on a server of their own",
        )
    elif policy != "noeviction":
        yield Finding(
            "memory",
            "warning",
            f"maxmemory-policy is {clean(policy)}; it does no harm only as long as there is no maxmemory",
            "set maxmemory-policy noeviction",
        )
    elif limit > 0 and used is not None and used > limit * _TIGHT:
        yield Finding(
            "memory",
            "warning",
            f"{used * 100 // limit} % of maxmemory are used: at 100 % no lock can be taken any more",
            "give it more memory, or move other data away",
        )
    else:
        yield Finding("memory", "ok", "nothing is evicted")


def _check_replicas(facts: Facts) -> Iterator[Finding]:
    replicas = facts.number("connected_slaves")
    if replicas is None or facts.info.get("role") == "slave":
        return
    needed = facts.setting("min-replicas-to-write", "min-slaves-to-write")
    if replicas == 0 and needed in (None, "0"):
        yield Finding(
            "replicas", "note", "no replicas: when this server goes, there are no locks until it is back", None
        )
        return
    if needed == "0":
        yield Finding(
            "replicas",
            "danger",
            f"{replicas} replica(s), and min-replicas-to-write is 0: a master that was cut off goes on giving locks, "
            "while its successor gives the same ones",
            "set min-replicas-to-write 1 (and min-replicas-max-lag 10)",
        )
    elif needed is None:
        yield Finding(
            "replicas",
            "warning",
            f"{replicas} replica(s); min-replicas-to-write is not known (CONFIG is not allowed to this user)",
            "see that it is 1 or more",
        )
    elif replicas < int(needed):
        yield Finding(
            "replicas",
            "fatal",
            f"{replicas} replica(s) and min-replicas-to-write {needed}: the server refuses to write",
            "bring the replicas back",
        )
    else:
        yield Finding("replicas", "ok", f"{replicas} replica(s), min-replicas-to-write {needed}")
    if replicas > 0:
        yield Finding(
            "failover",
            "warning",
            "replication is asynchronous: a failover can lose a lock that was just given, and give it twice",
            'use sync_replicas="all" where that matters, and check fencing tokens at the resource',
        )


def _check_persistence(facts: Facts) -> Iterator[Finding]:
    aof = facts.number("aof_enabled")
    if aof is None:
        return
    fsync, save = facts.setting("appendfsync"), facts.setting("save")
    failed = facts.info.get("rdb_last_bgsave_status") == "err" or facts.info.get("aof_last_write_status") == "err"
    if failed:
        yield Finding(
            "persistence", "warning", "the last write to disk failed: the server may soon refuse writes", "see its log"
        )
    if aof and fsync in ("always", "everysec", None):
        lost = "nothing" if fsync == "always" else "at most about a second of locks"
        yield Finding("persistence", "ok", f"append-only file, fsync {fsync or 'not known'}: a crash loses {lost}")
        return
    how = "snapshots only" if save else "nothing is written to disk"
    if aof:
        how = f"append-only file with appendfsync {clean(fsync)}"
    elif save is None:
        how = "no append-only file"
    yield Finding(
        "persistence",
        "warning",
        f"{how}: a restart forgets locks, also those whose holders go on",
        "set appendonly yes (everysec loses a second at most), or let it stay down for the longest ttl after a crash",
    )


def _check_clock(facts: Facts) -> Iterator[Finding]:
    apart = facts.clocks_apart_s
    if apart is None:
        return
    side = "ahead of" if apart > 0 else "behind"
    if abs(apart) > _CLOCKS_APART_S:
        yield Finding(
            "clock",
            "note",
            f"the server's clock is {abs(apart):.1f} s {side} ours; locks do not depend on that (times shown do)",
            "keep both in step with NTP; the server's clock must never jump",
        )
    else:
        yield Finding("clock", "ok", f"the server's clock is {abs(apart) * 1000:.0f} ms {side} ours")


def _check_latency(facts: Facts) -> Iterator[Finding]:
    if not facts.round_trips_ms:
        return
    middle = sorted(facts.round_trips_ms)[len(facts.round_trips_ms) // 2]
    slow = middle > _SLOW_MS
    yield Finding(
        "latency",
        "warning" if slow else "ok",
        f"a round trip takes {middle:.1f} ms",
        "use a ttl of at least 100 round trips" if slow else None,
    )


def _check_limits(facts: Facts) -> Iterator[Finding]:
    limit, used = facts.number("maxclients"), facts.number("connected_clients")
    if limit and used is not None and used > limit * _TIGHT:
        yield Finding(
            "clients",
            "warning",
            f"{used} of {limit} connections are in use",
            "raise maxclients, or find who holds them",
        )
    timeout = facts.setting("timeout")
    if timeout not in (None, "0"):
        yield Finding(
            "clients",
            "note",
            f"idle connections are closed after {clean(timeout)} s; clients open them again by themselves",
        )


#: In no order: findings are shown by weight.
CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _check_role,
    _check_trial,
    _check_version,
    _check_eviction,
    _check_replicas,
    _check_persistence,
    _check_clock,
    _check_latency,
    _check_limits,
)


def examine(facts: Facts) -> list[Finding]:
    """All findings, heaviest first."""
    weights = list(_MARKS)
    return sorted((finding for check in CHECKS for finding in check(facts)), key=lambda f: weights.index(f.weight))


# ---- showing ----


def _verdict(findings: list[Finding], usable: bool) -> str:
    if not usable:
        return "cannot be used for locks"
    if any(finding.weight == "danger" for finding in findings):
        return "can be used, but two holders at once are possible"
    if any(finding.weight == "warning" for finding in findings):
        return "can be used, with the limits below"
    return "can be used"


def _print(facts: Facts, findings: list[Finding], usable: bool) -> None:
    colours = {"fatal": "31;1", "danger": "31", "warning": "33", "ok": "32"} if sys.stdout.isatty() else {}
    lines = [f"{facts.server} {_verdict(findings, usable)}", ""]
    for finding in findings:
        mark = _MARKS[finding.weight]
        if finding.weight in colours:
            mark = f"\x1b[{colours[finding.weight]}m{mark}\x1b[0m"
        lines.append(f"{mark} {finding.check:<12} {clean(finding.what)}")
        if finding.do is not None:
            lines.append(f"   {'':<12} → {clean(finding.do)}")
    sys.stdout.write("\n".join(lines) + "\n")


def _print_json(facts: Facts, findings: list[Finding], usable: bool) -> None:
    product = facts.product
    emit_json(
        "doctor",
        {
            "usable": usable,
            "server": facts.server,
            "product": product and product[0],
            "server_version": product and ".".join(map(str, product[1])),
            "verdict": _verdict(findings, usable),
            "findings": [{"check": f.check, "weight": f.weight, "what": f.what, "do": f.do} for f in findings],
            "clocks_apart_s": facts.clocks_apart_s,
            "handoff_ms": facts.handoff_ms,
        },
    )
