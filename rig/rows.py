"""The table of faults: what each row of the catalogue is, what a client sees of it, and which tests show that.

The tests are found by their names: `test_46_…` is for row 46, `test_06_07_…` for both; and see `ALSO`.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PAGE", "ROWS", "Row", "Shown", "page", "shown_by_row"]

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "faults.md"


@dataclass(frozen=True, slots=True)
class Row:
    """One fault. `result`: what a user of the client sees; `limit`: what no client can do, and who can."""

    number: int
    fault: str
    result: str
    limit: str = ""


ROWS: tuple[Row, ...] = (
    Row(1, "a request is dropped", "repeated with the same token; the caller gets its lease"),
    Row(2, "a reply is lost, the request was carried out", "repeated; never takes its own token for somebody else's"),
    Row(3, "the client library repeats by itself", "its retries are switched off on our connections"),
    Row(4, "the reply to a release is lost", "repeated; done, not an error; the next holder keeps the lock"),
    Row(
        5,
        "the reply to an extend is lost",
        "`OutcomeUnknown`; trusted for the shorter of both times; a repeat adds nothing",
    ),
    Row(6, "a request arrives twice, or late", "answered as the first time; refused once its token was given back"),
    Row(
        7,
        "a server that was stopped carries out what a client has given up",
        "given back as soon as the server answers",
        "a client that has ended by then gives nothing back: its lease lasts for its ttl",
    ),
    Row(8, "a slow or uneven wire", "validity counts from before the request; a late grant is none"),
    Row(9, "half-open connections", "given up after a third of the ttl; another connection is used"),
    Row(10, "connections are reset, killed, refused", "connects anew; leases live on, waiters keep their place"),
    Row(11, "a thin wire", "as row 8"),
    Row(12, "client and server are parted", "the holder is told at its deadline; the waiter comes back in its time"),
    Row(
        13,
        "the holder is paused",
        "the first look at the lease says that it is lost; a late release takes nothing",
        "what it writes without looking only the resource can refuse, by fencing token",
    ),
    Row(14, "the machine sleeps", "the clock of leases goes on in sleep (Linux)", "macOS has no such clock for us"),
    Row(15, "a blocked event loop, a held interpreter lock", "not renewed; told with the first look at the lease"),
    Row(16, "the watchdog dies", "every lease is lost at once, and told so; the next one gets a new watchdog"),
    Row(17, "the worker hangs and its lease is renewed for ever", "`max_hold` ends it"),
    Row(18, "the caller is cancelled in the middle of acquiring", "what was granted is given back, before its ttl"),
    Row(19, "a cancelled caller's reply comes later", "belongs to nobody; every answer meets its own question"),
    Row(20, "fork", "the child holds nothing and starts afresh; the parent's leases go on"),
    Row(21, "the holder dies", "the next one gets the lock after the ttl, with a greater fencing token"),
    Row(
        22,
        "a failover loses writes that were acknowledged",
        "`sync_replicas` gives back what too few replicas have; fencing tokens grow all the same",
        "without `sync_replicas` two may hold it after a failover: use fencing tokens",
    ),
    Row(
        23,
        "fewer replicas than all have the write, and one without it is promoted",
        '`sync_replicas="all"` counts only what all have',
        "any smaller number leaves the gap open: said where the option is chosen",
    ),
    Row(24, "too few replicas acknowledge, the write stays", "given back at once; `InsufficientReplicas`"),
    Row(
        25,
        "a former master goes on",
        "with `sync_replicas` neither acquired nor renewed there",
        "the server's own guard is `min-replicas-to-write 1`",
    ),
    Row(26, "the server has become read-only", "waited out inside the timeout; leases are SUSPECT meanwhile"),
    Row(27, "too few replicas for `min-replicas-to-write`", "waited out inside the timeout, then `ServerError`"),
    Row(28, "the server is loading its data", "waited out inside the timeout"),
    Row(29, "scripts are forgotten", "loaded again, anywhere and at any time"),
    Row(30, "the memory limit is reached", "acquire says so at once; release, renewal and handoff work"),
    Row(31, "the lock is evicted", "told by the next renewal", "choose `noeviction`: `holdfast doctor` says so"),
    Row(32, "a script blocks the server", "waited out inside the timeout"),
    Row(33, "a script that cannot be killed", "a clear error inside the timeout; the holder is told at its deadline"),
    Row(34, "the server pauses its clients", "waited out; what comes too late is no grant"),
    Row(35, "no more connections are let in", "a clear error, or waited out; renewals keep their connection"),
    Row(36, "the slot has another owner after a failover", "followed"),
    Row(37, "the slot is moving", "followed; all keys of a lock share a slot"),
    Row(38, "the Cluster is down", "waited out inside the timeout"),
    Row(39, "keys in different slots", "cannot happen: one hash tag for all keys of a lock"),
    Row(40, "a replica answers with old data", "replicas are never asked"),
    Row(
        41,
        "the server's clock jumps ahead",
        "told by the next renewal; fencing tokens grow",
        "until then two may hold it: fencing tokens tell them apart",
    ),
    Row(
        42, "the server's clock is set back", "the next renewal sets the ttl right", "a dead holder's lock lasts longer"
    ),
    Row(43, "the server's clock jumps while others wait", "no waiting at the server depends on it"),
    Row(44, "the client's wall clock jumps", "nothing happens"),
    Row(45, "clocks drift apart", "1 % and 2 ms are allowed for in every validity"),
    Row(
        46,
        "the server restarts without its data",
        "told by the next renewal; waiters queue again; fencing tokens grow",
        "until then two may hold it; with a clock set back at once, fencing tokens may repeat",
    ),
    Row(
        47,
        "power fails and the last second of the log is lost",
        "as row 46",
        "`appendfsync always` is the server's answer",
    ),
    Row(
        48, "a member of a quorum restarts at once, without its data", "does not vote until the longest ttl has passed"
    ),
    Row(49, "some members of a quorum granted or released", "all are given back; a late majority is none"),
    Row(50, "a wake-up is lost", "the waiter looks for itself at the end of the holder's time"),
    Row(51, "expiry is not announced", "nothing depends on events of the server"),
    Row(52, "the waiter at the head dies", "skipped by the handoff"),
    Row(53, "many wait", "woken one by one, first come first served; three commands a handoff"),
    Row(54, "a reader dies; writers starve", "each reader has its own ttl; a waiting writer goes before new readers"),
    Row(55, "FLUSHALL, or a key removed by hand", "told by the next renewal; fencing tokens grow"),
    # Faults of the process.
    Row(
        56,
        "an exception at any bytecode: Ctrl-C, a signal's handler that raises",
        "what was granted is released, or given back in the background",
        "between the return of `acquire()` and the assignment Python itself drops the lease: use `with`",
    ),
    Row(57, "a signal's handler releases, closes, cancels, acquires", "done, whatever it has interrupted"),
    Row(58, "a signal comes all the time", "waits end at their deadlines, be the server healthy or not"),
    Row(59, "the process is stopped and goes on, again and again", "waits go on; a lease is looked at, as in row 13"),
    Row(60, "fork amid busy threads", "the child holds nothing and knows it, and can acquire; as row 20"),
    Row(
        61,
        "the collector runs finalizers at any moment, in any thread",
        "they take no lock, send nothing, wait for nothing; a dropped lease is not renewed any more",
    ),
    Row(62, "no thread can be started", "leases are renewed and told of their loss; tried again"),
    Row(
        63, "no descriptor is left", "what is connected goes on; `ServerUnreachable` where a connection would be needed"
    ),
    Row(
        64,
        "a thread ends before its lease, and another one gets its number",
        "the lease is nobody's but the first one's",
    ),
    Row(65, "one `Election` is used by several threads or tasks", "each leads, loses and resigns for itself"),
    Row(66, "a client is closed while others hold and wait", 'holders are told ("closed"), waiters get `ClientClosed`'),
    Row(
        67,
        "the process ends: return, `sys.exit`, an exception, a signal, daemon threads",
        "what it held is free at once, what waited is not queued any more",
        "after SIGKILL, `os._exit` and an unhandled SIGTERM Python runs nothing: as row 21",
    ),
    Row(68, "threads are greenlets (gevent, eventlet)", "works when they were patched first, is refused otherwise"),
    Row(69, "a request is carried out after later ones of its lease", "only `extend` shortens, in the order of asking"),
    Row(70, "threads of one client race at any line of it", "one ends a lease; nobody sleeps through what is for him"),
)

#: Tests of rows that do not have the number in their names.
ALSO: dict[str, tuple[int, ...]] = {
    "test_what_is_held_is_on_the_replicas": (22,),
    "test_sentinel_names_another_master": (22, 26),
    "test_one_of_two_replicas_is_not_enough": (23,),
    "test_a_replica_that_was_cut_off_takes_over": (22, 23, 24),
    "test_the_old_master_comes_back": (25,),
    "test_a_replica_that_is_gone_is_still_counted": (23,),
    "test_too_few_are_reported_and_nothing_is_left": (24,),
    "test_a_lease_that_the_replicas_do_not_follow_is_lost": (25,),
    "test_a_replica_takes_over_the_slot": (36,),
    "test_a_slot_moves_while_held_and_waited_for": (37,),
    "test_a_cluster_that_is_down": (38,),
    "test_a_member_that_was_restarted_does_not_vote": (48,),
    "test_a_minority_may_fail": (49,),
    "test_a_majority_may_not": (49,),
    "test_a_quorums_acquire_without_a_reply": (2, 49),
    "test_a_quorums_renewal_without_a_reply": (2, 49),
    "test_a_quorums_release_without_a_reply": (4, 49),
}

#: Those of faults of the process, whose names say what they show.
ALSO |= {
    "test_a_handler_may_use_the_library_at_a_sample_of_bytecodes": (57,),
    "test_a_handler_may_use_the_library_at_more_bytecodes": (57,),
    "test_short_waits_end_under_a_periodic_signal": (58,),
    "test_waiting_for_a_lock_ends_under_a_periodic_signal": (58,),
    "test_a_periodic_signal_does_not_prolong_a_wait_for_a_server_that_hangs": (58,),
    "test_a_wait_goes_on_after_a_stop": (59,),
    "test_what_is_connected_goes_on_without_descriptors": (63,),
    "test_a_connection_that_cannot_be_made_says_so": (63,),
    "test_a_thread_with_the_number_of_an_ended_one_does_not_own_its_lease": (64,),
    "test_a_stranger_cannot_use_the_condition_of_an_ended_thread": (64,),
    "test_a_reader_with_the_number_of_an_ended_one_reads": (64,),
    "test_tasks_that_get_the_address_of_an_ended_one": (64,),
    "test_the_end_of_a_lost_lead_leaves_the_next_one_alone": (65,),
    "test_the_end_of_a_lost_lead_leaves_the_next_task_alone": (65,),
    "test_one_greenlet_is_inside": (68,),
    "test_a_client_in_use_before_the_patch_is_refused": (68,),
    "test_half_a_patch_is_refused": (68,),
    "test_what_threads_can_greenlets_can": (68,),
    "test_a_late_renewal_does_not_shorten": (69,),
    "test_a_late_first_request_does_not_shorten": (69,),
    "test_a_late_extension_does_not_shorten_what_a_later_one_has_set": (69,),
    "test_two_extensions_at_once_leave_what_the_client_trusts": (69,),
    "test_schedules": (60, 70),
    "test_many_schedules": (60, 70),
}

_TORTURE = "`make torture`, which fails for it ([torture](torture.md#faults-of-the-process))"

#: Where a row without a test against real servers is answered for.
ELSEWHERE: dict[int, str] = {
    22: "simulation (replication with lag and failover)",
    23: "simulation (replication with lag and failover)",
    24: "simulation",
    25: "simulation",
    36: "contract of the Cluster",
    37: "contract of the Cluster",
    38: "by the list of errors that pass by themselves, as rows 26 and 28",
    40: "by construction: no code path asks a replica",
    45: "simulation (clocks of different rates)",
    48: "simulation",
    49: "simulation, contract of the quorum",
    56: _TORTURE,
    61: _TORTURE,
    62: _TORTURE,
    66: _TORTURE,
    67: _TORTURE,
}


@dataclass(frozen=True, slots=True)
class Shown:
    """A test: its name without the numbers, where it is, and for whom it runs."""

    name: str
    path: str
    faces: str
    servers: str


def shown_by_row() -> dict[int, list[Shown]]:
    """All tests with row numbers in their names."""
    found: dict[int, list[Shown]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for function in _functions(ast.parse(text)):
            named = re.match(r"test_((?:\d\d_)+)", function.name)
            numbers = [int(part) for part in named[1].rstrip("_").split("_")] if named is not None else []
            numbers += ALSO.get(function.name, ())
            if numbers:
                test = _test(function, path, ast.get_source_segment(text, function) or "")
                for number in numbers:
                    found[number].append(test)
    return found


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _test(function: ast.FunctionDef | ast.AsyncFunctionDef, path: Path, source: str) -> Shown:
    asked_for = {argument.arg for argument in function.args.args}
    decorators = " ".join(ast.unparse(each) for each in function.decorator_list)
    chosen = [name for name in ("threads", "asyncio") if "'face" in decorators and f"'{name}'" in decorators]
    if chosen:
        faces = ", ".join(chosen)
    elif asked_for & {"face", "near", "far", "locks"}:
        faces = "threads, asyncio"
    else:
        faces = "asyncio" if "asyncio" in source else "threads"
    servers = ""
    if "EVERY_SERVER" in decorators or asked_for & {"server", "url", "server_kind"}:
        servers = "Redis 6.2, Redis 7.0, Valkey 9.1"
    elif "OLDEST_AND_NEWEST" in decorators:
        servers = "Redis 6.2, Valkey 9.1"
    elif "redis70" in decorators:
        servers = "Redis 7.0, Valkey 9.1"
    return Shown(function.name, path.relative_to(ROOT).as_posix(), faces, servers)


def page() -> str:
    """docs/faults.md."""
    tests = shown_by_row()
    lines = [
        "# Faults, and what a client makes of them",
        "",
        "<!-- Made by `python -m rig rows`. The texts are in rig/rows.py, the tests are found by their names. -->",
        "",
        "Every way in which a lock on a server is known to go wrong, what users of holdfast see of it, and the tests",
        "that inject it and look. They are real faults on real servers: processes are killed and stopped, a proxy on",
        "loopback drops, delays and resets, clocks are shifted under the process. All of them are part of `make test`;",
        "`-k test_46` runs those of one row. `make torture` mixes them at random, see [torture](torture.md).",
        "",
        "Servers are Valkey 9.1 where nothing else is said. *The limit*: what no client can make safe, and what can.",
        "",
        "| # | fault | result | shown by |",
        "|-|-|-|-|",
    ]
    for row in ROWS:
        result = row.result + (f". *The limit*: {row.limit}" if row.limit else "")
        shown = "<br>".join(_shown(test) for test in tests.get(row.number, [])) or ELSEWHERE.get(row.number, "")
        lines.append(f"| {row.number} | {row.fault} | {result} | {shown} |")
    lines += [
        "",
        "## Troubles of the server that are not in the catalogue",
        "",
        "| trouble | result | shown by |",
        "|-|-|-|",
        "| no password, or a wrong one | `ServerError` at once (NOAUTH, WRONGPASS) | `test_passwords` |",
        "| a user without the right to run scripts | a lock of plain commands, with a warning that names the rights; "
        "`ScriptRefused` for everything else | "
        "`test_a_user_without_scripts_is_told_what_is_missing` |",
        "| a user without these keys | `ServerError` at once (NOPERM) | `test_a_user_with_other_keys_is_told` |",
        "| a certificate that is not trusted | `ServerUnreachable`, with what TLS said | `test_tls` |",
        "| a socket that is not there | `ServerUnreachable`, with its path | `test_unix_sockets` |",
        "",
        "## The rights that a user of the server needs",
        "",
        "For locks, with the default namespace; this very list is what the test "
        "`test_a_user_with_just_the_needed_rights` works with:",
        "",
        "```",
        "ACL SETUSER locker on >PASSWORD resetkeys resetchannels -@all",
        *(f"  {line}" for line in _rights()),
        "  ~holdfast:* &holdfast:inbox:*",
        "```",
        "",
    ]
    return "\n".join(lines)


def _shown(test: Shown) -> str:
    extra = "; ".join(filter(None, (test.faces, test.servers)))
    return f"[`{test.name}`](../{test.path}) ({extra})"


def _rights() -> list[str]:
    """LOCK_COMMANDS of the test, in lines."""
    text = (ROOT / "tests" / "faults" / "test_server.py").read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LOCK_COMMANDS":
            words = str(ast.literal_eval(node.value)).split()
            return [" ".join(words[at : at + 8]) for at in range(0, len(words), 8)]
    raise LookupError("LOCK_COMMANDS is not in the tests any more")
