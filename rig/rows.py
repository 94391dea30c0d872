"""The table of faults: what each row of the catalogue is, what a client sees of it, and which tests show that.

The tests are found by their names: `test_46_…` is for row 46, `test_06_07_…` for both; and see `ALSO`.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PAGE", "ROWS", "Row", "Shown", "page", "shown_by_row"]

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "evidence" / "faults.md"


@dataclass(frozen=True, slots=True)
class Row:
    """One fault. `result`: what a user of the client sees; `limit`: what no client can do, and who can."""

    number: int
    fault: str
    result: str
    limit: str = ""


ROWS: tuple[Row, ...] = (
    Row(1, "a request is lost", "repeated with the same token; the caller gets its lease"),
    Row(2, "a reply is lost after the command was executed", "repeated; a client never waits for its own token"),
    Row(3, "the client library repeats commands by itself", "its retries are switched off on our connections"),
    Row(4, "the reply to a release is lost", "repeated; success, not an error; the next holder keeps the lock"),
    Row(
        5,
        "the reply to an extend is lost",
        "`OutcomeUnknown`; the lease is trusted for the shorter of both times; a repeat adds nothing",
    ),
    Row(
        6,
        "a request arrives twice, or late",
        "answered as the first time; refused once its token was given back",
    ),
    Row(
        7,
        "a stopped server later executes what a client has given up",
        "given back as soon as the server answers",
        "a client that has ended by then gives nothing back: the lease lasts for its ttl",
    ),
    Row(8, "high latency, jitter", "validity counts from before the request; a grant that comes too late is not used"),
    Row(9, "half-open connections", "given up after a third of the ttl; another connection is used"),
    Row(10, "connections are reset, killed, refused", "the client reconnects; leases go on, waiters keep their place"),
    Row(11, "low bandwidth", "as row 8"),
    Row(
        12,
        "a network partition between client and server",
        "the holder is told at its deadline; a waiter returns within its timeout",
    ),
    Row(
        13,
        "the holder is paused",
        "its first check of the lease says that it is lost; a late release removes nothing",
        "a write without a check can only be refused by the resource, with fencing tokens",
    ),
    Row(14, "the machine is suspended", "the clock of leases keeps running (Linux)", "macOS offers no such clock"),
    Row(
        15,
        "a blocked event loop, a held GIL",
        "a blocked loop keeps its leases; with a held GIL none is renewed, and the first check says that it is lost",
    ),
    Row(
        16,
        "a bug in the engine's thread",
        "the exception is shown, and the thread goes on; a renewal that failed is repeated",
    ),
    Row(17, "the worker hangs and its lease is renewed indefinitely", "`max_hold` ends it"),
    Row(
        18,
        "the caller is cancelled in the middle of an acquire",
        "what was granted is given back, without waiting for its ttl",
    ),
    Row(19, "the reply to a cancelled caller arrives later", "discarded; every reply is matched to its own request"),
    Row(20, "fork", "the child holds nothing and starts afresh; the parent's leases go on"),
    Row(21, "the holder dies", "the next waiter gets the lock after the ttl, with a greater fencing token"),
    Row(
        22,
        "a failover loses acknowledged writes",
        "`sync_replicas` gives back what too few replicas have; fencing tokens still grow",
        "without `sync_replicas`, two holders are possible after a failover: use fencing tokens",
    ),
    Row(
        23,
        "not all replicas have the write, and one without it is promoted",
        '`sync_replicas="all"` counts only what all replicas have',
        "any smaller number leaves the gap open, as the documentation of the option says",
    ),
    Row(24, "too few replicas acknowledge, but the write stays", "given back immediately; `InsufficientReplicas`"),
    Row(
        25,
        "a former master keeps running",
        "with `sync_replicas`, nothing is acquired or renewed there",
        "the server's own protection is `min-replicas-to-write 1`",
    ),
    Row(26, "the server has become read-only", "waited out within the timeout; leases are SUSPECT meanwhile"),
    Row(27, "too few replicas for `min-replicas-to-write`", "waited out within the timeout, then `ServerError`"),
    Row(28, "the server is loading its data", "waited out within the timeout"),
    Row(29, "the script cache is flushed", "scripts are loaded again, anywhere and at any time"),
    Row(30, "the memory limit is reached", "acquire reports it immediately; release, renewal and handoff work"),
    Row(31, "the lock is evicted", "detected by the next renewal", "use `noeviction`; `holdfast doctor` checks it"),
    Row(32, "a script blocks the server", "waited out within the timeout"),
    Row(
        33,
        "a script that cannot be killed blocks the server",
        "a clear error within the timeout; the holder is told at its deadline",
    ),
    Row(34, "the server pauses its clients", "waited out; a reply that comes too late is not a grant"),
    Row(35, "the connection limit is reached", "a clear error, or waited out; renewals keep their connection"),
    Row(36, "the slot has a new owner after a failover", "followed"),
    Row(37, "the slot is being moved", "followed; all keys of a lock share a slot"),
    Row(38, "the Cluster is down", "waited out within the timeout"),
    Row(39, "keys in different slots", "cannot happen: all keys of a lock have the same hash tag"),
    Row(40, "a replica answers with stale data", "replicas are never asked"),
    Row(
        41,
        "the server's clock jumps ahead",
        "detected by the next renewal; fencing tokens grow",
        "until then two holders are possible: fencing tokens tell them apart",
    ),
    Row(42, "the server's clock is set back", "the next renewal corrects the ttl", "a dead holder's lock lasts longer"),
    Row(43, "the server's clock jumps while clients wait", "waiting does not depend on the server's clock"),
    Row(44, "the client's wall clock jumps", "no effect"),
    Row(45, "clocks drift apart", "every validity allows for 1 % and 2 ms"),
    Row(
        46,
        "the server restarts without its data",
        "detected by the next renewal; waiters queue again; fencing tokens grow",
        "until then two holders are possible; if the clock is set back as well, fencing tokens may repeat",
    ),
    Row(
        47,
        "a power failure loses the last second of the log",
        "as row 46",
        "the server's answer is `appendfsync always`",
    ),
    Row(
        48,
        "a member of a quorum restarts immediately, without its data",
        "it does not vote until the longest ttl has passed",
    ),
    Row(
        49,
        "only some members of a quorum granted or released",
        "given back on all of them; a majority that comes too late does not count",
    ),
    Row(50, "a wake-up is lost", "the waiter checks by itself when the holder's ttl ends"),
    Row(51, "keyspace notifications do not arrive", "not used"),
    Row(52, "the waiter at the head of the queue dies", "skipped by the handoff"),
    Row(53, "many waiters", "woken one by one, first come first served; three commands per handoff"),
    Row(
        54,
        "a reader dies; writers could starve",
        "each reader has its own ttl; a waiting writer goes before new readers",
    ),
    Row(
        55,
        "FLUSHALL, or a key deleted by hand",
        "detected by the next renewal; fencing tokens grow",
        "until then, what a client hands on or takes again (`cache_for`) has an older token than a new grant",
    ),
    # Faults of the process.
    Row(
        56,
        "an exception at any bytecode: Ctrl-C, a signal handler that raises",
        "what was granted is released, or given back in the background",
        "between the return of `acquire()` and the assignment, Python itself drops the lease: use `with`",
    ),
    Row(57, "a signal handler releases, closes, cancels, acquires", "works, whatever it interrupted"),
    Row(58, "a constant stream of signals", "waits end at their deadlines, whether the server is healthy or not"),
    Row(59, "the process is stopped and resumed repeatedly", "waits go on; for leases, see row 13"),
    Row(60, "fork while threads are busy", "the child holds nothing, knows it, and can acquire; see row 20"),
    Row(
        61,
        "finalizers run at any moment, in any thread",
        "they take no lock, send nothing, and do not wait; a dropped lease is no longer renewed",
    ),
    Row(62, "no thread can be started", "leases are still renewed, and losses reported; starting is retried"),
    Row(
        63,
        "no file descriptor is left",
        "existing connections keep working; `ServerUnreachable` where a new one is needed",
    ),
    Row(
        64,
        "a thread ends before its lease, and another one gets its ident",
        "the new thread does not own the lease",
    ),
    Row(65, "several threads or tasks use one `Election`", "each leads, loses and resigns for itself"),
    Row(
        66,
        "a client is closed while others hold and wait",
        'holders are told (reason "closed"), waiters get `ClientClosed`',
    ),
    Row(
        67,
        "the process ends: return, `sys.exit`, an exception, a signal, daemon threads",
        "what it held is released immediately, and its waiters leave the queues",
        "after SIGKILL, `os._exit` and an unhandled SIGTERM, Python runs no code: as row 21",
    ),
    Row(
        68,
        "threads are greenlets (gevent, eventlet)",
        "works if patched first; refused otherwise",
    ),
    Row(
        69,
        "a request is executed after later ones of its lease",
        "only `extend` shortens a lease, in the order of the calls",
    ),
    Row(70, "threads of one client race at any line of it", "exactly one of them ends a lease; no wake-up is missed"),
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
    "test_another_thread_cannot_use_the_condition_of_an_ended_thread": (64,),
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
    "test_replies_byte_by_byte_do_not_prolong_a_timeout": (8,),
    "test_a_server_that_reads_nothing_does_not_hold_up_a_large_request": (8,),
    "test_what_a_kill_leaves_ends_with_its_ttl": (21,),
    "test_what_a_killed_process_held_is_free_in_time": (21,),
    "test_a_wake_up_that_gets_lost_costs_a_second": (50,),
    "test_who_was_killed_while_waiting_holds_up_nobody": (52,),
    "test_an_exception_at_some_bytecodes_leaves_nothing": (56,),
    "test_an_exception_at_every_bytecode_leaves_nothing": (56,),
    "test_an_exception_at_the_ends_of_a_block_leaves_nothing": (56,),
    "test_signals_at_random_moments_leave_nothing": (56,),
    "test_ctrl_c_leaves_nothing": (56,),
    "test_an_exception_between_a_grant_and_its_caller_leaves_nothing": (56,),
    "test_calling_it_again_finishes_it": (56,),
    "test_no_traceback": (56,),
    "test_handlers_at_random_moments": (57,),
    "test_handlers_at_more_random_moments": (57,),
    "test_closed_by_a_signal_handler_while_waiting": (57,),
    "test_a_forked_child_has_nothing_of_busy_threads": (60,),
    "test_a_block_that_is_left_in_the_child_raises_there_only": (60,),
    "test_a_forked_child_has_nothing_of_an_event_loop": (60,),
    "test_multiprocessing_and_preexec_amid_busy_threads": (60,),
    "test_clients_at_a_server_that_hangs_are_collected_at_once": (61,),
    "test_a_client_is_collected_while_its_own_lock_is_held": (61,),
    "test_dropping_many_leases_is_linear_and_delays_no_renewal": (61,),
    "test_the_collector_at_every_allocation": (61,),
    "test_an_event_loop_is_not_held_up_by_a_client_of_another_one": (61,),
    "test_an_acquire_without_threads_fails_and_gives_back": (62,),
    "test_an_acquire_works_when_threads_are_back": (62,),
    "test_losses_are_told_without_new_threads": (62,),
    "test_coroutines_run_by_hand_own_nothing": (64,),
    "test_who_has_lost_the_lead_sees_and_ends_only_that": (65,),
    "test_one_waits_to_lead_while_another_does": (65,),
    "test_what_is_held_is_lost_and_told_and_free": (66,),
    "test_a_block_ends_with_the_loss": (66,),
    "test_who_waits_is_told_and_gone": (66,),
    "test_those_who_hold_are_told_before_others_get_in": (66,),
    "test_closed_by_two_at_once": (66,),
    "test_nothing_can_be_asked_of_a_closed_client": (66,),
    "test_the_server_is_gone": (66,),
    "test_eight_clients_end_side_by_side_at_a_server_that_hangs": (66,),
    "test_a_clean_exit_leaves_nothing": (67,),
    "test_what_is_held_at_the_interpreters_end_is_released": (67,),
    "test_a_process_that_ends_releases": (67,),
    "test_a_quorum_of_greenlets": (68,),
}

_TORTURE = "`make torture`, which injects it and fails on a violation ([torture](torture.md#faults-of-the-process))"

#: What covers a row that has no test against real servers.
ELSEWHERE: dict[int, str] = {
    22: "simulation (replication with lag and failover)",
    23: "simulation (replication with lag and failover)",
    24: "simulation",
    25: "simulation",
    36: "contract tests on a Cluster",
    37: "contract tests on a Cluster",
    38: "by the list of transient errors, as rows 26 and 28",
    40: "by construction: no code path asks a replica",
    45: "simulation (clocks of different rates)",
    48: "simulation",
    49: "simulation, contract tests on a quorum",
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
    apis: str
    servers: str


@functools.cache
@functools.cache
def shown_by_row() -> dict[int, list[Shown]]:
    """Find all tests with row numbers in their names."""
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
    chosen = [name for name in ("threads", "asyncio") if "'api" in decorators and f"'{name}'" in decorators]
    if chosen:
        apis = ", ".join(chosen)
    elif asked_for & {"api", "near", "far", "locks"}:
        apis = "threads, asyncio"
    else:
        apis = "asyncio" if "asyncio" in source else "threads"
    servers = ""
    if "EVERY_SERVER" in decorators or asked_for & {"server", "url", "server_kind"}:
        servers = "Redis 6.2, Redis 7.0, Valkey 9.1"
    elif "OLDEST_AND_NEWEST" in decorators:
        servers = "Redis 6.2, Valkey 9.1"
    elif "redis70" in decorators:
        servers = "Redis 7.0, Valkey 9.1"
    return Shown(function.name, path.relative_to(ROOT).as_posix(), apis, servers)


def page() -> str:
    """docs/evidence/faults.md."""
    tests = shown_by_row()
    lines = [
        "# Faults, and what users see of them",
        "",
        "<!-- Made by `python -m rig rows`. The texts are in rig/rows.py, the tests are found by their names. -->",
        "",
        "Every way in which a lock on a server is known to fail, what users of holdfast see of it, and the tests that",
        "inject the fault and check the result. The faults are real, on real servers: processes are killed and",
        "stopped, a proxy on loopback drops, delays and resets, clocks are shifted under the process. All tests are",
        "part of `make test ALL=1`, nearly all of `make test`; `-k test_46` runs those of row 46. `make torture` mixes",
        "the faults at random: see [torture](torture.md).",
        "",
        "The server is Valkey 9.1 unless others are named. *The limit*: what no client can make safe, and what can.",
        "",
        "| # | fault | result | shown by |",
        "|-|-|-|-|",
    ]
    for row in ROWS:
        result = row.result + (f". *The limit*: {row.limit}" if row.limit else "")
        shown = "<br>".join([*map(_shown, tests.get(row.number, [])), *filter(None, [ELSEWHERE.get(row.number)])])
        lines.append(f"| {row.number} | {row.fault} | {result} | {shown} |")
    lines += [
        "",
        "## Other errors of the server",
        "",
        "| error | result | shown by |",
        "|-|-|-|",
        "| no password, or a wrong one | `ServerError` immediately (NOAUTH, WRONGPASS) | `test_passwords` |",
        "| a user who may not run scripts | locks fall back to plain commands, with a warning that names the rights; "
        "`ScriptRefused` for everything else | "
        "`test_a_user_without_scripts_is_told_what_is_missing` |",
        "| a user who may not access these keys | `ServerError` immediately (NOPERM) | "
        "`test_a_user_with_other_keys_is_told` |",
        "| a certificate that is not trusted | `ServerUnreachable`, with the TLS error | `test_tls` |",
        "| a Unix socket that does not exist | `ServerUnreachable`, with its path | `test_unix_sockets` |",
        "",
        "## The rights that a user of the server needs",
        "",
        "For locks, with the default namespace. The test `test_a_user_with_just_the_needed_rights` uses exactly this",
        "list:",
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
    extra = "; ".join(filter(None, (test.apis, test.servers)))
    return f"[`{test.name}`](../../{test.path}) ({extra})"


def _rights() -> list[str]:
    """LOCK_COMMANDS of the test, in lines."""
    text = (ROOT / "tests" / "faults" / "test_server.py").read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LOCK_COMMANDS":
            words = str(ast.literal_eval(node.value)).split()
            return [" ".join(words[at : at + 8]) for at in range(0, len(words), 8)]
    raise LookupError("LOCK_COMMANDS is not in the tests any more")
