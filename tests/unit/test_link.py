"""A connection of the engine, against a server that says exactly what a test has it say."""

from __future__ import annotations

import dis
import select
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast._core.effects import Reply, Wake
from holdfast._core.exclusive import OneServer
from holdfast._core.failure import RequestFailed
from holdfast._core.keys import lock_keys
from holdfast._core.mutex import LockAcquisition
from holdfast._core.settings import DEFAULT
from holdfast._core.standing import Standing, Standings
from holdfast._core.tenure import SOON_S
from holdfast._engine import link as links
from holdfast._engine.dial import LATE_MAX
from holdfast._engine.loop import READ, Engine
from holdfast._engine.pack import PreparedRequest, pack_command, pack_script
from holdfast._engine.requests import Ask, Bundle, Request
from holdfast._engine.server import SPARES_MAX, Server
from holdfast._lua import SCRIPTS
from holdfast._runtime.clock import clock
from holdfast._runtime.waits import ring, silent_bell
from testbed.waiting import eventually
from tests.support.bytecodes import at_bytecode, bytecodes_of, places_once
from tests.support.peer import Answered, Peer, Words, command, running_engine

KEYS = lock_keys("holdfast", "a")
TURN = LockAcquisition(KEYS, "", 30_000)
ACQUIRES, RELEASES = OneServer(KEYS, DEFAULT).each(30_000)
FIRST, RELEASE = PreparedRequest(TURN.ask(False, 0, 1.0), ACQUIRES), PreparedRequest(TURN.undo(0, 1.0), RELEASES)
ALONE = PreparedRequest(TURN.ask(False, 0, 1.0))
SHA_OF_EACH = SCRIPTS["acquire_each"].sha.encode()
GRANTED = b"*2\r\n:1\r\n:7\r\n"
#: By another client, for long enough.
QUEUED = b"*5\r\n:0\r\n:9000\r\n$28\r\n%b:1:7\r\n:0\r\n:5\r\n" % (b"c0ffee" * 4)


MESSAGE = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nhello\r\n"
SUBSCRIBED = b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture
def engine() -> Iterator[Engine]:
    with running_engine() as running:
        yield running


@pytest.fixture
def server(engine: Engine, peer: Peer) -> Iterator[Server]:
    server = Server(engine, "made", peer.make)
    yield server
    engine.call(server.close)
    eventually(lambda: not (server._all or server.dialling), "its connections are closed, and none is being made")


def connected(server: Server) -> Any:
    """Return its link, once that is open."""
    assert command(server, "PING").wait() == (b"OK", None)
    return server.link


def asked(server: Server, first: PreparedRequest = ALONE, token: str = "t", patience_s: float = 20.0) -> Answered:
    """Ask in a thread of its own."""
    answered, ask = Answered(), Ask(first, token, clock() + patience_s)

    def run() -> None:
        outcome = server.link.ask(ask)
        assert outcome is not None, "there is no connection"
        answered(*outcome)

    threading.Thread(target=run, name="asker", daemon=True).start()
    return answered


def outcome(ask: Ask) -> tuple[Reply, RequestFailed | None]:
    assert ask.outcome is not None
    return ask.outcome


def lying(answer: Callable[[Ask], None]) -> Ask:
    """One of a task: an event loop reads its reply."""
    ask = Ask(ALONE, "t", clock() + 20.0, answer)
    ask.may_lie = True
    return ask


def told(link: Any, first: PreparedRequest = RELEASE, token: str = "t", patience_s: float = 20.0) -> Answered:
    """Send it, and wait for nothing."""
    answered = Answered()
    assert link.put(Ask(first, token, clock() + patience_s, lambda ask: answered(*outcome(ask))))
    return answered


def token_of(words: Words) -> bytes:
    return next(word for word in words if word.startswith(b"t"))


def echo(words: Words) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(words[-1]), words[-1])


def on_engine(engine: Engine, act: Callable[[], Any]) -> Any:
    """Have the engine do it; what it has returned."""
    found: list[Any] = []
    engine.call(lambda: found.append(act()))
    eventually(lambda: found)
    return found[0]


# ---- replies ----


def test_replies_are_matched_in_order(server: Server, peer: Peer) -> None:
    peer.answer = echo
    answers = [command(server, "ECHO", f"{number}") for number in range(200)]
    assert [answered.wait() for answered in answers] == [(f"{number}".encode(), None) for number in range(200)]
    assert len(peer.ends) == 1
    assert max(peer.reads) > 1, "what was asked for together was not sent together"


def test_callers_and_the_engine_share_a_connection(server: Server, peer: Peer) -> None:
    connected(server)
    numbers = iter(range(1, 1000))
    peer.answer = lambda words: b"*2\r\n:1\r\n:%d\r\n" % next(numbers) if words[0] == b"EVALSHA" else echo(words)
    mine = [asked(server, token=f"t{number}") for number in range(20)]
    theirs = [command(server, "ECHO", f"{number}") for number in range(20)]
    assert [answered.wait() for answered in theirs] == [(f"{number}".encode(), None) for number in range(20)]
    fences = sorted(answered.wait()[0][1] for answered in mine)
    assert fences == list(range(1, 21)) and len(peer.ends) == 1


def test_a_caller_reads_while_the_engine_hands_out_what_it_has_read(server: Server, peer: Peer, engine: Engine) -> None:
    """Each of them hands out its own."""
    connected(server)
    goes_on = threading.Event()

    class Caller(Ask):
        def end(self, reply: Reply, failure: RequestFailed | None) -> None:
            super().end(reply, failure)
            if not engine.is_mine():
                goes_on.set()
                on_engine(engine, bool)  # which has come to the end of what it hands out

    peer.answer = lambda words: GRANTED if words[0] == b"EVALSHA" else None
    handed_out: list[Reply] = []

    def first(reply: Reply, _failure: RequestFailed | None) -> None:
        handed_out.append(reply)
        goes_on.wait(20)

    for each in (first, lambda reply, _failure: handed_out.append(reply)):
        engine.call(server.send, Request(pack_command(("ECHO", "x")), clock() + 20.0, None, None, each))
    peer.heard(3)
    peer.say(b"$1\r\na\r\n$1\r\nb\r\n")
    eventually(lambda: handed_out)
    assert server.link.ask(Caller(ALONE, "t", clock() + 20.0)) == ([1, 7], None)
    assert handed_out == [b"a", b"b"]


def test_a_late_reply_is_not_given_to_the_next_request(server: Server, peer: Peer) -> None:
    connected(server)
    peer.answer = lambda words: None
    late = command(server, "ECHO", "late", patience_s=0.05)
    assert late.kind() == "silent"
    failure = late.wait()[1]
    assert failure is not None and failure.maybe_executed and failure.transient
    second = command(server, "ECHO", "second")
    peer.heard(3)
    peer.say(b"$4\r\nlate\r\n$6\r\nsecond\r\n")
    assert second.wait() == (b"second", None)
    assert late.times == 1 and len(peer.ends) == 1


def test_the_caller_of_a_request_that_is_not_answered_goes_on_in_time(server: Server, peer: Peer) -> None:
    connected(server)
    peer.answer = lambda words: None
    late = asked(server, patience_s=0.05)
    assert late.kind() == "silent"
    following = [asked(server, token="t1", patience_s=0.1), asked(server, token="t2")]
    assert following[0].kind() == "silent"
    peer.heard(4)
    peer.say(b"*2\r\n:1\r\n:1\r\n")
    peer.say(b"".join(b"*2\r\n:1\r\n:%c\r\n" % token_of(words)[1:] for words in peer.asked[2:]))
    assert following[1].wait() == ([1, 2], None)


@pytest.mark.parametrize("count", [2, 3])
def test_those_that_are_asked_together_wait_each_for_its_own_time(server: Server, peer: Peer, count: int) -> None:
    link = connected(server)
    peer.answer = lambda words: None
    told: list[str] = []
    times = [20.0] * (count - 1) + [0.2]
    link.put_all([Ask(FIRST, f"t{s}", clock() + s, lambda ask: told.append(ask.token)) for s in times])
    eventually(lambda: told == ["t0.2"], "the time of the last one was over", 10)


def test_who_writes_while_the_reader_leaves_has_the_engine_read(
    server: Server, peer: Peer, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "RESCUE_S", 3_600.0)
    monkeypatch.setattr(links, "STUCK_S", 3_600.0)
    link = connected(server)
    poll, reads = link._poll, threading.Event()

    def polled(wait_ms: float) -> Any:
        reads.set()
        return poll.poll(wait_ms)

    link._poll = SimpleNamespace(poll=polled)
    peer.answer = lambda words: None
    first = asked(server, token="t1")
    assert reads.wait(20)  # else it may still be in the seat, and write the second request, too
    write_some = link._write_some

    def meanwhile() -> Any:
        goes_on = write_some()
        peer.say(GRANTED)
        first.wait()
        on_engine(engine, lambda: None)  # which was told to watch, and found us in the seat
        return goes_on

    eventually(lambda: engine.asleep)  # else it writes, together with what it has
    link._write_some = meanwhile
    second = asked(server, token="t2", patience_s=60.0)
    peer.heard(3)
    first.wait()
    peer.say(GRANTED)
    eventually(lambda: second.over, "the engine reads its reply")


def test_a_caller_that_was_held_up_looks_for_its_reply_before_its_time_is_over(server: Server, peer: Peer) -> None:
    """The caller reads by itself, and did not run between the last look and the end of its time."""
    link = connected(server)
    poll, peer.answer = link._poll, lambda words: GRANTED

    def held_up(_wait_ms: float) -> list[Any]:
        link._poll = poll
        time.sleep(0.3)
        return []

    link._poll = SimpleNamespace(poll=held_up)
    assert asked(server, patience_s=0.2).wait() == ([1, 7], None)


def test_an_engine_that_was_held_up_reads_before_it_ends_what_is_late(
    server: Server, peer: Peer, engine: Engine
) -> None:
    connected(server)
    answered, sleeps = Answered(), threading.Event()

    def held_up() -> None:
        sleeps.set()
        time.sleep(0.4)

    def act() -> None:
        server.send(Request(pack_command(("ECHO", "x")), clock() + 0.2, None, None, answered))
        engine.later(0.01, engine.call, held_up)

    def answer(words: Words) -> bytes:
        sleeps.wait(10)
        return echo(words)

    peer.answer = answer
    engine.call(act)
    assert answered.wait() == (b"x", None)


def test_what_is_not_sent_is_taken_over_though_a_thread_takes_some_of_it(server: Server, engine: Engine) -> None:
    """The thread in the seat goes on just as it is given up."""
    link = connected(server)
    queued = [Answered(), Answered()]

    class Queue(deque[Any]):
        def popleft(self) -> Any:
            first = super().popleft()
            self.clear()
            return first

        def __len__(self) -> int:
            return 1  # as it was a moment ago

    def replace() -> None:
        link._queue = Queue(Request(pack_command(("PING",)), clock() + 20, None, None, each) for each in queued)
        link._replace()

    engine.call(replace)
    assert queued[0].wait() == (b"OK", None)


def test_a_silent_connection_gets_no_new_requests(server: Server, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "SILENCE_S", 0.05)
    connected(server)
    peer.answer = lambda words: None
    waiting = command(server, "ECHO", "waiting")
    assert command(server, "ECHO", "late", patience_s=0.1).kind() == "silent"
    peer.answer = echo
    assert command(server, "ECHO", "second").wait() == (b"second", None)
    assert peer.came_on == [0, 0, 0, 1]
    peer.say(b"$7\r\nwaiting\r\n$4\r\nlate\r\n", 0)
    assert waiting.wait() == (b"waiting", None), "the old connection lingers for what may still come"
    eventually(lambda: len(server._all) == 1, "and is closed when it owes nothing any more")


def test_callers_leave_a_silent_connection_too(server: Server, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "SILENCE_S", 0.05)
    connected(server)
    peer.answer = lambda words: None
    assert asked(server, patience_s=0.2).kind() == "silent"
    eventually(lambda: server.link is None, "what they ask next goes on another one")


def test_a_silent_connection_is_left_though_what_it_owes_is_waited_for(
    server: Server, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "SILENCE_S", 0.05)
    connected(server)
    peer.answer = lambda words: None
    waiting = command(server, "ECHO", "waiting")
    peer.heard(2)
    time.sleep(0.1)
    peer.answer = echo
    assert command(server, "ECHO", "second").wait() == (b"second", None)
    assert not waiting.over and peer.came_on == [0, 0, 1]


@pytest.mark.parametrize("by", [command, asked])
def test_a_connection_that_ends_answers_what_is_under_way(server: Server, peer: Peer, by: Any) -> None:
    connected(server)
    peer.answer = lambda words: None
    answered = command(server, "ECHO", "x") if by is command else asked(server)
    peer.heard(2)
    peer.hang_up()
    assert answered.kind() == "broken"
    failure = answered.wait()[1]
    assert failure is not None and failure.maybe_executed and failure.transient
    peer.answer = lambda words: b"+OK\r\n"
    assert command(server, "ECHO", "y").wait() == (b"OK", None) and len(peer.ends) == 2


def test_who_cannot_connect_has_sent_nothing(engine: Engine) -> None:
    def make() -> Any:
        raise ConnectionRefusedError(111, "refused")

    server = Server(engine, "made", make)
    answers = [command(server, "ECHO", f"{number}") for number in range(3)]
    for answered in answers:
        failure = answered.wait()[1]
        assert failure is not None and not failure.maybe_executed
    assert server.link is None and not server._all


def test_a_forked_child_connects_though_its_parent_has_tried_in_vain(peer: Peer, engine: Engine) -> None:
    """The threads that hang there are not in the child."""
    server = Server(engine, "made", peer.make)
    server.dialling.update(threading.Thread() for _ in range(LATE_MAX))
    server.forget(engine)
    connected(server)
    engine.call(server.close)


def test_a_connection_that_is_killed_at_hello_is_made_again(peer: Peer, engine: Engine) -> None:
    """Only where that is so again is it taken for an old proxy, by which no messages come."""

    def make() -> Any:
        connection = peer.make()
        if len(peer.ends) == 1:
            peer.ends[0].shutdown(socket.SHUT_RDWR)
        return connection

    server = Server(engine, "made", make)
    assert connected(server).pushes and not server.hello_closes
    assert len(peer.ends) == 2
    engine.call(server.close)


def test_what_waits_for_a_connection_is_answered_in_time(engine: Engine, peer: Peer) -> None:
    hangs = threading.Event()

    def make() -> Any:
        hangs.wait(60)
        return peer.make()

    server = Server(engine, "made", make)
    failure = command(server, "ECHO", "x", patience_s=0.05).wait()[1]
    assert failure is not None and not failure.maybe_executed and "no connection in time" in failure.message
    hangs.set()
    assert command(server, "ECHO", "y").wait() == (b"OK", None)
    assert [words[1] for words in peer.asked] == [b"y"], "what is not waited for any more need not be sent"
    engine.call(server.close)


def test_a_closed_server_ends_all_requests(server: Server, peer: Peer, engine: Engine) -> None:
    connected(server)
    peer.answer = lambda words: None
    waiting = [command(server, "ECHO", "x"), asked(server)]
    peer.heard(3)
    engine.call(server.close)
    assert [answered.kind() for answered in waiting] == ["closed", "closed"]
    after = command(server, "ECHO", "y")
    failure = after.wait()[1]
    assert after.kind() == "closed" and failure is not None and not failure.maybe_executed
    assert len(peer.ends) == 1, "it is not connected to any more"


def test_who_is_held_up_is_told_though_the_engine_ends(peer: Peer) -> None:
    """As a caller that has just read or written, and was its client's last one."""
    engine, client = Engine(), object()
    engine.enter(client)
    server = Server(engine, "made", peer.make)
    link = connected(server)
    peer.answer = lambda words: None
    answered = command(server, "ECHO", "x")
    peer.heard(2)
    link._reading[""] = (0,)
    try:
        engine.call(server.close)
        engine.call(engine.leave, client)
        assert answered.kind() == "closed"
    finally:
        link._reading.clear()
    eventually(lambda: engine.thread is None, "it has ended")


def test_the_end_is_told_once_while_a_thread_is_about_to_write(server: Server, peer: Peer, engine: Engine) -> None:
    """Told at each look, the engine would do nothing else for as long as that thread is held up."""
    link, told_of = connected(server), list[int]()
    ready = link.ready

    def counting(mask: int) -> None:
        told_of.append(mask)
        ready(mask)

    link.ready = counting
    link._seat[""] = (0,)
    peer.hang_up()
    eventually(lambda: link._sock is None, "it has waited for long enough")
    assert 1 <= len(told_of) <= 5


def test_what_is_noted_behind_the_end_is_answered(server: Server, engine: Engine) -> None:
    """By a thread that was held up for long between a request and its note."""
    link = connected(server)
    on_engine(engine, link.close)
    ask = Ask(ALONE, "t", clock() + 20.0)
    link._pending.append(ask)
    engine.call(link.rescue)
    eventually(lambda: ask.outcome)
    assert ask.outcome is not None and ask.outcome[1] is not None and ask.outcome[1].maybe_executed


def test_what_is_put_behind_the_end_is_answered(server: Server, engine: Engine) -> None:
    """By a thread that had found the connection open."""
    link = connected(server)
    on_engine(engine, link.close)
    link.is_open = True
    assert told(link).kind() == "closed"


def test_what_is_put_behind_the_end_of_a_client_is_answered(server: Server, peer: Peer, engine: Engine) -> None:
    """By an event loop that was held up for long: its requests of one turn are sent together."""
    connected(server)
    on_engine(engine, server.close)
    ask = Ask(ALONE, "t", clock() + 20.0)
    server.put_all([ask])
    eventually(lambda: ask.outcome)
    assert ask.outcome is not None and ask.outcome[1] is not None and ask.outcome[1].kind == "closed"
    assert len(peer.ends) == 1, "it is not connected to any more"


def test_what_was_about_to_be_sent_again_at_the_end_was_not_executed(server: Server, engine: Engine) -> None:
    """A signal handler has raised between its repeat and the note that its first answer was handed out."""
    link = connected(server)
    ask = Ask(ALONE, "t", clock() + 20.0)
    ask.pack()
    unknown = RequestFailed("NOSCRIPT", "no", "", maybe_executed=False, transient=False)

    def interrupted() -> None:
        link._ends.append((ask, None, unknown))
        link._hand_out(ask, None, unknown, False)
        engine.call(link._lost, None)

    on_engine(engine, interrupted)
    eventually(lambda: ask.outcome)
    assert ask.outcome is not None and ask.outcome[1] is not None
    assert (ask.outcome[1].kind, ask.outcome[1].maybe_executed) == ("broken", False)


def test_a_piece_that_the_socket_does_not_take_at_once_is_sent_in_the_end(server: Server, peer: Peer) -> None:
    connected(server)
    peer.answer = lambda words: b":%d\r\n" % len(words[-1])
    peer.reading.clear()
    first = command(server, "ECHO", "a" * 3_000_000)
    more = [command(server, "ECHO", "b" * (1 + number)) for number in range(5)]
    link: Any = server.link
    eventually(lambda: link._out and len(link._pending) + len(link._queue) == 6, "a rest is left, and more waits")
    third = asked(server)
    peer.reading.set()
    assert first.wait() == (3_000_000, None)
    assert [answered.wait()[0] for answered in more] == [1, 2, 3, 4, 5]
    assert third.kind() == "nonsense", "a number is no answer to an acquire"


# ---- what makes no sense ----


def test_nonsense_ends_the_connection(server: Server, peer: Peer) -> None:
    link = connected(server)
    peer.answer = lambda words: None
    first = command(server, "A", fits=lambda reply: reply == 1)
    second = command(server, "B")
    peer.heard(3)
    peer.say(b":2\r\n:3\r\n")
    assert (first.kind(), second.kind()) == ("nonsense", "broken"), "no later reply can be trusted to be of its request"
    peer.answer = echo
    assert command(server, "ECHO", "y").wait() == (b"y", None)
    assert link.ended and len(peer.ends) == 2


@pytest.mark.parametrize("much", [b"+OK\r\n+OK\r\n", b"+OK\r\n+O"])
def test_more_than_was_asked_for_makes_no_sense(server: Server, peer: Peer, much: bytes) -> None:
    connected(server)
    peer.answer = lambda words: much
    assert command(server, "A").kind() == "nonsense", "the first one may be of another request as well"
    eventually(lambda: server.link is None)


def test_an_array_too_great_behind_a_reply_is_not_given_memory_for(server: Server, peer: Peer) -> None:
    connected(server)
    peer.answer = lambda words: b"" if words[1] == b"first" else b"+OK\r\n*2147483647\r\n"
    first, second = command(server, "A", "first"), command(server, "A", "second")
    assert second.kind() in ("nonsense", "broken") and first.wait() == (b"OK", None)


def test_a_value_may_look_like_an_array_too_great(server: Server, peer: Peer) -> None:
    connected(server)
    value = b"a\r\n*2147483647\r\n" * 50
    peer.answer = lambda words: b"$%d\r\n%b\r\n" % (len(value), value)
    assert command(server, "A").wait() == (value, None)


def test_what_is_no_reply_makes_no_sense(server: Server, peer: Peer) -> None:
    connected(server)
    peer.answer = lambda words: b"HTTP/1.1 400 Bad Request\r\n\r\n"
    assert command(server, "A").kind() == "nonsense"


def test_an_error_is_of_its_own_request(server: Server, peer: Peer) -> None:
    connected(server)
    peer.answer = lambda words: b"-WRONGTYPE no\r\n" if words[1] == b"x" else echo(words)
    answers = [command(server, "ECHO", word) for word in ("a", "x", "b")]
    assert answers[0].wait() == (b"a", None) and answers[2].wait() == (b"b", None)
    assert answers[1].kind() == "WRONGTYPE" and len(peer.ends) == 1


def test_a_server_that_is_no_master_any_more_gets_no_more_requests(server: Server, peer: Peer) -> None:
    connected(server)
    peer.answer = lambda words: b"-READONLY no\r\n" if words[1] == b"x" else echo(words)
    assert command(server, "ECHO", "x").kind() == "READONLY"
    eventually(lambda: len(server._all) == 0, "the connection is given up")
    assert command(server, "ECHO", "y").wait() == (b"y", None) and len(peer.ends) == 2


# ---- scripts that the server does not know ----


def asked_by(by: str, server: Server) -> Answered:
    """Ask by a script, as the engine or a caller does."""
    if by == "caller":
        return asked(server)
    answered, script = Answered(), SCRIPTS["acquire"]
    packed = pack_script(script, KEYS.all, ("t", 1))
    server.engine.call(server.send, Request(packed, clock() + 20.0, None, script, answered))
    return answered


@pytest.mark.parametrize("by", ["engine", "caller"])
def test_a_script_is_sent_with_its_text_once(server: Server, peer: Peer, by: str) -> None:
    connected(server)
    peer.answer = lambda words: b"-NOSCRIPT no\r\n" if words[0] == b"EVALSHA" else GRANTED
    answered = asked_by(by, server)
    assert answered.wait() == ([1, 7], None)
    assert [words[0] for words in peer.asked[1:]] == [b"EVALSHA", b"EVAL"]
    assert peer.asked[2][1] == SCRIPTS["acquire"].text.encode() and peer.asked[1][2:] == peer.asked[2][2:]


@pytest.mark.parametrize("by", ["engine", "caller"])
def test_a_script_that_is_never_known_is_not_sent_for_ever(server: Server, peer: Peer, by: str) -> None:
    connected(server)
    peer.answer = lambda words: b"-NOSCRIPT no\r\n"
    assert asked_by(by, server).kind() == "NOSCRIPT"
    assert [words[0] for words in peer.asked[1:]] == [b"EVALSHA", b"EVAL"]


def test_a_script_that_is_not_known_is_sent_again_though_the_connection_is_retired(
    server: Server, peer: Peer, engine: Engine
) -> None:
    link = connected(server)
    peer.answer = lambda words: None
    answered, script = Answered(), SCRIPTS["acquire"]
    packed = pack_script(script, KEYS.all, ("t", 1))
    engine.call(server.send, Request(packed, clock() + 20.0, None, script, answered))
    peer.heard(2)
    on_engine(engine, link.retire)
    peer.answer = lambda words: GRANTED
    peer.say(b"-NOSCRIPT no\r\n")
    assert answered.wait() == ([1, 7], None) and peer.came_on == [0, 0, 0]


def test_a_script_that_is_not_known_at_the_end_is_answered(server: Server, peer: Peer, engine: Engine) -> None:
    """The reply before it has the client closed."""
    connected(server)
    peer.answer = lambda words: b"+x\r\n-NOSCRIPT no\r\n" if words[0] == b"EVALSHA" else None
    answered, script = Answered(), SCRIPTS["acquire"]

    def send() -> None:
        server.send(
            Request(pack_command(("ECHO", "x")), clock() + 20.0, None, None, lambda _reply, _failure: server.close())
        )
        server.send(Request(pack_script(script, KEYS.all, ("t", 1)), clock() + 20.0, None, script, answered))

    engine.call(send)
    assert answered.kind() == "closed"


# ---- together ----


def together(
    server: Server, peer: Peer, answer: Callable[[Words], bytes], requests: list[tuple[PreparedRequest, str]]
) -> list[Answered]:
    """Ask for those at once: the thread that writes is held up until all are there."""
    link = connected(server)
    peer.answer = answer
    link._seat[""] = (0,)
    answers = [asked(server, first, token) for first, token in requests]
    eventually(lambda: len(link._queue) == len(requests), "all are queued")
    link._seat.clear()
    server.engine.call(link.rescue)
    return answers


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "EACH_MIN", 3)


@pytest.mark.usefixtures("few_are_many")
def test_acquires_that_come_together_are_one_request(server: Server, peer: Peer) -> None:
    def answer(words: Words) -> bytes:
        return b"*4\r\n:7\r\n:0\r\n:9\r\n:0\r\n" if words[1] == SHA_OF_EACH else GRANTED

    answers = together(server, peer, answer, [(FIRST, f"t{number}") for number in range(4)])
    found = sorted(answered.wait()[0][1] for answered in answers)
    assert found == [7, 7, 7, 9], "two that were not granted together have asked alone"
    sent = peer.asked[1:]
    assert len(sent) == 3, sent
    alone = {token_of(words) for words in sent[1:]}
    order = [word for word in sent[0] if word.startswith(b"t")]
    assert alone == {order[1], order[3]}, "those whose number was 0"


@pytest.fixture
def three() -> tuple[list[Any], list[Any], Bundle]:
    members = [Ask(FIRST, f"t{number}", 1.0) for number in range(3)]
    alone: list[Any] = []
    return members, alone, Bundle(members, alone.append)


Three = tuple[list[Any], list[Any], Bundle]


def test_what_was_not_done_together_is_asked_alone(three: Three) -> None:
    members, alone, bundle = three
    bundle.end([7, 0, 9], None)
    assert [member.outcome for member in members] == [([1, 7], None), None, ([1, 9], None)]
    assert alone == [members[1]]


def test_what_the_server_refuses_as_a_whole_is_asked_alone(three: Three) -> None:
    members, alone, bundle = three
    bundle.end(None, RequestFailed("NOPERM", "no", "made", maybe_executed=False, transient=False))
    assert alone == members and not any(member.outcome for member in members)


class Home:
    """Where tasks wait; a signal handler raises when it is told for the first time."""

    def __init__(self) -> None:
        self.told: list[list[str]] = []

    def answered(self, asks: Any) -> None:
        self.told.append([ask.token for ask in asks])
        if len(self.told) == 1:
            raise KeyboardInterrupt


def test_tasks_are_woken_where_the_thread_that_reads_for_them_was_interrupted(three: Three) -> None:
    members, _, bundle = three
    home = Home()
    for member in members:
        member.home = home
    with pytest.raises(KeyboardInterrupt):
        bundle.end([7, 8, 9], None)
    bundle.end([7, 8, 9], None)  # by the engine, which hands out what had been read
    assert home.told == [["t0", "t1", "t2"]] * 2
    assert [member.outcome for member in members] == [([1, number], None) for number in (7, 8, 9)]
    members[0].end(None, RequestFailed("broken", "no", "made", maybe_executed=True, transient=True))
    assert home.told[2:] == [["t0"]] and members[0].outcome == ([1, 7], None), "told again, of what it was told before"


@pytest.mark.parametrize("kind", ["broken", "silent", "closed", "nonsense"])
def test_trouble_is_one_of_its_own_for_each(three: Three, kind: str) -> None:
    members, alone, bundle = three
    bundle.end(None, RequestFailed(kind, "no", "made", maybe_executed=True, transient=True))
    failures = [member.outcome[1] for member in members]
    assert len({id(failure) for failure in failures}) == 3 and not alone
    assert all(failure.kind == kind and failure.maybe_executed for failure in failures)


@pytest.mark.parametrize("reply", [[1, 2], [1, 2, 3, 4], [1, 2, -1], [1, 2, b"3"], 3, None])
def test_an_answer_of_another_form_does_not_fit(three: Three, reply: Reply) -> None:
    assert not three[2].fits(reply)
    assert three[2].fits([1, 0, 2])


@pytest.mark.usefixtures("few_are_many")
def test_releases_go_before_acquires_that_come_with_them(server: Server, peer: Peer) -> None:
    requests = [(FIRST, f"t{number}") for number in range(3)] + [(RELEASE, f"t{number}") for number in range(3, 6)]
    answers = together(server, peer, lambda words: b"*3\r\n:1\r\n:1\r\n:1\r\n", requests)
    for answered in answers:
        assert answered.wait()[1] is None
    first = {word for word in peer.asked[1] if word.startswith(b"t")}
    assert first == {b"t3", b"t4", b"t5"} and len(peer.asked) == 3


def test_few_go_one_by_one(server: Server, peer: Peer) -> None:
    answers = together(server, peer, lambda words: GRANTED, [(FIRST, "t1"), (FIRST, "t2")])
    assert [answered.wait()[0] for answered in answers] == [[1, 7], [1, 7]]
    assert [token_of(words) for words in peer.asked[1:]] in ([b"t1", b"t2"], [b"t2", b"t1"])


# ---- the seat ----


def test_what_finds_the_seat_taken_is_sent_by_who_has_it(server: Server, peer: Peer) -> None:
    link = connected(server)
    peer.answer = lambda words: GRANTED
    link._seat[""] = (0,)
    answered = asked(server)
    eventually(lambda: link._queue, "it is queued")
    link._seat.clear()
    assert answered.wait() == ([1, 7], None), "the engine looks after it"
    assert len(peer.ends) == 1


def test_a_seat_that_is_never_left_is_passed_by(server: Server, peer: Peer) -> None:
    """As by a signal handler that goes on and on, above a thread that writes."""
    link = connected(server)
    peer.answer = lambda words: GRANTED
    link._seat[""] = (0,)
    try:
        answered = asked(server)
        assert answered.wait() == ([1, 7], None)
        assert peer.came_on == [0, 1], "by another connection"
    finally:
        link._seat.clear()


def test_a_seat_that_is_never_left_is_passed_by_what_nobody_waits_for(server: Server, peer: Peer) -> None:
    link = connected(server)
    peer.answer = lambda words: b":1\r\n"
    link._seat[""] = (0,)
    try:
        assert told(link).wait() == (1, None)
        assert peer.came_on == [0, 1], "by another connection"
    finally:
        link._seat.clear()


def test_a_handler_above_a_thread_that_reads_goes_another_way_though_another_thread_writes(
    server: Server, peer: Peer
) -> None:
    link = connected(server)
    link._seat[""], link._reading[""] = (0,), (threading.get_ident(),)
    try:
        assert link.ask(Ask(ALONE, "t", clock() + 1.0)) is None
        eventually(lambda: server.link is not link, "new requests go by another connection")
    finally:
        link._seat.clear()
        link._reading.clear()


def test_a_seat_that_is_not_left_while_the_process_is_held_up_is_waited_for(server: Server, peer: Peer) -> None:
    """As by SIGSTOP, or a machine that is busy: the engine looks late, and that thread had no time either."""
    link = connected(server)
    peer.answer = lambda words: GRANTED
    link._seat[""] = (0,)
    answered = asked(server)
    eventually(lambda: any(entry[2] == link._look_for_stuck for entry in list(server.engine._timers)))
    on_engine(server.engine, partial(time.sleep, links.STUCK_S + 0.1))
    link._seat.clear()
    assert answered.wait() == ([1, 7], None)
    assert peer.came_on == [0, 0], "by the same connection"


def test_a_server_that_is_slow_is_not_passed_by(server: Server, peer: Peer) -> None:
    connected(server)
    peer.answer = lambda words: None
    answers = [asked(server, token="t1"), asked(server, token="t2")]
    peer.heard(3)
    time.sleep(8 * links.STUCK_S)
    peer.say(GRANTED + GRANTED)
    assert [answered.wait() for answered in answers] == [([1, 7], None)] * 2
    peer.answer = lambda words: GRANTED
    assert asked(server).wait() == ([1, 7], None) and set(peer.came_on) == {0}


# ---- replies that are not waited for ----


def test_a_reply_that_is_not_waited_for_is_read_in_the_end(server: Server, peer: Peer) -> None:
    connected(server)
    peer.answer = lambda words: b":1\r\n"
    answered = told(server.link)
    assert answered.wait() == (1, None)


def test_replies_that_are_not_waited_for_are_read_with_the_next(
    server: Server, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "LIE_S", 3_600.0)
    connected(server)
    sha = RELEASE.script.sha.encode()
    peer.answer = lambda words: b":1\r\n" if words[1] == sha else GRANTED
    answers = [told(server.link, token=f"t{number}") for number in range(3)]
    peer.heard(2)
    assert asked(server).wait() == ([1, 7], None)
    assert [answered.wait() for answered in answers] == [(1, None)] * 3


def test_what_is_not_waited_for_is_answered_when_the_connection_ends(
    server: Server, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "LIE_S", 3_600.0)
    connected(server)
    peer.answer = lambda words: None
    answered = told(server.link)
    peer.heard(2)
    peer.hang_up()
    assert answered.kind() == "broken"


# ---- messages ----


def test_messages_come_between_replies(server: Server, peer: Peer, engine: Engine) -> None:
    found: list[Any] = []
    server.on_message = found.append
    subscribed, ends = Answered(), list[bool]()
    peer.answer = lambda words: SUBSCRIBED if words[0] == b"SUBSCRIBE" else echo(words)
    server.on_deaf = ends.append
    engine.call(server.subscribe, "SUBSCRIBE", "c", 20.0, subscribed)
    assert subscribed.wait()[1] is None
    peer.say(MESSAGE)
    assert command(server, "ECHO", "x").wait() == (b"x", None)
    eventually(lambda: found, "the message")
    assert found == [[b"message", b"c", b"hello"]] and not ends
    peer.hang_up()
    eventually(lambda: ends, "it is told once nothing more is heard")
    assert ends == [False], "which was not the doing of this process"


def test_what_is_not_waited_for_ends_in_time_though_messages_may_come(
    server: Server, peer: Peer, engine: Engine
) -> None:
    connected(server)
    with_messages(server, peer, engine)
    engine.forget(server.link._alarm)  # as when nothing was asked for a while
    on_engine(engine, server.link.expire)
    peer.answer = lambda words: None
    assert told(server.link, patience_s=0.2).kind() == "silent"


def test_what_another_thread_is_about_to_write_ends_in_time(server: Server, engine: Engine) -> None:
    link, answered = connected(server), Answered()
    link._gathered.append(Request(b"", clock() + 0.2, None, None, answered))
    engine.call(link.alarm, clock())  # it is looked at before its time, too
    assert answered.kind() == "silent"
    link._gathered.clear()


class Interrupted(BaseException):
    """Raised by a signal handler."""


@pytest.mark.parametrize("pushes", [True, False], ids=["messages between replies", "messages on their own"])
def test_what_a_signal_handler_breaks_is_told_apart(
    server: Server, peer: Peer, engine: Engine, monkeypatch: pytest.MonkeyPatch, pushes: bool
) -> None:
    ends: list[bool] = []
    server.on_deaf = ends.append
    link = connected(server)
    link.pushes = pushes
    with_messages(server, peer, engine)
    assert (server._inbox is None) == pushes

    def interrupted() -> None:
        raise Interrupted

    monkeypatch.setattr(link, "_write_some", interrupted)
    with pytest.raises(Interrupted):
        link.ask(Ask(ALONE, "t", clock() + 20.0))
    eventually(lambda: ends, "it is told")
    assert ends == [True]


def test_while_messages_may_come_everything_is_read_at_once(
    server: Server, peer: Peer, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "LIE_S", 3_600.0)
    subscribed = Answered()
    peer.answer = lambda words: SUBSCRIBED if words[0] == b"SUBSCRIBE" else b":1\r\n"
    engine.call(server.subscribe, "SUBSCRIBE", "c", 20.0, subscribed)
    subscribed.wait()
    assert told(server.link).wait() == (1, None)


def reads_of(link: Any) -> list[None]:
    """How often the engine reads by that link from now on, one entry each."""
    found: list[None] = []
    read = link._read

    def counted() -> None:
        found.append(None)
        read()

    link._read = counted
    return found


def with_messages(server: Server, peer: Peer, engine: Engine) -> list[Any]:
    """Have it subscribe; returns the messages that come."""
    found: list[Any] = []
    server.on_message = found.append
    peer.answer = lambda words: SUBSCRIBED if words[0] == b"SUBSCRIBE" else GRANTED
    subscribed = Answered()
    engine.call(server.subscribe, "SUBSCRIBE", "c", 20.0, subscribed)
    assert subscribed.wait()[1] is None
    return found


def ask_many(link: Any, count: int) -> list[Any]:
    return [link.ask(Ask(ALONE, f"t{number}", clock() + 20.0)) for number in range(count)]


def in_a_thread(act: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(act).result(20)


def test_a_thread_reads_for_itself_though_messages_may_come(server: Server, peer: Peer, engine: Engine) -> None:
    found = with_messages(server, peer, engine)
    reads = reads_of(server.link)
    assert in_a_thread(lambda: ask_many(server.link, 20)) == [([1, 7], None)] * 20
    assert not reads, "the engine has read"
    assert server.link._armed, "it does not read now either"
    peer.say(MESSAGE)
    eventually(lambda: found, "the message")
    assert reads and found == [[b"message", b"c", b"hello"]]


def test_a_message_before_the_reply_of_a_thread_is_heard(server: Server, peer: Peer, engine: Engine) -> None:
    found = with_messages(server, peer, engine)
    peer.answer = lambda words: MESSAGE + GRANTED
    assert asked(server).wait() == ([1, 7], None)
    eventually(lambda: found, "the message")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_message_that_cannot_be_heard_costs_no_reply(server: Server, peer: Peer, engine: Engine) -> None:
    with_messages(server, peer, engine)

    def hear(message: Reply) -> None:
        raise ZeroDivisionError("shown")

    server.on_message = hear
    peer.answer = lambda words: MESSAGE + GRANTED
    answered = Answered()
    engine.call(server.send, Request(pack_command(("GET", "a")), clock() + 20.0, None, None, answered))
    assert answered.wait() == ([1, 7], None)


def test_a_reader_that_a_handler_holds_up_is_passed_by(server: Server, peer: Peer, engine: Engine) -> None:
    """Messages may lie there. Those that wait for some are told that none come any more, and look for themselves."""
    with_messages(server, peer, engine)
    peer.answer = lambda words: None
    told = threading.Event()
    link: Any = server.link
    link.on_deaf = lambda is_torn: told.set()
    in_time: list[bool] = []
    before = signal.signal(signal.SIGALRM, lambda *_: in_time.append(told.wait(5.0)))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        _, failure = link.ask(Ask(ALONE, "t", clock() + 20.0))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert in_time == [True] and failure.kind == "broken"


def stands_at(server: Server, for_s: float = 20.0) -> tuple[Standing, Answered]:
    """Have a thread stand there, and return what it stands by, and what its request is answered with once it leaves."""
    standing, answered = Standing(KEYS.lock, clock() + for_s - SOON_S, silent_bell(), ring), Answered()

    def wakes(_message: Reply) -> bool:
        standing.came.append(Wake(Wake.GRANT, 7, 2_000))
        standing.ring(standing.bell)
        return True

    server.wakes = wakes

    def run() -> None:
        outcome = server.link.ask(Ask(ALONE, "t", clock() + 20.0), standing)
        assert outcome is not None, "there is no connection"
        answered(*outcome)

    threading.Thread(target=run, name="asker", daemon=True).start()
    eventually(lambda: standing.waits, "it stands there")
    return standing, answered


def test_who_stands_reads_its_message(server: Server, peer: Peer, engine: Engine) -> None:
    with_messages(server, peer, engine)
    peer.answer = lambda words: QUEUED
    reads = reads_of(server.link)
    _, answered = stands_at(server)
    peer.say(MESSAGE)
    assert answered.wait()[1] is None
    assert not reads, "the engine has read"
    eventually(lambda: server.link._armed, "the engine reads what comes now")


def test_others_are_answered_while_one_stands(server: Server, peer: Peer, engine: Engine) -> None:
    with_messages(server, peer, engine)
    peer.answer = lambda words: QUEUED
    reads = reads_of(server.link)
    standing, answered = stands_at(server)
    peer.answer = lambda words: GRANTED
    assert in_a_thread(lambda: ask_many(server.link, 3)) == [([1, 7], None)] * 3
    assert command(server, "GET", "a").wait() == ([1, 7], None)
    assert not (reads or standing.came or answered.over)
    peer.say(MESSAGE)
    assert answered.wait()[1] is None


def test_one_that_stands_leaves_in_time(server: Server, peer: Peer, engine: Engine) -> None:
    with_messages(server, peer, engine)
    peer.answer = lambda words: QUEUED
    standing, answered = stands_at(server, 0.2)
    assert answered.wait()[1] is None
    assert clock() >= standing.asked_at + SOON_S and not standing.came
    assert ask_many(server.link, 1)[0][1] is None


def test_the_engine_reads_where_one_that_would_stand_is_not_answered(
    server: Server, peer: Peer, engine: Engine
) -> None:
    with_messages(server, peer, engine)
    peer.answer = lambda words: None
    link: Any = server.link
    watch, armed = link._watch, list[bool]()

    def watched(wanted: bool) -> None:
        armed.append(wanted)
        watch(wanted)

    link._watch = watched
    standing = Standing(KEYS.lock, clock(), silent_bell(), ring)
    _, failure = link.ask(Ask(ALONE, "t", clock() + 0.05), standing)
    assert failure.kind == "silent"
    assert armed[-1], "not only once the engine looks after readers"


def test_one_that_stands_beside_a_reader_is_woken(server: Server, peer: Peer, engine: Engine) -> None:
    with_messages(server, peer, engine)
    peer.answer = lambda words: QUEUED
    (reader, read), (other, answered) = stands_at(server), stands_at(server)
    peer.say(MESSAGE)  # for the other one
    assert answered.wait()[1] is None and other.came
    assert not read.over
    reader.came.append(Wake(Wake.ASK))
    assert read.wait()[1] is None, "it looks, though no one rings for who reads"


def test_the_first_that_stands_reads(server: Server, peer: Peer, engine: Engine) -> None:
    """The next message is likely to be its own; another one that has just asked leaves the reading to it."""
    with_messages(server, peer, engine)
    peer.answer = lambda words: QUEUED
    link: Any = server.link
    (reader, read), before = stands_at(server), set(threading.enumerate())
    stands_at(server)
    (second,) = set(threading.enumerate()) - before
    reader.came.append(Wake(Wake.ASK))
    assert read.wait()[1] is None
    eventually(lambda: link._armed, "the engine reads, as no one asks")
    reads = reads_of(link)
    third, answered = stands_at(server)
    eventually(lambda: link._reading.get("") == (second.ident,))
    peer.say(MESSAGE)
    assert answered.wait()[1] is None and third.came
    assert not reads, "the engine has read"


def test_the_engine_reads_where_the_first_that_stands_is_held_up(server: Server, peer: Peer, engine: Engine) -> None:
    found = with_messages(server, peer, engine)
    peer.answer = lambda words: QUEUED
    server.link._standers[Standing(KEYS.lock, clock(), silent_bell(), ring)] = None
    standing, answered = stands_at(server)
    peer.say(MESSAGE)
    eventually(lambda: found, "the engine has read")
    assert clock() < standing.asked_at + SOON_S, "while it stands"
    standing.came.append(Wake(Wake.ASK))
    ring(standing.bell)
    assert answered.wait()[1] is None


def test_one_that_stands_where_no_message_comes_is_woken(server: Server, peer: Peer) -> None:
    """By another connection."""
    connected(server)
    peer.answer = lambda words: QUEUED
    standing, answered = stands_at(server)
    server.wakes(None)
    assert answered.wait()[1] is None and clock() < standing.asked_at + SOON_S


class _Interrupting(dict[Any, None]):
    """A signal handler raises before anything is removed, once."""

    done = False

    def pop(self, *what: Any) -> Any:
        if not self.done:
            self.done = True
            raise ZeroDivisionError
        return super().pop(*what)


def test_one_that_is_interrupted_as_it_leaves_stands_there_no_more(server: Server, peer: Peer, engine: Engine) -> None:
    """Else it would be the first one, for which all that come later leave the reading to the engine."""
    with_messages(server, peer, engine)
    peer.answer = lambda words: QUEUED
    link: Any = server.link
    link._standers = standers = _Interrupting()
    standing = Standing(KEYS.lock, clock(), silent_bell(), ring)
    with pytest.raises(ZeroDivisionError):
        link.ask(Ask(ALONE, "t", clock() + 20.0), standing)
    assert standers.done and not standers


def test_one_that_stands_leaves_with_the_connection(server: Server, peer: Peer, engine: Engine) -> None:
    with_messages(server, peer, engine)
    peer.answer = lambda words: QUEUED
    standing, answered = stands_at(server)
    standings = Standings(t=standing)
    server.link.on_deaf = lambda is_torn: standings.wake_all()
    peer.hang_up()
    assert answered.wait()[1] is None, "its request was answered"
    assert [wake.kind for wake in standing.came] == [Wake.ASK]


def test_the_engine_looks_after_readers_only_while_there_are_some(server: Server, peer: Peer, engine: Engine) -> None:
    with_messages(server, peer, engine)
    link: Any = server.link
    looks, guard = list[Any](), link._guard

    def look(*of: Any) -> None:
        looks.append(of)
        guard(*of)

    link._guard = look
    assert ask_many(link, 3) == [([1, 7], None)] * 3
    eventually(lambda: looks)
    eventually(lambda: not link._guarded, "it has stopped")
    assert not server.link.is_torn


@pytest.mark.parametrize("way", ["reads", "waits for nothing"])
def test_the_engine_looks_after_what_goes_on_wherever_a_handler_has_raised(
    server: Server, peer: Peer, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it seemed about to look for good, it would never be told again."""
    monkeypatch.setattr(links, "GUARD_S", 0.002)
    monkeypatch.setattr(links, "LIE_S", 0.002)
    peer.answer = lambda words: b"+OK\r\n" if words == [b"PING"] else GRANTED
    interrupted = 0

    def asks(link: Any) -> Callable[[], object]:
        link._subscribes = way == "reads"
        eventually(lambda: not (link._guarded or link._ticks), "it has looked")
        ask = Ask(ALONE, "t", clock() + 20.0)
        return partial(link.ask if way == "reads" else link.put, ask)

    def strike(_frame: Any) -> None:
        raise ZeroDivisionError

    places = bytecodes_of(asks(connected(server)))
    assert any(place.code is Engine.call.__code__ for place in places)
    for number in places_once(places):
        code, offset, _ = places[number]
        if code.co_code[offset] == dis.opmap["NOP"]:
            continue  # before a `try`, where no signal comes
        link = connected(server)
        try:
            at_bytecode(number, strike, asks(link))
        except ZeroDivisionError:
            interrupted += 1
        eventually(lambda link=link: not (link._guarded or link._ticks), "it has looked")  # type: ignore[misc]
    assert interrupted > len(places) / 4


def test_the_engine_reads_where_a_reader_has_just_left(server: Server, peer: Peer, engine: Engine) -> None:
    found = with_messages(server, peer, engine)
    link, watch = server.link, server.link._watch

    def leaving(armed: bool) -> None:
        link._reading.clear()
        watch(armed)

    def read() -> None:
        link._reading[""], link._watch = (0,), leaving
        link._read()
        del link._watch

    on_engine(engine, read)
    assert link._armed
    peer.say(MESSAGE)
    eventually(lambda: found, "the message")


def test_of_two_threads_that_change_what_is_watched_the_last_counts(server: Server, engine: Engine) -> None:
    link, watched = connected(server), list[int]()

    def watch(_fd: int, mask: int) -> None:
        watched.append(mask)
        link._armed = True  # as by another thread

    link._engine = SimpleNamespace(watch=watch)
    try:
        link._watch(False)
    finally:
        link._engine = engine
    assert watched == [0, READ]


# ---- event loops that read ----


def test_an_event_loop_reads_though_messages_may_come(server: Server, peer: Peer, engine: Engine) -> None:
    found = with_messages(server, peer, engine)
    link = server.link
    with on_engine(engine, link.watched) as twin:
        reads = reads_of(link)
        answered = Answered()
        link.put_all([lying(lambda ask: answered(*outcome(ask)))])
        assert select.select([twin], [], [], 20)[0]
        link.read_here()
        assert answered.wait() == ([1, 7], None) and not reads
        peer.say(MESSAGE)
        eventually(lambda: found, "the message")
        assert reads
        link.put_all([lying(found.append)])
        eventually(lambda: len(found) > 1, "where the loop does not read, the engine does")


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("count", [1, 3])
def test_an_event_loop_reads_what_the_engine_is_late_for(
    server: Server, peer: Peer, engine: Engine, count: int
) -> None:
    """One request, or several that are one."""
    link = connected(server)
    peer.answer = lambda words: b"*3\r\n:7\r\n:8\r\n:9\r\n" if words[1] == SHA_OF_EACH else GRANTED
    asks = [Ask(FIRST, f"t{number}", clock() + 20.0) for number in range(count)]
    is_late, goes_on = threading.Event(), threading.Event()

    def be_late() -> None:
        is_late.set()
        goes_on.wait(20.0)

    with on_engine(engine, link.watched) as twin:
        on_engine(engine, lambda: link._watch(True))
        engine.call(be_late)
        try:
            assert is_late.wait(20.0)
            link.put_all(asks)
            assert select.select([twin], [], [], 20)[0]
            link.read_here()
            assert [ask.outcome for ask in asks] == [([1, 7 + number], None) for number in range(count)]
        finally:
            goes_on.set()


def test_an_event_loop_that_watches_hears_of_the_end(server: Server, peer: Peer, engine: Engine) -> None:
    """The loop's copy of the socket would keep the connection open, and be left behind."""
    link = connected(server)
    with on_engine(engine, link.watched) as twin:
        twin.settimeout(20)
        engine.call(link.close)
        assert twin.recv(1) == b""
    assert link.watched() is None


def test_what_an_event_loop_asks_while_there_is_no_connection_is_kept_though_its_list_is_not() -> None:
    """The loop empties its list at once, and the engine looks at it later."""
    submitted: list[tuple[Any, ...]] = []
    loop: Any = SimpleNamespace(call=lambda *act: submitted.append(act))
    server = Server(loop, "s0", lambda: None)
    asked = object()
    asks = [asked]
    server.put_all(asks)
    asks.clear()
    assert submitted == [(server.take_over, [asked])]


# ---- what blocks ----


def taken(server: Server, count: int) -> list[Any]:
    """Return that many connections for what blocks, each of which has had an answer."""
    engine = server.engine
    found: list[Any] = []
    answers: list[Answered] = []
    for _ in range(count):
        link, answered = on_engine(engine, server.private), Answered()
        request = Request(pack_command(("GET", "a")), clock() + 20.0, None, None, answered)
        engine.call(link.send, request)
        found.append(link)
        answers.append(answered)
    assert [answered.wait() for answered in answers] == [(b"OK", None)] * count
    return found


def done(engine: Engine, act: Callable[..., None], *args: Any) -> None:
    """Have the engine do it."""
    engine.call(act, *args)
    on_engine(engine, lambda: True)


def test_of_many_idle_connections_some_are_kept(server: Server) -> None:
    """A crowd of transactions at once left as many connections for as long as the client was there."""
    links = taken(server, SPARES_MAX + 5)
    for link in links:
        done(server.engine, server.give, link)
    eventually(lambda: len(server._all) == SPARES_MAX, "the others are closed")
    assert on_engine(server.engine, server.private) in links


def test_idle_connections_go_with_the_shared_one(server: Server) -> None:
    """Where that has ended, or hangs, they would cost each request its time, or lead to a server that was replaced."""
    connected(server)
    idle, used = taken(server, 2)
    done(server.engine, server.give, idle)
    done(server.engine, server.reconnect)
    eventually(lambda: idle.ended, "the idle one is closed")
    assert not used.ended
    done(server.engine, server.give, used)
    eventually(lambda: used.ended, "so is the one that was in use, when it is returned")
    assert on_engine(server.engine, server.private) not in (idle, used)


def test_idle_connections_go_with_one_that_fails_while_it_is_used(server: Server) -> None:
    idle, used = taken(server, 2)
    done(server.engine, server.give, idle)
    done(server.engine, used.retire)
    eventually(lambda: idle.ended and used.ended, "both are closed")
