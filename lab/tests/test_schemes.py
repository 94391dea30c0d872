"""The verdicts that theory demands, from real runs on real servers.

Every play waits for facts (who has entered, what the server says of its keys), so that a slow machine plays the
same thing later. Each test plays its cells side by side and asserts what the checker found. What `test_oracle.py` plays
as well is for the most part in the thorough tier.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from holdfast_lab import runs
from holdfast_lab.bodies import LockFailed, ProcessBody
from holdfast_lab.faults import AFTER_EXEC, EARLY, FAULTS
from holdfast_lab.handles import ENTRIES
from holdfast_lab.runs import Cell
from holdfast_lab.servers import no_compiler
from holdfast_lab.stage import Stage

#: Faults of one server that this machine can play.
PLAYED = [fault.name for fault in FAULTS.values() if fault.on != "quorum" and fault.missing() is None]

pytestmark = pytest.mark.timeout(300)  # many processes on a machine that may be busy


def play(**wanted: str) -> dict[str, Cell]:
    """``scheme_with_underscores="fault fault …"``: the cells, by "scheme fault"."""
    chosen = [
        (runs.find_entry(scheme.replace("_", "-")), runs.find_fault(fault))
        for scheme, faults in wanted.items()
        for fault in faults.split()
    ]
    cells = runs.play_many(chosen, jobs=4)
    return {f"{cell.scheme} {cell.fault}": cell for cell in cells}


def said(cell: Cell) -> str:
    """For the message of an assertion: everything the checker found."""
    lines = [f"{cell.scheme} under {cell.fault}: {cell.verdict} {cell.not_run}"]
    lines += [f"  {run.variant}: {v.kind}: {v.sentence}" for run in cell.runs for v in run.verdicts]
    return "\n".join(lines)


def check(cells: dict[str, Cell], name: str, *kinds: str) -> None:
    """Exactly these kinds of findings; none named: at least one of whatever kind."""
    cell = cells[name]
    assert cell.runs, said(cell)
    if kinds:
        assert set(cell.kinds) == set(kinds), said(cell)
    else:
        assert not cell.is_safe, said(cell)


def test_locks_without_a_time_limit_get_stuck() -> None:
    cells = play(setnx="none crash-holding", setnx_expire="crash-in-acquire", lua_setnx_expire="crash-in-acquire")
    check(cells, "setnx none", "safe")
    check(cells, "setnx crash-holding", "blocked forever")
    # Between its two commands, and only there.
    between = cells["setnx-expire crash-in-acquire"]
    assert [run.verdict for run in between.runs] == ["blocked forever", "safe"], said(between)
    check(cells, "lua-setnx-expire crash-in-acquire", "safe")


def test_deleting_without_looking_releases_foreign_locks() -> None:
    cells = play(set_nx_ex="long-section late-release none", incr="late-release", set_nx_token="late-release none")
    assert "foreign release" in cells["set-nx-ex long-section"].kinds, said(cells["set-nx-ex long-section"])
    assert "foreign release" in cells["set-nx-ex late-release"].kinds, said(cells["set-nx-ex late-release"])
    assert "foreign release" in cells["incr late-release"].kinds, said(cells["incr late-release"])
    for name in ("set-nx-ex none", "set-nx-token late-release", "set-nx-token none"):
        check(cells, name, "safe")


def test_comparing_in_the_client_is_too_late() -> None:
    cells = play(set_nx_token_get_del="pause-in-release late-release", set_nx_token="pause-in-release")
    paused = cells["set-nx-token-get-del pause-in-release"]
    assert "foreign release" in paused.kinds, said(paused)
    check(cells, "set-nx-token-get-del late-release", "safe")
    check(cells, "set-nx-token pause-in-release", "safe")


def test_clients_clocks() -> None:
    cells = play(setnx_timestamp="client-clocks none", setnx_timestamp_inverted="none", set_nx_token="client-clocks")
    check(cells, "setnx-timestamp none", "safe")
    check(cells, "set-nx-token client-clocks", "safe")
    for name in ("setnx-timestamp client-clocks", "setnx-timestamp-inverted none"):
        assert "exclusion violated" in cells[name].kinds, said(cells[name])


def test_the_canonical_lock_has_its_limits() -> None:
    cells = play(set_nx_token="failover long-section pause-holding server-restarted crash-holding")
    for fault in ("failover", "long-section", "pause-holding", "server-restarted"):
        cell = cells[f"set-nx-token {fault}"]
        assert cell.verdict == "exclusion violated" and "lost update" in cell.kinds, said(cell)
    check(cells, "set-nx-token crash-holding", "safe")


@pytest.mark.skipif(no_compiler() is not None, reason=str(no_compiler()))
def test_a_server_s_clock_that_jumps() -> None:
    cells = play(set_nx_token="server-clock", setnx_timestamp="server-clock", setnx="server-clock")
    assert cells["set-nx-token server-clock"].verdict == "exclusion violated"
    check(cells, "setnx server-clock", "safe")  # nothing there expires
    check(cells, "setnx-timestamp server-clock", "safe")  # nor asks the server for the time


@pytest.mark.thorough
def test_redlock() -> None:
    cells = play(redlock="none two-stopped most-stopped one-slow one-restarted late-release")
    for fault in ("none", "two-stopped", "one-slow", "late-release"):
        check(cells, f"redlock {fault}", "safe")
    during = cells["redlock two-stopped"].runs[0].history
    healed = next(during.of("healed")).at_ns
    assert any(event.at_ns < healed for event in during.of("acquired")), "safe, but was it available?"
    check(cells, "redlock most-stopped", "unavailable")
    assert cells["redlock one-restarted"].verdict == "exclusion violated", said(cells["redlock one-restarted"])


def test_the_naive_redlock_deletes_the_locks_of_others() -> None:
    cells = play(redlock_naive="none")
    naive = cells["redlock-naive none"]
    assert "foreign release" in naive.kinds and naive.verdict == "exclusion violated", said(naive)


@pytest.mark.thorough
def test_watch_loses_an_update_only_with_a_server_that_loses_what_it_acknowledged() -> None:
    cells = play(watch=" ".join(name for name in PLAYED if FAULTS[name].applies_to(ENTRIES["watch"])))
    for cell in cells.values():
        assert cell.runs, said(cell)
        loses = cell.fault in ("server-restarted", "failover")
        found = [run.variant for run in cell.runs if run.verdict == "lost update"]
        assert found == ([AFTER_EXEC] if loses else []), said(cell)
    conflicts = [event for cell in cells.values() for run in cell.runs for event in run.history.of("conflict")]
    assert conflicts, "nothing was ever contended: this proves nothing"


#: No client can be safe here (docs/ladder.md): the server itself grants again what it has granted.
_BEYOND_ANY_CLIENT = ("failover", "server-restarted", "server-clock")


@pytest.mark.thorough
@pytest.mark.parametrize("part", [0, 1, 2], ids=["one third", "another", "the last"])
def test_holdfast_is_safe_or_says_lost_before_anybody_else_enters(part: int) -> None:
    played = [name for name in PLAYED if FAULTS[name].applies_to(ENTRIES["holdfast"])]  # `crowd` is one of threads
    cells = play(holdfast=" ".join(played[part::3]))
    for cell in cells.values():
        assert cell.runs, said(cell)
        if cell.fault == "pause-before-write":
            *fenced, unfenced = [run.verdict for run in cell.runs]
            assert set(fenced) == {"safe"} and unfenced == "exclusion violated", said(cell)
        elif cell.fault not in _BEYOND_ANY_CLIENT:
            check({"it": cell}, "it", "safe")
        else:  # then the fencing token saves the data, as it cannot with `set-nx-token`
            assert "lost update" not in cell.kinds, said(cell)
            fences = [event.get("fence") for event in cell.runs[0].history.of("acquired")]
            assert len(fences) > 1 and fences == sorted(set(fences)), "fencing tokens only grow"
        if cell.fault == "pause-holding":
            assert [event.lane for event in cell.runs[0].history.of("lost")] == ["A"], said(cell)


@pytest.mark.thorough
def test_holdfast_with_more_than_one_server() -> None:
    cells = play(holdfast_synced="failover", holdfast_quorum="none one-restarted two-stopped")
    check(cells, "holdfast-synced failover", "unavailable")  # and not: exclusion violated
    for fault in ("none", "one-restarted", "two-stopped"):
        check(cells, f"holdfast-quorum {fault}", "safe")


def test_libraries() -> None:
    present = [name for name in ("redis_py", "python_redis_lock") if not ENTRIES[name.replace("_", "-")].missing]
    assert "redis_py" in present
    cells = play(**dict.fromkeys(present, "none long-section crash-holding"), object="none")
    for name in [name.replace("_", "-") for name in present]:
        check(cells, f"{name} none", "safe")
        check(cells, f"{name} crash-holding", "safe")
        assert cells[f"{name} long-section"].verdict == "exclusion violated"
    check(cells, "object none", "safe")


def test_a_lock_of_the_lab_that_could_not_be_acquired_is_played_again_with_more_time() -> None:
    """Such a lock is known to work: the machine was too slow for its timeouts."""
    stretches: list[float] = []

    async def play(stage: Stage, variant: str) -> bool:
        stretches.append(stage.stretch)
        if len(stretches) < 3:
            raise LockFailed("A could not acquire the lock before any fault")
        return await FAULTS["none"].play(stage, variant)

    cell = runs.play(ENTRIES["set-nx-token"], replace(FAULTS["none"], play=play))
    assert stretches[:3] == [1, 2, 4] and cell.is_safe, said(cell)


def test_what_a_stalled_machine_shows_counts_only_if_it_shows_it_twice() -> None:
    async def play(stage: Stage, variant: str) -> bool:
        stage.stalled = True
        if not varies or stage.stretch == 8:
            return await FAULTS["none"].play(stage, variant)
        return await FAULTS["long-section"].play(stage, EARLY)

    stalled = replace(FAULTS["none"], play=play)
    varies = True
    assert runs.play(ENTRIES["set-nx-token"], stalled).not_run == "this machine is too slow for the choreography"
    varies = False
    assert runs.play(ENTRIES["set-nx-token"], stalled).is_safe


def test_a_client_tells_when_its_process_could_not_run_and_a_stop_of_the_play_is_none() -> None:
    """The lab sees neither what an answer nor what a renewal has waited for in a client: its process says so."""
    found: list[str] = []

    async def play(stage: Stage, variant: str) -> bool:
        a, b = await stage.client("A"), await stage.client("B")
        for actor in (a, b):  # the play behind this has others of these names
            stage.also_close(actor)
        for _ in range(10):  # the machine may stall by itself
            stage.stalled = False
            await b.stop()
            await asyncio.sleep(0.7)
            b.resume()
            await b.do("look")
            await asyncio.sleep(0.1)
            if not stage.stalled:
                found.append("a stop is none")
                break
        stage.stalled = False
        assert isinstance(a._body, ProcessBody)
        await a._body.stop()  # as the machine would: without a word
        await asyncio.sleep(0.7)
        a._body.resume()
        await stage.until(lambda: stage.stalled, "A to tell of it", timeout_s=20)
        stage.stalled = False
        found.append("told")
        return await FAULTS["none"].play(stage, variant)

    runs.play(ENTRIES["set-nx-token"], replace(FAULTS["none"], play=play))
    assert found[:2] == ["a stop is none", "told"]
