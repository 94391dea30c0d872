"""The multiplexed connection and the driver on it, against a server that does exactly what a test says."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import hiredis
import pytest
import redis.asyncio

from holdfast._core.effects import (
    AwaitWake,
    Call,
    CallMany,
    Command,
    Listen,
    Now,
    Protocol,
    Reply,
    Sleep,
    Spawn,
    Unlisten,
    Wake,
)
from holdfast._core.failure import RequestFailed
from holdfast._core.record import LeaseRecord, LeaseState
from holdfast._drivers.aio import AioDriver
from holdfast._lua import SCRIPTS
from holdfast._transport import aio, connection_aio, inbox_aio, mailbox_aio
from holdfast._transport.aio import node_of_client
from holdfast._transport.clock import clock
from holdfast._transport.single import SingleTopology

PATIENCE_S = 20.0

Answer = bytes | None
Wire = asyncio.StreamWriter


class Fake:
    """A server: `answer(words, wire)` gives the bytes to reply with, None for silence."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[list[bytes]] = []
        self.reads: list[int] = []  # requests in one read
        self.wires: list[Wire] = []
        self.answer: Callable[[list[bytes], Wire], Answer] = lambda words, wire: b":1\r\n"
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, str(self.path))

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for wire in self.wires:
            wire.close()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, wire: Wire) -> None:
        self.wires.append(wire)
        parser = hiredis.Reader()
        try:
            while data := await reader.read(1 << 20):
                parser.feed(data)
                count = 0
                while (words := parser.gets()) is not False:
                    if words[0] in (b"CLIENT", b"SELECT"):
                        wire.write(b"+OK\r\n")
                        continue
                    count += 1
                    self.asked.append(words)
                    answer = self.answer(words, wire)
                    if answer is not None:
                        wire.write(answer)
                if count:
                    self.reads.append(count)
        except OSError:
            pass

    @property
    def verbs(self) -> list[bytes]:
        return [words[0] for words in self.asked]


Test = Callable[[Fake, AioDriver], Awaitable[None]]

CHANNEL = b"holdfast:inbox:" + b"c" * 24
SUBSCRIBED = b"*3\r\n$9\r\nsubscribe\r\n$39\r\n%b\r\n:1\r\n" % CHANNEL


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Test], None]:
    """Run a test with a fake server and a driver; nothing may be left running after it."""

    async def main(test: Test) -> None:
        fake = Fake(tmp_path / "s")
        await fake.start()
        client = redis.asyncio.Redis(unix_socket_path=str(fake.path), protocol=2)
        driver = AioDriver(SingleTopology(node_of_client(client)), "c" * 24, "holdfast:inbox:")
        try:
            async with asyncio.timeout(PATIENCE_S * 2):
                await test(fake, driver)
        finally:
            await driver.close()
            await fake.stop()
        assert len(asyncio.all_tasks()) <= 1 + len(fake.wires), "a task of the driver was left behind"

    return lambda test: asyncio.run(main(test))


class Speaking:
    """How a server that speaks RESP2 or RESP3 introduces itself, and what it sends unasked."""

    def __init__(self, resp: int) -> None:
        self.resp = resp
        self.begin = b">" if resp == 3 else b"*"

    def answer(self, words: list[bytes]) -> bytes | None:
        if words[0] == b"HELLO":
            return b"%1\r\n$5\r\nproto\r\n:3\r\n" if self.resp == 3 else b"-NOPROTO unsupported protocol version\r\n"
        if words[0] == b"SUBSCRIBE":
            assert words[1] == CHANNEL
            return self.begin + SUBSCRIBED[1:]
        return None

    def message(self, text: bytes) -> bytes:
        return self.begin + b"3\r\n$7\r\nmessage\r\n$39\r\n%b\r\n$%d\r\n%b\r\n" % (CHANNEL, len(text), text)


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def speaking(request: pytest.FixtureRequest) -> Speaking:
    return Speaking(request.param)


def call(token: str = "t", request_timeout_s: float = PATIENCE_S, sync: tuple[int, int] | None = None) -> Call:
    return Call("cond_notify", ("{k}", "{k}:f", "{k}:q", "{k}:g"), (token, 1, 2, "i:", 0), request_timeout_s, sync=sync)


async def protocol(effect: Any) -> Any:
    return await effect


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


# ---------------------------------------------------------------------- requests and replies


def test_replies_find_their_requests_and_share_writes(play: Callable[[Test], None]) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        fake.answer = lambda words, wire: b":%d\r\n" % int(words[7])
        await driver.run(protocol(call("0")))
        fake.reads.clear()
        replies = await asyncio.gather(*(driver.run(protocol(call(str(number)))) for number in range(500)))
        assert replies == list(range(500))
        assert sum(fake.reads) == 500
        assert len(fake.reads) < 50, "requests of one turn were not written together"
        assert len(fake.wires) == 1

    play(test)


def test_a_script_that_is_not_known_is_loaded_once_for_all(play: Callable[[Test], None]) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        known = False

        def answer(words: list[bytes], wire: Wire) -> Answer:
            nonlocal known
            if words[:2] == [b"SCRIPT", b"LOAD"]:
                assert words[2].decode() == SCRIPTS["cond_notify"].text
                known = True
                return b"$40\r\n%b\r\n" % SCRIPTS["cond_notify"].sha.encode()
            if words[0] == b"EVALSHA" and not known:
                return b"-NOSCRIPT No matching script.\r\n"
            return b":%d\r\n" % int(words[7])

        fake.answer = answer
        replies = await asyncio.gather(*(driver.run(protocol(call(str(number)))) for number in range(50)))
        assert replies == list(range(50))
        assert fake.verbs.count(b"SCRIPT") == 1
        assert fake.verbs.count(b"EVAL") == 1
        known = False
        assert await driver.run(protocol(call("7"))) == 7

    play(test)


def test_a_user_who_may_not_load_scripts(play: Callable[[Test], None]) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        def answer(words: list[bytes], wire: Wire) -> Answer:
            if words[0] == b"SCRIPT":
                return b"-NOPERM no permission for 'script|load'\r\n"
            return b"-NOSCRIPT No matching script.\r\n" if words[0] == b"EVALSHA" else b":5\r\n"

        fake.answer = answer
        assert await driver.run(protocol(call())) == 5
        assert await driver.run(protocol(call())) == 5

    play(test)


def test_a_refusal_is_trouble_with_its_word(play: Callable[[Test], None]) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        fake.answer = lambda words, wire: b"-OOM command not allowed\r\n"
        with pytest.raises(RequestFailed) as caught:
            await driver.run(protocol(call()))
        assert (caught.value.kind, caught.value.maybe_executed, caught.value.transient) == ("OOM", False, False)

    play(test)


def test_a_former_master_gets_no_more_requests(play: Callable[[Test], None]) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        fake.answer = lambda words, wire: b"-READONLY You can't write against a read only replica.\r\n"
        with pytest.raises(RequestFailed) as caught:
            await driver.run(protocol(call()))
        assert caught.value.transient
        fake.answer = lambda words, wire: b":1\r\n"
        assert await driver.run(protocol(call())) == 1
        assert len(fake.wires) == 2, "the next request must ask again who the master is"

    play(test)


def test_silence_ends_in_time_and_a_late_reply_is_dropped(
    play: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "SILENCE_S", 1000.0)  # however slow this machine is: the connection stays

    async def test(fake: Fake, driver: AioDriver) -> None:
        await driver.run(protocol(call("first")))  # connecting takes a part of its time, too
        fake.answer = lambda words, wire: None
        with pytest.raises(RequestFailed) as caught:
            await driver.run(protocol(call("quiet", request_timeout_s=0.05)))
        assert (caught.value.kind, caught.value.maybe_executed, caught.value.transient) == ("silent", True, True)
        waiting = asyncio.create_task(driver.run(protocol(call("next"))))
        await until(lambda: len(fake.asked) == 3)
        fake.wires[0].write(b":99\r\n:3\r\n")
        assert await waiting == 3

    play(test)


def test_a_connection_that_stays_silent_gets_no_more_requests(
    play: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "SILENCE_S", 0.05)

    async def test(fake: Fake, driver: AioDriver) -> None:
        fake.answer = lambda words, wire: None if wire is fake.wires[0] else b":1\r\n"
        with pytest.raises(RequestFailed):
            await driver.run(protocol(call(request_timeout_s=0.1)))
        assert await driver.run(protocol(call())) == 1
        assert len(fake.wires) == 2

    play(test)


def test_a_broken_connection_says_what_may_have_been_done(play: Callable[[Test], None]) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        await driver.run(protocol(call()))

        def answer(words: list[bytes], wire: Wire) -> Answer:
            wire.transport.abort()
            return None

        fake.answer = answer
        with pytest.raises(RequestFailed) as caught:
            await driver.run(protocol(call()))
        assert (caught.value.kind, caught.value.maybe_executed, caught.value.transient) == ("broken", True, True)
        fake.answer = lambda words, wire: b":1\r\n"
        assert await driver.run(protocol(call())) == 1

    play(test)


def test_an_answer_that_makes_no_sense_ends_the_connection(play: Callable[[Test], None]) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        fake.answer = lambda words, wire: b"HTTP/1.1 400 Bad Request\r\n\r\n"
        with pytest.raises(RequestFailed) as caught:
            await driver.run(protocol(call()))
        assert (caught.value.kind, caught.value.maybe_executed, caught.value.transient) == ("nonsense", True, False)

    play(test)


def test_a_server_that_hangs_up_after_the_handshake(play: Callable[[Test], None]) -> None:
    """Whichever task reads at that moment, requests do not wait for an end that was seen already."""

    async def test(fake: Fake, driver: AioDriver) -> None:
        hang_up = True
        make = connection_aio.connect

        async def connect(*args: Any) -> Any:
            connection = await make(*args)
            if hang_up:
                fake.wires[-1].close()
                await until(connection._reader.at_eof)
            return connection

        with pytest.MonkeyPatch.context() as patch:
            for module in (aio, inbox_aio):
                patch.setattr(module, "connect", connect)
            for effect in (call(), Listen("t", "k", PATIENCE_S)):
                with pytest.raises(RequestFailed) as caught:
                    await driver.run(protocol(effect))
                assert (caught.value.kind, caught.value.maybe_executed, caught.value.transient) == (
                    "broken",
                    False,
                    True,
                )
            hang_up = False
            assert await driver.run(protocol(call())) == 1

    play(test)


def test_nobody_listens_there(tmp_path: Path) -> None:
    async def main() -> None:
        client = redis.asyncio.Redis(unix_socket_path=str(tmp_path / "none"), protocol=2)
        driver = AioDriver(SingleTopology(node_of_client(client)), "c" * 24, "holdfast:inbox:")
        for _ in range(2):
            with pytest.raises(RequestFailed) as caught:
                await driver.run(protocol(call()))
            assert (caught.value.kind, caught.value.maybe_executed, caught.value.transient) == ("refused", False, True)
        await driver.close()

    asyncio.run(main())


def test_a_server_that_accepts_and_says_nothing(tmp_path: Path) -> None:
    """Not connected in time: nothing was sent, and nothing is sent later."""

    async def main() -> None:
        said = bytearray()

        async def serve(reader: asyncio.StreamReader, writer: Wire) -> None:
            said.extend(await reader.read(65536))
            await reader.read()
            writer.close()

        server = await asyncio.start_unix_server(serve, str(tmp_path / "s"))
        client = redis.asyncio.Redis(unix_socket_path=str(tmp_path / "s"), protocol=2)
        driver = AioDriver(SingleTopology(node_of_client(client)), "c" * 24, "holdfast:inbox:")
        with pytest.raises(RequestFailed) as caught:
            await driver.run(protocol(call(request_timeout_s=0.05)))
        assert (caught.value.kind, caught.value.maybe_executed, caught.value.transient) == ("refused", False, True)
        assert b"EVALSHA" not in said
        await driver.close()
        server.close()

    asyncio.run(main())


def test_a_request_whose_asker_left_before_it_was_sent_is_not_sent(play: Callable[[Test], None]) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        leaving = asyncio.create_task(driver.run(protocol(call("left"))))
        staying = asyncio.create_task(driver.run(protocol(call("stayed"))))
        await asyncio.sleep(0)
        leaving.cancel()
        await staying
        assert [words[7] for words in fake.asked] == [b"stayed"]

    play(test)


def test_wait_goes_right_behind_its_script(play: Callable[[Test], None]) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        known = False

        def answer(words: list[bytes], wire: Wire) -> Answer:
            nonlocal known
            if words[0] == b"EVALSHA" and not known:
                return b"-NOSCRIPT No matching script.\r\n"
            known = True
            return b":2\r\n" if words[0] == b"WAIT" else b":7\r\n"

        fake.answer = answer
        assert await driver.run(protocol(call(sync=(2, 100)))) == (7, 2)
        assert fake.verbs == [b"EVALSHA", b"WAIT", b"EVAL", b"WAIT"]
        assert fake.asked[-1] == [b"WAIT", b"2", b"100"]

    play(test)


def test_a_session_has_its_connection_for_itself(play: Callable[[Test], None]) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        async def say(*words: str, session: str | None = None) -> Reply:
            return await driver.run(protocol(Command(words, PATIENCE_S, key="k", session=session)))

        by_wire: dict[bytes, list[bytes]] = {}

        def answer(words: list[bytes], wire: Wire) -> Answer:
            by_wire.setdefault(b"%d" % id(wire), []).append(words[0])
            return b"+OK\r\n"

        fake.answer = answer
        await say("WATCH", "k", session="a")
        await say("GET", "k")
        await say("MULTI", session="a")
        await say("EXEC", session="a")
        await say("WATCH", "k", session="b")
        await say("UNWATCH", session="b")
        assert sorted(by_wire.values()) == [[b"GET"], [b"WATCH", b"MULTI", b"EXEC", b"WATCH", b"UNWATCH"]]

    play(test)


# ---------------------------------------------------------------------- the driver


def test_a_cancellation_is_thrown_in_and_cleaned_up_after(play: Callable[[Test], None]) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        seen: list[str] = []

        async def background() -> None:
            await Call("cond_notify", ("k",), ("given back",), PATIENCE_S)
            seen.append("background")

        async def patient() -> None:
            try:
                await Listen("t", "k", PATIENCE_S)
                await AwaitWake("t", PATIENCE_S)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
            finally:
                await Unlisten("t")
                await Spawn(background())
                seen.append("cleaned up")

        fake.answer = lambda words, wire: SUBSCRIBED if words[0] == b"SUBSCRIBE" else b":1\r\n"
        task = asyncio.create_task(driver.run(patient()))
        await until(lambda: driver.listening("k"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == ["cancelled", "cleaned up"]
        await driver.settle(PATIENCE_S)
        assert seen[-1] == "background"

    play(test)


def test_what_is_spawned_is_sent_before_the_loop_ends(tmp_path: Path) -> None:
    """`asyncio.run` cancels what is left; a give-back has left the process by then."""
    asked: list[list[bytes]] = []

    async def main() -> None:
        fake = Fake(tmp_path / "s")
        await fake.start()
        client = redis.asyncio.Redis(unix_socket_path=str(fake.path), protocol=2)
        driver = AioDriver(SingleTopology(node_of_client(client)), "c" * 24, "holdfast:inbox:")
        await driver.run(protocol(call("first")))

        async def give_back() -> None:
            await call("given back")

        async def leaver() -> None:
            await Spawn(give_back())

        await driver.run(leaver())
        for task in driver.background.tasks:
            task.cancel()  # as at the end of asyncio.run, before it had a turn of its own
        await until(lambda: len(fake.asked) == 2)
        asked.extend(fake.asked)
        await driver.close()
        await fake.stop()

    asyncio.run(main())
    assert [words[7] for words in asked] == [b"first", b"given back"]


def test_wake_ups_are_kept_and_a_grant_beats_a_hint(play: Callable[[Test], None], speaking: Speaking) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        message = speaking.message
        fake.answer = lambda words, wire: speaking.answer(words) or b":1\r\n"
        await driver.run(protocol(Listen("a", "k", PATIENCE_S)))
        await driver.run(protocol(Listen("b", "k", PATIENCE_S)))
        assert len(fake.wires) == (1 if speaking.resp == 3 else 2), "RESP3: one connection for all"
        wire = fake.wires[-1]
        wire.write(message(b"grant a 17") + message(b"ask a") + message(b"grant unknown 3") + message(b"rubbish"))
        wire.write(message(b"ask b"))
        got = await driver.run(protocol(AwaitWake("b", PATIENCE_S)))
        assert got is not None and got.kind == Wake.ASK
        got = await driver.run(protocol(AwaitWake("a", 0.0)))
        assert got is not None and (got.kind, got.fence) == (Wake.GRANT, 17)
        assert await driver.run(protocol(AwaitWake("a", 0.01))) is None
        # A broken inbox wakes everyone, and the next Listen opens it again.
        waiting = asyncio.create_task(driver.run(protocol(AwaitWake("a", PATIENCE_S))))
        await asyncio.sleep(0)
        wire.transport.abort()
        got = await waiting
        assert got is not None and got.kind == Wake.ASK
        assert not driver.listening("k")
        await driver.run(protocol(Listen("a", "k", PATIENCE_S)))
        assert driver.listening("k")
        await driver.run(protocol(Unlisten("a")))

    play(test)


@pytest.mark.parametrize("share", [1, 2, 7, 1000])
def test_pushes_come_between_replies_and_in_pieces(play: Callable[[Test], None], share: int) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        speaking = Speaking(3)

        def answer(words: list[bytes], wire: Wire) -> Answer:
            told = speaking.answer(words)
            if told is not None:
                return told
            data = speaking.message(b"ask b") + b":1\r\n" + speaking.message(b"grant a 17 2000")
            for at in range(0, len(data), share):
                wire.write(data[at : at + share])
            return None

        fake.answer = answer
        for token in "ab":
            await driver.run(protocol(Listen(token, "k", PATIENCE_S)))
        for _ in range(3):
            assert await driver.run(protocol(call())) == 1
            wake = await driver.run(protocol(AwaitWake("a", PATIENCE_S)))
            assert wake is not None and (wake.kind, wake.fence, wake.claim_ms) == (Wake.GRANT, 17, 2000)
        assert len(fake.wires) == 1 and driver.listening("k")

    play(test)


def test_a_connection_that_ends_with_requests_under_way_is_an_end_of_the_inbox(play: Callable[[Test], None]) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        fake.answer = lambda words, wire: Speaking(3).answer(words)
        await driver.run(protocol(Listen("a", "k", PATIENCE_S)))
        waiting = asyncio.create_task(driver.run(protocol(AwaitWake("a", PATIENCE_S))))
        asking = asyncio.create_task(driver.run(protocol(call())))
        await until(lambda: b"EVALSHA" in fake.verbs)
        fake.wires[0].transport.abort()
        wake = await waiting
        assert wake is not None and wake.kind == Wake.ASK
        with pytest.raises(RequestFailed):
            await asking
        await driver.run(protocol(Listen("a", "k", PATIENCE_S)))
        assert driver.listening("k") and len(fake.wires) == 2

    play(test)


@pytest.mark.parametrize("surplus", [b":1\r\n", b"?what\r\n", b"*1\r\n:1\r\n", b"$-7\r\n"])
@pytest.mark.parametrize("is_asked", [True, False])
def test_nonsense_between_pushes_ends_the_connection(
    play: Callable[[Test], None], surplus: bytes, is_asked: bool
) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        fake.answer = lambda words, wire: Speaking(3).answer(words) or b":1\r\n" + surplus
        await driver.run(protocol(Listen("a", "k", PATIENCE_S)))
        waiting = asyncio.create_task(driver.run(protocol(AwaitWake("a", PATIENCE_S))))
        if is_asked:
            with pytest.raises(RequestFailed) as caught:
                await driver.run(protocol(call()))
            assert caught.value.kind == "nonsense"
        else:
            fake.wires[0].write(surplus)
        wake = await waiting
        assert wake is not None and wake.kind == Wake.ASK and not driver.listening("k")

    play(test)


def test_a_connection_that_is_replaced_is_an_end_of_the_inbox(play: Callable[[Test], None]) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        def answer(words: list[bytes], wire: Wire) -> Answer:
            return Speaking(3).answer(words) or b"-READONLY You can't write against a read only replica.\r\n"

        fake.answer = answer
        await driver.run(protocol(Listen("a", "k", PATIENCE_S)))
        with pytest.raises(RequestFailed, match="READONLY"):
            await driver.run(protocol(call()))
        wake = await driver.run(protocol(AwaitWake("a", PATIENCE_S)))
        assert wake is not None and wake.kind == Wake.ASK and not driver.listening("k")

    play(test)


def test_a_half_open_inbox_is_found_out(
    play: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch, speaking: Speaking
) -> None:
    monkeypatch.setattr(inbox_aio, "INBOX_QUIET_S", -1.0)
    monkeypatch.setattr(mailbox_aio, "INBOX_QUIET_S", -1.0)

    async def test(fake: Fake, driver: AioDriver) -> None:
        fake.answer = lambda words, wire: speaking.answer(words)
        await driver.run(protocol(Listen("a", "k", PATIENCE_S)))
        monkeypatch.setattr(inbox_aio, "INBOX_TIMEOUT_S", 0.05)
        monkeypatch.setattr(mailbox_aio, "INBOX_TIMEOUT_S", 0.05)
        waiting = asyncio.create_task(driver.run(protocol(AwaitWake("a", PATIENCE_S))))
        await driver.run(protocol(Listen("b", "k", PATIENCE_S)))  # relies on it: asks for a sign of life
        got = await waiting
        assert got is not None and got.kind == Wake.ASK
        assert b"PING" in fake.verbs

    play(test)


def test_a_subscription_that_is_refused(play: Callable[[Test], None]) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        fake.answer = lambda words, wire: b"-NOPERM no permission to access the channel\r\n"
        with pytest.raises(RequestFailed) as caught:
            await driver.run(protocol(Listen("a", "k", PATIENCE_S)))
        assert caught.value.kind == "NOPERM"
        fake.answer = lambda words, wire: SUBSCRIBED
        await driver.run(protocol(Listen("a", "k", PATIENCE_S)))

    play(test)


def test_many_calls_end_when_enough_and_the_late_are_looked_at(play: Callable[[Test], None]) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        held: list[Wire] = []
        late: list[tuple[int, Reply]] = []
        spawned = asyncio.Event()

        def answer(words: list[bytes], wire: Wire) -> Answer:
            if words[7] == b"9":
                held.append(wire)
                return None
            return b"-ERR no\r\n" if words[7] == b"0" else b":%d\r\n" % int(words[7])

        async def look() -> None:
            await Now()
            spawned.set()

        def on_late(index: int, reply: Reply) -> Protocol[None] | None:
            late.append((index, reply))
            return look()

        def enough(answers: Sequence[Any]) -> bool:
            return sum(isinstance(each, int) for each in answers) >= 2

        fake.answer = answer
        many = CallMany([call("0"), call("1"), call("2"), call("9")], PATIENCE_S, enough, on_late)
        answers = await driver.run(protocol(many))
        assert isinstance(answers[0], RequestFailed)
        assert answers[1:] == [1, 2, None]
        await until(lambda: held)
        held[0].write(b":9\r\n")
        async with asyncio.timeout(PATIENCE_S):
            await spawned.wait()
        assert late == [(3, 9)]

    play(test)


def test_many_calls_end_when_their_time_is_up(play: Callable[[Test], None]) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        fake.answer = lambda words, wire: None
        assert await driver.run(protocol(CallMany([call(), call()], 0.05))) == [None, None]
        assert await driver.run(protocol(CallMany([], 0.05))) == []

    play(test)


def test_renewals_that_are_due_together_leave_together(play: Callable[[Test], None]) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        renewed = 0

        async def extension(ttl_ms: int) -> bool:
            nonlocal renewed
            reply = await Call("renew", ("k", "o"), ("t", ttl_ms), PATIENCE_S)
            renewed += 1
            return bool(reply == 1)

        def answer(words: list[bytes], wire: Wire) -> bytes:
            if words[1] != SCRIPTS["renew_many"].sha.encode():
                return b":1\r\n"
            leases = int(words[2]) // 2
            return b"*%d\r\n" % leases + leases * b":1\r\n"

        fake.answer = answer

        async def release() -> bool:
            return True

        now = clock()
        holds = [LeaseRecord("n", f"t{number}", 1, 30_000, now, extension, release) for number in range(200)]
        await driver.run(protocol(call()))
        fake.reads.clear()
        for hold in holds:
            driver.watch(hold)
            hold.renew_from = now - 60  # long due
        driver.schedule._plan_at = [now]
        driver._on_time()
        await until(lambda: renewed == 200)
        assert sum(fake.reads) == 4, "sixty with each request"
        assert all(hold.state is LeaseState.HELD for hold in holds)
        for hold in holds:
            driver.unwatch(hold)

    play(test)


def test_a_loss_is_told_at_its_deadline_while_the_renewal_hangs(play: Callable[[Test], None]) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        released = asyncio.Event()
        told: list[str] = []
        hang = True

        async def extension(ttl_ms: int) -> bool:
            while hang:
                await Sleep(0.01)
            return True

        async def release() -> bool:
            released.set()
            return True

        hold = LeaseRecord("n", "t", 1, 300, clock(), extension, release)
        hold.on_loss = told.append
        driver.watch(hold)
        await until(lambda: told)
        assert told == ["expired"]
        assert clock() >= hold.deadline
        hang = False  # now the server says that it was extended: too late to be trusted, so it is given back
        async with asyncio.timeout(PATIENCE_S):
            await released.wait()
        assert hold.state is LeaseState.LOST

    play(test)


def test_a_closed_driver_refuses(play: Callable[[Test], None]) -> None:
    async def test(fake: Fake, driver: AioDriver) -> None:
        await driver.run(protocol(call()))
        await driver.close()
        for effect in (call(), Listen("t", "k", 1.0), Command(("PING",), 1.0)):
            with pytest.raises(RequestFailed) as caught:
                await driver.run(protocol(effect))
            assert caught.value.kind == "closed"
        assert math.isinf(driver._alarm_at) or driver._alarm is None or driver._alarm.cancelled()

    play(test)
