"""`holdfast doctor`: can this server be used for locks, and how safely.

Theory: `survey` finds out what there is to know; each check of `CHECKS` turns the facts of one server into findings,
`_PLACE_CHECKS` those of the whole place (a Cluster, a quorum, …); findings are shown by weight, those that several
servers share once.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from holdfast._core.rights import rights, rule, table
from holdfast.cli import exits
from holdfast.cli.options import Parser, add_server_options, client_options
from holdfast.cli.report import clean, emit_json, json_error
from holdfast.cli.survey import Facts, Survey, survey

__all__ = ["CHECKS", "Finding", "examine", "examine_all", "main"]

#: Oldest versions that are supported.
_OLDEST = {"redis": (6, 2), "valkey": (7, 2)}
#: Beyond this the clocks of server and client are worth a word (it harms no lock), s.
_CLOCKS_APART_S = 1.0
#: Beyond this (median of the round trips) short leases get hard to renew, ms.
_SLOW_MS = 100.0
#: Part of maxmemory or maxclients from which it gets tight.
_TIGHT = 0.9

_RIGHTS_HOW = """\
As in: ACL SETUSER NAME on >PASSWORD …
The same on Redis 6.2, 7.x and Valkey. On Redis 6.2 channels are free unless `resetchannels` is given; later ones begin
without any. %R~ (Redis 7, Valkey) gains nothing: a script counts as writing all keys that it is given."""

_EPILOG = """\
examples:
  holdfast doctor
  holdfast doctor --url rediss://locks@db1.example.org:6380 --json

Acquires and releases a lock of its own in the given namespace, and changes nothing else.

exit status: 0 usable (but read the warnings)  78 do not keep locks on it
  64 usage  69 server not available  77 access refused"""

#: Weights, heaviest first, with the mark shown for each.
_MARKS = {"fatal": "NO", "danger": "!!", "warning": "! ", "note": "- ", "ok": "ok"}


#: What errors advise, and this command is.
_ADVICE = re.compile(r" \(`holdfast doctor` tries it\)|; `holdfast doctor` checks what locks need of a server")


@dataclass(frozen=True)
class Finding:
    """One thing to know. `weight`: fatal (do not use it), danger (two holders are possible while no machine has
    failed, or whenever one restarts), warning (a lock may be lost in a crash or a failover, or locks may not be had),
    note, ok.
    """

    check: str
    weight: str
    what: str
    do: str | None = None
    #: Which servers of several it is about; empty: all of them, or there is only one.
    servers: tuple[str, ...] = ()


def main(words: list[str]) -> int:
    """The command."""
    parser = Parser("doctor", description="Can you keep locks on this server, and how safely?", epilog=_EPILOG)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rights", action="store_true", help="print what a user of the server (ACL) must be allowed")
    add_server_options(parser)
    options = parser.parse_args(words)
    if options.rights:
        return _print_rights(options)
    try:
        found = _survey(options)
    except Exception as error:
        error.args = tuple(_ADVICE.sub("", each) if isinstance(each, str) else each for each in error.args)
        if not options.json:
            raise
        return json_error("doctor", error)
    findings = examine_all(found)
    usable = all(finding.weight != "fatal" for finding in findings)
    if options.json:
        _print_json(found, findings, usable)
    else:
        _print(found, findings, usable)
    if usable:
        return exits.OK
    refused = found.trial_error is not None and exits.status_of(found.trial_error) == exits.REFUSED
    return exits.REFUSED if refused else exits.UNUSABLE


def _print_rights(options: argparse.Namespace) -> int:
    rows = table(options.namespace or None)
    if options.json:
        emit_json("doctor", {"rights": dict(rows)})
    else:
        sys.stdout.write("\n\n".join(f"{what}\n  {line}" for what, line in rows) + f"\n\n{_RIGHTS_HOW}\n")
    return exits.OK


def _survey(options: argparse.Namespace) -> Survey:
    if not options.embedded:
        return survey(**client_options(options))
    from holdfast import embedded

    with embedded.server() as server:
        options.url = server.unix_url
        return survey(**client_options(options))


# ---- judging one server: each check gets its facts, and yields findings ----


def _check_role(facts: Facts) -> Iterator[Finding]:
    if facts.is_sentinel:
        way_out = "use redis+sentinel://HOST:PORT/SERVICE"
        yield Finding("role", "fatal", "this is a Sentinel, not a server that keeps data", way_out)
    elif facts.info.get("role") == "slave":
        master = f"{facts.info.get('master_host')}:{facts.info.get('master_port')}"
        yield Finding(
            "role", "fatal", f"this is a replica of {clean(master)}, and accepts no writes", "name the master"
        )


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
        what = "eviction, persistence and replicas are not known: INFO is not allowed to this user"
        yield Finding("memory", "note", what, "give doctor a user with +info +config|get, or check them yourself")
    elif policy != "noeviction" and limit > 0:
        yield Finding(
            "memory",
            "danger",
            f"maxmemory-policy is {clean(policy)}: under memory pressure the server deletes locks that are held",
            "set maxmemory-policy noeviction, or keep locks on a separate server",
        )
    elif policy != "noeviction":
        yield Finding(
            "memory",
            "warning",
            f"maxmemory-policy is {clean(policy)}; this is harmless only while maxmemory is not set",
            "set maxmemory-policy noeviction",
        )
    elif limit > 0 and used is not None and used > limit * _TIGHT:
        yield Finding(
            "memory",
            "warning",
            f"{used * 100 // limit} % of maxmemory are used: at 100 %, no lock can be acquired",
            "give it more memory, or move other data away",
        )
    else:
        yield Finding("memory", "ok", "nothing is evicted")


def _check_replicas(facts: Facts) -> Iterator[Finding]:
    replicas = facts.number("connected_slaves")
    if replicas is None or facts.info.get("role") == "slave":
        return
    if facts.kind == "quorum":
        if replicas:
            what = f"{replicas} replica(s): if one of them takes over, the quorum counts a member that forgot its vote"
            yield Finding("replicas", "danger", what, "a member of a quorum must have no replicas and no failover")
        return
    needed = facts.setting("min-replicas-to-write", "min-slaves-to-write")
    if replicas == 0 and needed in (None, "0"):
        yield Finding(
            "replicas", "note", "no replicas: if this server fails, there are no locks until it is back", None
        )
        return
    count = f"{replicas} replica" + ("s" if replicas != 1 else "")
    if needed == "0":
        yield Finding(
            "replicas",
            "danger",
            f"{count}, and min-replicas-to-write is 0: a master that is cut off keeps granting locks, "
            "while its successor grants the same ones",
            "set min-replicas-to-write 1 and min-replicas-max-lag to a few seconds",
        )
    elif needed is None:
        yield Finding(
            "replicas",
            "warning",
            f"{count}; min-replicas-to-write is not known (CONFIG is not allowed to this user)",
            "make sure that it is 1 or more",
        )
    elif replicas < int(needed):
        yield Finding(
            "replicas",
            "fatal",
            f"{count} and min-replicas-to-write {needed}: the server refuses to write",
            "bring the replicas back",
        )
    else:
        lag = facts.setting("min-replicas-max-lag", "min-slaves-max-lag")
        until = f"for up to {clean(lag)} s (min-replicas-max-lag)" if lag not in (None, "0") else "indefinitely"
        yield Finding(
            "replicas",
            "note" if lag != "0" else "danger",
            f"{count}, min-replicas-to-write {needed}: a master that is cut off keeps granting locks {until}",
            "set min-replicas-max-lag to a few seconds" if lag == "0" else None,
        )
    if replicas > 0:
        yield Finding(
            "failover",
            "warning",
            "replication is asynchronous: a failover may lose a lock that was just granted, and grant it twice",
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
    if aof and fsync == "always":
        yield Finding("persistence", "ok", "append-only file, fsync always: a crash loses no lock")
        return
    if facts.kind == "quorum":
        delay_s = facts.restart_delay_s
        if delay_s == 0:
            what = (
                "restart_delay is 0, and a restart forgets votes: restarted members grant locks that are held by others"
            )
            yield Finding("persistence", "danger", what, "do not set restart_delay, or set appendfsync always")
        else:
            delay = "the ttl of the request" if delay_s is None else f"{delay_s:g} s"
            what = f"a restart forgets votes: after one the member does not vote for restart_delay ({delay})"
            yield Finding(
                "persistence", "note", what, "set restart_delay to the longest ttl in use, or appendfsync always"
            )
        return
    if aof and fsync in ("everysec", None):
        what = f"append-only file, fsync {fsync or 'not known'}: a machine crash may lose the locks of the last second"
        yield Finding("persistence", "note", what, "set appendfsync always where that matters")
        return
    how = "snapshots only" if save else "nothing is written to disk"
    if aof:
        how = f"append-only file with appendfsync {clean(fsync)}"
    elif save is None:
        how = "no append-only file"
    yield Finding(
        "persistence",
        "warning",
        f"{how}: a restart forgets the locks that are held, and grants them to others while their holders continue",
        "set appendonly yes (everysec loses a second at most), or keep it down for the longest ttl after a crash",
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
            f"the server's clock is {abs(apart):.1f} s {side} ours; locks do not depend on this (displayed times do)",
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
        f"a round trip takes {middle:.2g} ms" if middle < 1 else f"a round trip takes {middle:.1f} ms",
        "use a ttl of at least 100 round trips" if slow else None,
    )


def _check_limits(facts: Facts) -> Iterator[Finding]:
    limit, used = facts.number("maxclients"), facts.number("connected_clients")
    if limit and used is not None and used > limit * _TIGHT:
        yield Finding(
            "clients",
            "warning",
            f"{used} of {limit} connections are in use",
            "raise maxclients, or find out which clients use them",
        )
    timeout = facts.setting("timeout")
    if timeout not in (None, "0"):
        yield Finding(
            "clients",
            "note",
            f"idle connections are closed after {clean(timeout)} s; clients reopen them automatically",
        )


#: In no order: findings are shown by weight.
CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _check_role,
    _check_version,
    _check_eviction,
    _check_replicas,
    _check_persistence,
    _check_clock,
    _check_latency,
    _check_limits,
)


# ---- judging the whole place ----


def _check_trial(found: Survey) -> Iterator[Finding]:
    error = found.trial_error
    if error is None:
        if found.handoff_ms is not None:
            yield Finding("lock", "ok", f"a lock was acquired, handed over ({found.handoff_ms:.1f} ms) and released")
        if found.trial_warning is not None:
            yield Finding("scripts", "warning", *_without_scripts(found.trial_warning))
        return
    do = None
    if exits.status_of(error) == exits.REFUSED:
        namespace = found.servers[0].namespace
        do = (
            f"ACL SETUSER NAME on >PASSWORD {rule(rights(), namespace)} (`holdfast doctor --rights`: for less than all)"
        )
    elif "restarted recently" in str(error):
        do = "wait for them: members that were started recently do not vote, since they may have forgotten a lease"
    yield Finding("lock", "fatal", f"a lock could not be acquired and handed over: {exits.sentence(error)}", do)


def _without_scripts(warning: str) -> tuple[str, str]:
    """Explain what it means that locks use plain commands, and the way out."""
    what = "locks use plain commands: waiters poll, in no order; no semaphores, rwlocks and so on"
    if "NOPERM" in warning:
        return f"this user may not run scripts; {what}", "give the user +evalsha +eval +script|load"
    return f"the server runs no scripts; {what}", "allow EVAL, EVALSHA and SCRIPT LOAD on it"


def _check_silent(found: Survey) -> Iterator[Finding]:
    gone = len(found.silent)
    if not gone:
        return
    for server, why in found.silent.items():
        yield Finding("members", "warning", f"cannot be reached: {why}", "bring it back", (server,))
    if found.kind == "quorum":
        total = len(found.servers) + gone
        left = len(found.servers) - (total // 2 + 1)
        more = "a majority is gone: no locks" if left < 0 else f"{left or 'not one'} more may fail"
        yield Finding("members", "warning", f"{gone} of {total} members cannot be reached: {more}")
    elif found.kind == "sentinel" and gone > (found.sentinels - 1) // 2:
        what = f"{gone} of {found.sentinels} Sentinels cannot be reached: without a majority of them nothing fails over"
        yield Finding("members", "warning", what, "bring them back")


def _check_complaint(found: Survey) -> Iterator[Finding]:
    if found.complaint is not None:
        whose = "the Sentinels" if found.kind == "sentinel" else "the Cluster"
        yield Finding("members", "danger", f"{whose} reported: {found.complaint}", "see the servers' logs")


def _check_independent(found: Survey) -> Iterator[Finding]:
    if found.kind != "quorum":
        return
    runs = [facts.info.get("run_id") for facts in found.servers]
    if len({run for run in runs if run}) < len([run for run in runs if run]):
        yield Finding("members", "fatal", "two members are the same server", "name independent servers")
    if any(facts.info.get("cluster_enabled") for facts in found.servers):
        yield Finding("members", "fatal", "members belong to a Cluster", "name independent servers")


_PLACE_CHECKS = (_check_trial, _check_silent, _check_complaint, _check_independent)


def examine(facts: Facts) -> list[Finding]:
    """All findings about one server, heaviest first."""
    return _by_weight(finding for check in CHECKS for finding in check(facts))


def examine_all(found: Survey) -> list[Finding]:
    """All findings, heaviest first; what several servers share is said once."""
    findings = [finding for check in _PLACE_CHECKS for finding in check(found)]
    of: dict[Finding, list[str]] = {}
    for facts in found.servers:
        for finding in examine(facts):
            # Figures differ from server to server: those that are well need not be told one by one.
            if finding.weight != "ok" or finding.check == "version" or len(found.servers) == 1:
                of.setdefault(finding, []).append(facts.server)
    for finding, servers in of.items():
        # Of Sentinels it is they who are silent, and not servers.
        everywhere = len(servers) == len(found.servers) and (found.kind == "sentinel" or not found.silent)
        findings.append(finding if everywhere else replace(finding, servers=tuple(servers)))
    return _by_weight(findings)


def _by_weight(findings: Iterable[Finding]) -> list[Finding]:
    weights = list(_MARKS)
    return sorted(findings, key=lambda finding: weights.index(finding.weight))


# ---- showing ----


def _verdict(findings: list[Finding], usable: bool) -> str:
    if not usable:
        return "cannot be used for locks"
    if any(finding.weight == "danger" for finding in findings):
        return "can be used, but two holders at once are possible"
    if any(finding.weight == "warning" for finding in findings):
        return "can be used, with the limits below"
    return "can be used"


def _print(found: Survey, findings: list[Finding], usable: bool) -> None:
    colours = (
        {"fatal": "31;1", "danger": "31", "warning": "33", "ok": "32"}
        if sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        else {}
    )
    lines = [f"{found.place} {_verdict(findings, usable)}", ""]
    for finding in findings:
        mark = _MARKS[finding.weight]
        if finding.weight in colours:
            mark = f"\x1b[{colours[finding.weight]}m{mark}\x1b[0m"
        where = f"{', '.join(finding.servers)}: " if finding.servers else ""
        lines.append(f"{mark} {finding.check:<12} {clean(where + finding.what)}")
        if finding.do is not None:
            lines.append(f"   {'':<12} → {clean(finding.do)}")
    sys.stdout.write("\n".join(lines) + "\n")


def _print_json(found: Survey, findings: list[Finding], usable: bool) -> None:
    servers = []
    for facts in found.servers:
        product = facts.product
        servers.append(
            {
                "server": facts.server,
                "product": product and product[0],
                "version": product and ".".join(map(str, product[1])),
                "clocks_apart_s": facts.clocks_apart_s,
            }
        )
    emit_json(
        "doctor",
        {
            "usable": usable,
            "verdict": _verdict(findings, usable),
            "place": found.place,
            "kind": found.kind,
            "servers": servers,
            "handoff_ms": found.handoff_ms,
            "findings": [
                {"check": f.check, "weight": f.weight, "what": f.what, "do": f.do, "servers": f.servers}
                for f in findings
            ],
        },
    )
