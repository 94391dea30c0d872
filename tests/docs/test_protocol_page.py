"""docs/protocol.md names the keys, scripts and messages that exist; its tables of states are what the scripts do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import embedded
from holdfast._api.client_info import lease_note_key
from holdfast._core import tokens
from holdfast._core.describe import note_key
from holdfast._core.effects import Wake
from holdfast._core.keys import inbox_prefix, lock_keys
from holdfast._core.kinds import CONDITION, KIND_OF_SCRIPT, KINDS, RWLOCK, SEMAPHORE
from holdfast._core.replies import wake_of
from holdfast._lua import SCRIPTS
from testbed.servers import unique
from tests.support.scripts import CLAIM_MS, CLIENTS, FENCE_MS, INBOXES, TTL_MS, Scripts

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
TOMBSTONE_MS = 60_000
T, B, OTHER = (f"{client}:1:1" for client in CLIENTS[:3])


def table_with(first: str) -> list[list[str]]:
    """The rows of the table whose first cell is that; code spans are kept."""
    _, _, rest = PAGE.partition(f"\n| {first} |")
    lines = f"| {first} |{rest}".partition("\n\n")[0].split("\n")
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines if not line.startswith("|-")]


def code(cell: str) -> str:
    found = re.match(r"`([^`]+)`", cell)
    assert found, cell
    return found[1]


def test_every_key_is_named_with_its_kind() -> None:
    keys = lock_keys("holdfast", "NAME")
    there = {*keys.more("fence:crash"), keys.order_of("TOKEN"), keys.note_of("TOKEN")}
    for kind in KINDS:
        own = keys.of(kind)
        beside = own.more(*kind.beside)[len(own.all) :]
        there |= {own.lock, *(f"{key}:CONDITION" if kind is CONDITION else key for key in beside)}
    assert {code(row[0]) for row in table_with("key")[1:]} == there
    for key in ("holdfast:client:ID", lease_note_key("holdfast", "TOKEN"), note_key("holdfast", "TOKEN")):
        assert f"`{key}`" in PAGE
    assert f"`{inbox_prefix('holdfast')}CLIENT`" in PAGE


def test_every_script_is_named_with_its_kind() -> None:
    named = {code(script): kind for script, kind, _ in table_with("script")[1:]}
    assert named.keys() == {*SCRIPTS}
    assert {script: named[script] for script in KIND_OF_SCRIPT} == KIND_OF_SCRIPT


def test_every_message_is_named_in_the_form_that_is_read() -> None:
    read = set()
    for cell, to, _ in table_with("message")[1:]:
        words = code(cell).replace("TOKEN", T).replace("FENCE", "34").replace("CLAIM_MS", "2000")
        message = [b"message", b"inbox", words.encode()]
        found = wake_of(message, "inbox")
        assert found is not None
        token, wake = found
        assert token == T and wake.kind == words.split(" ")[0]
        assert to == ("a holder" if wake.kind in Wake.FOR_HOLDERS else "a waiter")
        assert (wake.fence, wake.claim_ms) == ((34, 2000) if wake.kind == Wake.GRANT else (0, 0))
        read.add(wake.kind)
    assert read == {Wake.GRANT, Wake.ASK, Wake.BREAK, Wake.WANT, Wake.YIELD}


def test_the_grammar_of_tokens_is_what_is_told_from_others() -> None:
    pattern = re.search(r"As one regular expression: `([^`]+)`", PAGE)
    assert pattern and pattern[1] == tokens._OURS.pattern
    marks = {mark for kind in KINDS for mark in kind.marks}
    for mark in marks:
        assert f'"{mark}"' in PAGE.partition("mark     =")[2].partition("owner    =")[0]
    assert f'[ "{tokens.NOTED}" ]' in PAGE


# ---- the tables of states ----


@pytest.fixture
def scripts(valkey_server: embedded.Server) -> Iterator[Scripts]:
    made = Scripts(valkey_server.url)
    yield made
    made.close()


class Place:
    """One lock, in some state, on which a script is called with a token."""

    def __init__(self, scripts: Scripts) -> None:
        self.scripts = scripts
        self.keys = lock_keys("holdfast", unique("protocol"))
        self.shared = self.keys.more(*RWLOCK.beside)
        semaphore = self.keys.of(SEMAPHORE)
        self.permits = semaphore.more(*SEMAPHORE.beside)

    def acquire(self, token: str, what: str) -> list[int | str]:
        args = (token, TTL_MS, what, 0, FENCE_MS, CLAIM_MS, INBOXES)
        return self.scripts.call("acquire", self.keys.all, *args)  # type: ignore[no-any-return]

    def release(self, token: str, tombstone_ms: int = 0) -> int:
        args = (token, FENCE_MS, CLAIM_MS, INBOXES, tombstone_ms)
        return self.scripts.call("release", self.keys.all, *args)  # type: ignore[no-any-return]

    def renew(self, token: str) -> int:
        return self.scripts.call("renew", (self.keys.lock,), token, TTL_MS, 0, -1)  # type: ignore[no-any-return]

    def expire(self) -> None:
        """The holder's time is over."""
        self.scripts.server.delete(self.keys.lock)

    def rw(self, token: str, what: str = "try") -> list[int | str]:
        args = (token, TTL_MS, what, 0, FENCE_MS, CLAIM_MS, INBOXES)
        return self.scripts.call("rw_acquire", self.shared, *args)  # type: ignore[no-any-return]

    def sem(self, permits: int, declared: int = 3, what: str = "try", client: int = 1) -> list[int | str]:
        token = f"{CLIENTS[client]}:{permits}.1:{unique('n')[-6:]}"
        args = (token, TTL_MS, what, 0, FENCE_MS, CLAIM_MS, INBOXES, declared)
        return self.scripts.call("sem_acquire", self.permits, *args)  # type: ignore[no-any-return]


def bring(place: Place, state: str) -> None:
    """Bring a lock into a state of the table."""
    for part in state.split(", "):
        match part:
            case "free":
                pass
            case "T holds it":
                place.acquire(T, "try")
            case "another one holds it":
                place.acquire(OTHER, "try")
            case "T has a tombstone":
                place.release(T, TOMBSTONE_MS)
            case "B waits" | "T waits":
                waiter, free = part[0], state.startswith("free")
                if free:
                    place.acquire(OTHER, "try")
                place.acquire(B if waiter == "B" else T, "wait")
                if free:
                    place.expire()
            case _:
                raise AssertionError(part)


def form_of(reply: object) -> str:
    """A reply as the tables write it."""
    if not isinstance(reply, list):
        return str(reply)
    more = {1: ", F", 0: ", …"}.get(reply[0], "".join(f", {each}" for each in reply[1:]))
    return f"{{{reply[0]}{more}}}"


CALLS = {
    "`acquire`, try": lambda place: place.acquire(T, "try"),
    "`acquire`, wait": lambda place: place.acquire(T, "wait"),
    "`release`": lambda place: place.release(T),
    "`release`, tombstone_ms > 0": lambda place: place.release(T, TOMBSTONE_MS),
    "`renew`": lambda place: place.renew(T),
}
HOLDERS = {"T holds it": T, "B holds it": B, "the other holds it": OTHER, "it is free": None}


def test_the_table_of_a_lock_is_what_its_scripts_do(scripts: Scripts) -> None:
    (_, *columns), *rows = table_with("state")
    assert columns == [*CALLS] and len(rows) == 7
    for state, *cells in rows:
        for column, cell in zip(columns, cells, strict=True):
            place = Place(scripts)
            bring(place, state)
            reply = CALLS[column](place)
            assert form_of(reply) == code(cell), (state, column)
            holder = HOLDERS[cell.partition("` ")[2]]
            assert scripts.server.get(place.keys.lock) == holder, (state, column)


R, OTHERS_READ, WRITES = f"{CLIENTS[0]}:r.1:1", f"{CLIENTS[1]}:r.1:1", f"{CLIENTS[2]}:w.1:1"
UPGRADE, OTHERS_UPGRADE = f"{CLIENTS[0]}:u1.1:1", f"{CLIENTS[1]}:u1.1:1"
SHARED_STATES: dict[str, list[tuple[str, str]]] = {
    "free": [],
    "others read": [(OTHERS_READ, "try")],
    "R reads": [(R, "try")],
    "R and others read": [(R, "try"), (OTHERS_READ, "try")],
    "R reads, a writer waits": [(R, "try"), (WRITES, "wait")],
    "R reads, another reader is upgrading": [(R, "try"), (OTHERS_READ, "try"), (OTHERS_UPGRADE, "wait")],
    "another one writes": [(WRITES, "try")],
}
READS, WANTS = f"{CLIENTS[3]}:r.1:1", f"{CLIENTS[3]}:w.1:1"


def test_the_table_of_a_readers_writer_lock_is_what_its_script_does(scripts: Scripts) -> None:
    rows = {row[0]: row[1:] for row in tables_of_states()[1]}
    assert rows.keys() == SHARED_STATES.keys()
    for state, cells in rows.items():
        for token, cell in zip((READS, WANTS, UPGRADE), cells, strict=True):
            place = Place(scripts)
            for before, what in SHARED_STATES[state]:
                place.rw(before, what)
            assert form_of(place.rw(token)) == code(cell), (state, token)


PERMITS_STATES = {
    "nothing is stored": [],
    "all are free": [(1, "try")],
    "one is free": [(2, "try")],
    "none is free": [(3, "try")],
    "one is free, a request for two waits": [(2, "try"), (2, "wait")],
}


def test_the_table_of_a_semaphore_is_what_its_script_does(scripts: Scripts) -> None:
    rows = {row[0]: row[1:] for row in tables_of_states()[2]}
    assert rows.keys() == PERMITS_STATES.keys()
    for state, cells in rows.items():
        for (permits, declared), cell in zip(((1, 3), (2, 3), (4, 3), (1, 5)), cells, strict=True):
            place = Place(scripts)
            for number, what in PERMITS_STATES[state]:
                place.sem(number, what=what)
            if state == "all are free":
                scripts.server.delete(place.permits[-1])
            assert form_of(place.sem(permits, declared, client=0)) == code(cell), (state, permits, declared)


def tables_of_states() -> list[list[list[str]]]:
    """The rows of each table of states."""
    found = []
    for block in re.findall(r"^\| state \|.*\n\|-.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE):
        found.append([[cell.strip() for cell in line.strip("| ").split(" | ")] for line in block.splitlines()])
    return found
