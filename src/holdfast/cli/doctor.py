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
from dataclasses import asdict, dataclass, replace

from holdfast._core.rights import rights, rule, table
from holdfast.cli import exits
from holdfast.cli.options import Parser, add_server_options, client_options, private_server
from holdfast.cli.report import answering, clean, emit_json
from holdfast.cli.survey import Facts, Survey, survey

#: Oldest versions that are supported.
_OLDEST: dict[str, tuple[int, ...]] = {"redis": (6, 2), "valkey": (7, 2)}
#: Beyond this the clocks of server and client are worth a word (it harms no lock), s.
_CLOCKS_APART_S = 1.0
#: Beyond this (median of the round trips) short leases get hard to renew, ms.
_SLOW_MS = 100.0
#: A handoff that takes longer was not told to its waiter, ms.
_UNTOLD_MS = 1000.0
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

#: Weights, heaviest first: the mark, its colour, and what to say of a place where nothing is heavier.
_WEIGHTS = {
    "fatal": ("NO", "31;1", "cannot be used for locks"),
    "danger": ("!!", "31", "can be used, but two holders at once are possible"),
    "warning": ("! ", "33", "can be used, with the limits below"),
    "note": ("- ", "", "can be used"),
    "ok": ("ok", "32", "can be used"),
}

#: What errors advise, and this command is.
_ADVICE = re.compile(
    r" \(`holdfast doctor` tries it\)|; `holdfast doctor` (checks what locks need of a server|says what works there)"
)


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
    parser = Parser("doctor", description="Can you keep locks on this server, and how safely?", epilog=_EPILOG)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rights", action="store_true", help="print what a user of the server (ACL) must be allowed")
    add_server_options(parser)
    options = parser.parse_args(words)
    if options.rights:
        return _print_rights(options)
    with answering("doctor", options.json), private_server(options):
        try:
            found = survey(**client_options(options))
        except Exception as error:
            error.args = tuple(_ADVICE.sub("", each) if isinstance(each, str) else each for each in error.args)
            raise
    findings = examine_all(found)
    if options.json:
        _print_json(found, findings)
    else:
        _print(found, findings)
    if _is_usable(findings):
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


# ---- judging one server: each check gets its facts, and yields (weight, what, what to do) ----

Judged = tuple[str, str, str | None]


def _check_role(facts: Facts) -> Iterator[Judged]:
    if facts.hangs_up:
        what = "this closes the connection at SUBSCRIBE, as twemproxy does: nothing can wait for a lock here"
        yield "fatal", what, "name the server behind it"
    elif facts.is_sentinel:
        yield "fatal", "this is a Sentinel, not a server that keeps data", "use redis+sentinel://HOST:PORT/SERVICE"
    elif facts.info.get("role") == "slave":
        master = f"{facts.info.get('master_host')}:{facts.info.get('master_port')}"
        yield "fatal", f"this is a replica of {clean(master)}, and accepts no writes", "name the master"
    elif facts.info.get("role") == "active-replica" or "yes" in map(facts.setting, ("active-replica", "multi-master")):
        what = "active-active replication: several servers accept writes, and each of them grants the same lock"
        yield "fatal", what, "keep locks on a server with active-replica no and multi-master no"


def _check_version(facts: Facts) -> Iterator[Judged]:
    found = facts.product
    if found is None:
        if not facts.hangs_up:
            yield "note", "not known: INFO is not allowed to this user", "Redis 6.2 or Valkey 7.2 at least"
        return
    product, version = found
    name = "KeyDB" if product == "keydb" else product.capitalize()
    shown = f"{name} {'.'.join(map(str, version))}"
    oldest = _OLDEST.get(product, ())
    if version < oldest:
        yield "fatal", f"{shown} is too old", f"use {name} {'.'.join(map(str, oldest))} or newer"
    else:
        yield "ok", shown, None


def _check_eviction(facts: Facts) -> Iterator[Judged]:
    fixed = facts.service.policy if facts.service else None
    limit, used, policy = facts.number("maxmemory"), facts.number("used_memory"), facts.info.get("maxmemory_policy")
    if fixed is not None or (policy not in (None, "noeviction") and limit):
        policy = clean(fixed or policy)
        which = "keys that have a ttl, as every lock has" if policy.startswith("volatile") else "locks that are held"
        what = f"maxmemory-policy is {policy}: under memory pressure the server deletes {which}"
        yield "danger", what, ("" if fixed else "set maxmemory-policy noeviction, or ") + "keep locks on another server"
    elif facts.hangs_up:
        return
    elif limit is None or policy is None:
        what = "eviction, persistence or replicas are not known: INFO does not tell this user"
        yield "note", what, "give doctor a user with +info +config|get, or check them yourself"
    elif policy != "noeviction":
        what = f"maxmemory-policy is {clean(policy)}; this is harmless only while maxmemory is not set"
        yield "warning", what, "set maxmemory-policy noeviction"
    elif limit > 0 and used is not None and used > limit * _TIGHT:
        what = f"{used * 100 // limit} % of maxmemory are used: at 100 %, no lock can be acquired"
        yield "warning", what, "give it more memory, or move other data away"
    else:
        yield "ok", "nothing is evicted", None


def _check_replicas(facts: Facts) -> Iterator[Judged]:
    replicas = facts.number("connected_slaves")
    if replicas is None or facts.info.get("role") == "slave" or facts.is_durable:
        return
    if facts.kind == "quorum":
        if replicas:
            what = f"{replicas} replica(s): if one of them takes over, the quorum counts a member that forgot its vote"
            yield "danger", what, "a member of a quorum must have no replicas and no failover"
        return
    needed = facts.setting("min-replicas-to-write", "min-slaves-to-write")
    if replicas == 0 and needed in (None, "0"):
        yield "note", "no replicas: if this server fails, there are no locks until it is back", None
        return
    count = f"{replicas} replica" + ("s" if replicas != 1 else "")
    if needed == "0":
        what = (
            f"{count}, and min-replicas-to-write is 0: a master that is cut off keeps granting locks, "
            "while its successor grants the same ones"
        )
        yield "danger", what, "set min-replicas-to-write 1 and min-replicas-max-lag to a few seconds"
    elif needed is None:
        what = f"{count}; min-replicas-to-write is not known (CONFIG is refused)"
        yield "warning", what, "make sure that it is 1 or more"
    elif replicas < int(needed):
        what = f"{count} and min-replicas-to-write {needed}: the server refuses to write"
        yield "fatal", what, "bring the replicas back"
    else:
        lag = facts.setting("min-replicas-max-lag", "min-slaves-max-lag")
        until = f"for up to {clean(lag)} s (min-replicas-max-lag)" if lag not in (None, "0") else "indefinitely"
        what = f"{count}, min-replicas-to-write {needed}: a master that is cut off keeps granting locks {until}"
        yield ("note", what, None) if lag != "0" else ("danger", what, "set min-replicas-max-lag to a few seconds")


def _check_failover(facts: Facts) -> Iterator[Judged]:
    if not facts.number("connected_slaves") or facts.info.get("role") == "slave" or facts.kind == "quorum":
        return
    if facts.is_durable:
        yield "ok", "writes are logged in several places before they are confirmed: none is lost", None
    else:
        what = "replication is asynchronous: a failover may lose a lock that was just granted, and grant it twice"
        yield "warning", what, 'use sync_replicas="all" where that matters, and check fencing tokens at the resource'


def _check_persistence(facts: Facts) -> Iterator[Judged]:
    aof = facts.number("aof_enabled")
    if aof is None or facts.is_durable:
        return
    fsync, save = facts.setting("appendfsync"), facts.setting("save")
    if facts.info.get("rdb_last_bgsave_status") == "err" or facts.info.get("aof_last_write_status") == "err":
        yield "warning", "the last write to disk failed: the server may soon refuse writes", "see its log"
    if aof and fsync == "always":
        yield "ok", "append-only file, fsync always: a crash loses no lock", None
        return
    if facts.kind == "quorum":
        delay_s = facts.restart_delay_s
        if delay_s == 0:
            what = (
                "restart_delay is 0, and a restart forgets votes: restarted members grant locks that are held by others"
            )
            yield "danger", what, "do not set restart_delay, or set appendfsync always"
        else:
            delay = "the ttl of the request" if delay_s is None else f"{delay_s:g} s"
            what = f"a restart forgets votes: after one the member does not vote for restart_delay ({delay})"
            yield "note", what, "set restart_delay to the longest ttl in use, or appendfsync always"
        return
    if aof and fsync in ("everysec", None):
        what = f"append-only file, fsync {fsync or 'not known'}: a machine crash may lose the locks of the last second"
        yield "note", what, "set appendfsync always where that matters"
        return
    how = "snapshots only" if save else "nothing is written to disk"
    if aof:
        how = f"append-only file with appendfsync {clean(fsync)}"
    elif save is None:
        how = "no append-only file"
    yield (
        "warning",
        f"{how}: a restart forgets the locks that are held, and grants them to others while their holders continue",
        "set appendonly yes (everysec loses a second at most), or keep it down for the longest ttl after a crash",
    )


def _check_clock(facts: Facts) -> Iterator[Judged]:
    apart = facts.clocks_apart_s
    if apart is None:
        return
    side = "ahead of" if apart > 0 else "behind"
    if abs(apart) > _CLOCKS_APART_S:
        what = f"the server's clock is {abs(apart):.1f} s {side} ours; locks do not depend on this (displayed times do)"
        yield "note", what, "keep both in step with NTP; the server's clock must never jump"
    else:
        yield "ok", f"the server's clock is {abs(apart) * 1000:.0f} ms {side} ours", None


def _check_latency(facts: Facts) -> Iterator[Judged]:
    if not facts.round_trips_ms:
        return
    middle = sorted(facts.round_trips_ms)[len(facts.round_trips_ms) // 2]
    what = f"a round trip takes {middle:.2g} ms" if middle < 1 else f"a round trip takes {middle:.1f} ms"
    yield ("warning", what, "use a ttl of at least 100 round trips") if middle > _SLOW_MS else ("ok", what, None)


def _check_limits(facts: Facts) -> Iterator[Judged]:
    limit, used = facts.number("maxclients"), facts.number("connected_clients")
    if limit and used is not None and used > limit * _TIGHT:
        what = f"{used} of {limit} connections are in use"
        yield "warning", what, "raise maxclients, or find out which clients use them"
    timeout = facts.setting("timeout")
    if timeout not in (None, "0"):
        yield "note", f"idle connections are closed after {clean(timeout)} s; clients reopen them automatically", None


#: In no order: findings are shown by weight.
CHECKS: dict[str, Callable[[Facts], Iterator[Judged]]] = {
    "role": _check_role,
    "version": _check_version,
    "memory": _check_eviction,
    "replicas": _check_replicas,
    "failover": _check_failover,
    "persistence": _check_persistence,
    "clock": _check_clock,
    "latency": _check_latency,
    "clients": _check_limits,
}


# ---- judging the whole place ----


def _check_trial(found: Survey) -> Iterator[Finding]:
    error = found.trial_error
    if error is None:
        if found.handoff_ms is not None and found.handoff_ms > _UNTOLD_MS and found.kind != "quorum":
            what = f"a release did not reach the waiter, which got the lock after {found.handoff_ms / 1000:.1f} s"
            yield Finding("lock", "warning", what, "find out which commands the server denies to scripts")
        elif found.handoff_ms is not None:
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
    yield Finding(
        "lock", "fatal", f"a lock could not be acquired and handed over: {_ADVICE.sub('', exits.sentence(error))}", do
    )


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
    return _by_weight(Finding(name, *judged) for name, check in CHECKS.items() for judged in check(facts))


def examine_all(found: Survey) -> list[Finding]:
    """All findings, heaviest first, one at least; what several servers share is said once."""
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
    weights = list(_WEIGHTS)
    return sorted(findings, key=lambda finding: weights.index(finding.weight))


# ---- showing ----


def _here(found: Survey) -> list[str]:
    """Tell what holdfast does there, in sentences."""
    if found.kind == "quorum":
        how = "Here: locks and elections, by votes of a majority; waiters ask again and again"
    elif found.trial_warning is not None:
        how = "Here: locks and elections, by plain commands; waiters ask again and again, in no order"
    elif found.kind == "cluster" or all(facts.tells for facts in found.servers):  # there, by sharded channels
        how = "Here: all primitives, by scripts; waiters are told in order of arrival, by messages"
    else:
        how = "Here: all primitives, by scripts; waiters ask in order of arrival, since no message reaches them"
    said = {str(each.service) for each in found.servers if each.service}
    if not said and any("unknown command" in each.lower() for facts in found.servers for each in facts.refusals):
        said = {"The server lacks CONFIG, as managed services do."}
    return [f"{how}.", *sorted(said)]


def _is_usable(findings: list[Finding]) -> bool:
    return findings[0].weight != "fatal"


def _verdict(findings: list[Finding]) -> str:
    return _WEIGHTS[findings[0].weight][2]


def _print(found: Survey, findings: list[Finding]) -> None:
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    lines = [f"{found.place} {_verdict(findings)}", ""]
    for finding in findings:
        mark, colour, _ = _WEIGHTS[finding.weight]
        if coloured and colour:
            mark = f"\x1b[{colour}m{mark}\x1b[0m"
        where = f"{', '.join(finding.servers)}: " if finding.servers else ""
        lines.append(f"{mark} {finding.check:<12} {clean(where + finding.what)}")
        if finding.do is not None:
            lines.append(f"   {'':<12} → {clean(finding.do)}")
    if _is_usable(findings):
        lines += ["", *map(clean, _here(found))]
    sys.stdout.write("\n".join(lines) + "\n")


def _print_json(found: Survey, findings: list[Finding]) -> None:
    usable = _is_usable(findings)
    emit_json(
        "doctor",
        {
            "usable": usable,
            "verdict": _verdict(findings),
            "place": found.place,
            "kind": found.kind,
            "servers": [
                {
                    "server": each.server,
                    "product": each.product and each.product[0],
                    "version": each.product and ".".join(map(str, each.product[1])),
                    "service": each.service and each.service.name,
                    "clocks_apart_s": each.clocks_apart_s,
                }
                for each in found.servers
            ],
            "handoff_ms": found.handoff_ms,
            "here": " ".join(_here(found)) if usable else None,
            "findings": [asdict(finding) for finding in findings],
        },
    )
