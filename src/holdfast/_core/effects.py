"""The only things a protocol may wait for, and its driver's clock.

Laws: a protocol is an `async def` that awaits effects and other protocols and nothing else; it sees no socket, thread
or event loop, and no clock and no chance but its driver's. A driver performs the effects: it takes each from the
coroutine, does it, and sends the result in (or throws the `RequestFailed`, or the caller's cancellation).

Theory: an effect's `__await__` yields the effect itself, so `coroutine.send` is all that a driver needs,
and the very same protocol runs over threads, over asyncio and in the simulator. Written as coroutines, not
generators, so that a forgotten `await` is a type error.

Drivers owe: an effect that raises cancellation (or KeyboardInterrupt) raises it *into* the protocol at that
effect, and the protocol is driven to its end. `Spawn` never fails and never blocks.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import ContextVar
from types import coroutine
from typing import Any, Generic, TypeAlias, TypeVar

from holdfast._core.failure import RequestFailed

R = TypeVar("R")
Reply: TypeAlias = Any
Protocol: TypeAlias = Coroutine["Effect[Any]", Any, R]


class Driver(typing.Protocol):
    """The driver as a protocol sees it: asked without waiting."""

    def now(self) -> float:
        """Return seconds on the local clock that neither jumps nor stops in suspend."""

    def random(self) -> float:
        """Return a random number in [0, 1)."""

    def listens(self, token: str, key: str) -> bool:
        """Register a token as `Listen` does, where the inbox is open; False where that has to be awaited."""

    def unlisten(self, token: str) -> None:
        """Forget a token that listens; a grant for it that comes later is given back by the reader of the inbox."""


#: What drives the protocol that runs; set by it.
driver: ContextVar[Driver] = ContextVar("driver")


class Effect(Generic[R]):
    """Something a driver does for a protocol; awaiting it gives the result."""

    __slots__ = ()

    def __await__(self) -> Generator[Effect[R], R, R]:
        return (yield self)


@coroutine
def rest_of(protocol: Protocol[R], effect: Effect[Any]) -> Generator[Effect[Any], Any, R]:
    """Go on with a protocol that was begun, and waits for `effect`."""
    try:
        while True:
            try:
                value = yield effect
            except BaseException as raised:
                effect = protocol.throw(raised)
            else:
                effect = protocol.send(value)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def in_turn(first: Protocol[Any], second: Protocol[Any]) -> None:
    """Run two protocols, the second one when the first has ended in whatever way."""
    try:
        await first
    finally:
        await second


class Call(Effect[Reply]):
    """Run a shipped script: `script` is its file's stem, `keys` (a tuple) share a slot, `args` are str, int or bytes.

    `node`: the member of a quorum to ask; None where keys[0] decides. `request_timeout_s`: how long to wait for the
    answer. `sync`: (replicas, timeout_ms) to send WAIT behind it, and the result is then (reply, acked);
    (replicas, timeout_ms, True) sends INFO replication, too, and the result is (reply, acked, its text).
    Replies hold int, bytes, None and lists of these, whatever the client decodes. Raises `RequestFailed`.
    """

    __slots__ = ("args", "keys", "node", "request_timeout_s", "script", "sync")
    session = None  # as of `Command`

    def __init__(
        self,
        script: str,
        keys: Sequence[str],
        args: Sequence[str | int | bytes],
        request_timeout_s: float,
        node: int | None = None,
        sync: tuple[int, int] | tuple[int, int, bool] | None = None,
    ) -> None:
        self.script = script
        self.keys = keys
        self.args = args
        self.request_timeout_s = request_timeout_s
        self.node = node
        self.sync = sync


class Command(Effect[Reply]):
    """Run a plain command. `session`: commands of one session share one connection (for WATCH/MULTI/EXEC).

    `key` routes it; None sends it to any node. A reply that is a server's error raises `RequestFailed`, and so does one
    that `fits` refuses; None takes any.
    """

    __slots__ = ("args", "fits", "key", "node", "request_timeout_s", "session")

    def __init__(
        self,
        args: Sequence[str | int | float | bytes],
        request_timeout_s: float,
        key: str | None = None,
        node: int | None = None,
        session: str | None = None,
        fits: Callable[[Reply], bool] | None = None,
    ) -> None:
        self.args = args
        self.fits = fits
        self.key = key
        self.request_timeout_s = request_timeout_s
        self.node = node
        self.session = session


Answer: TypeAlias = "Reply | RequestFailed | None"


class CallMany(Effect[list[Answer]]):
    """Send all calls before reading any answer; end when `enough(answers)` or `request_timeout_s` is over.

    Answers stand at the place of their call: a reply, the `RequestFailed`, or None while unanswered. A reply that
    comes after the end is handed to `late(index, reply)`, and the protocol that it returns is spawned. A call whose
    connection was broken is sent a second time: servers and firewalls close idle ones, which using them finds out.
    """

    __slots__ = ("calls", "enough", "late", "repeated", "request_timeout_s")

    def __init__(
        self,
        calls: Sequence[Call],
        request_timeout_s: float,
        enough: Callable[[Sequence[Answer]], bool] | None = None,
        late: Callable[[int, Reply], Protocol[None] | None] | None = None,
    ) -> None:
        self.calls = calls
        self.request_timeout_s = request_timeout_s
        self.enough = enough
        self.late = late
        #: Which calls were sent a second time, and whether they may have been carried out the first time.
        self.repeated: dict[int, bool] = {}


class Wake:
    """What reached a waiter: `kind` is GRANT, or ASK: look for yourself. Never a proof. Or a holder: BREAK or WANT;
    or YIELD: others ask for what the client keeps.

    Of a GRANT: its `fence`, and for how long the token was written, `claim_ms`; 0 where the message does not say.
    Of BREAK and WANT: `text`, who says so and why.
    """

    __slots__ = ("claim_ms", "fence", "kind", "text")

    GRANT = "grant"
    ASK = "ask"
    BREAK = "break"
    WANT = "want"
    YIELD = "yield"
    FOR_HOLDERS = (BREAK, WANT, YIELD)

    def __init__(self, kind: str, fence: int = 0, claim_ms: int = 0, *, text: str = "") -> None:
        self.kind = kind
        self.fence = fence
        self.claim_ms = claim_ms
        self.text = text

    def __repr__(self) -> str:
        return f"Wake({self.kind!r}, {self.fence}, {self.claim_ms})"


class Listen(Effect["bool | None"]):
    """Register `token` for wake-ups and make sure that the inbox at the node of `key` is subscribed.

    True where the server lets no script send messages, or has no subscriptions: then none will come. Raises
    `RequestFailed` when the subscription was not confirmed within `request_timeout_s`. A wake-up that comes
    between Listen and AwaitWake is kept. Listening twice is listening once, and looks after a broken inbox.
    `deaf_at`: when the server was asked that has said that none is open: an older one has ended.
    """

    __slots__ = ("deaf_at", "key", "request_timeout_s", "script", "token")

    def __init__(
        self,
        token: str,
        key: str,
        request_timeout_s: float,
        script: str | None = None,
        deaf_at: float | None = None,
    ) -> None:
        self.token = token
        self.key = key
        self.request_timeout_s = request_timeout_s
        #: What is asked for then, for messages.
        self.script = script
        self.deaf_at = deaf_at


class AwaitWake(Effect["Wake | None"]):
    """The next wake-up for `token`, or None after `timeout_s`. A broken inbox wakes with ASK."""

    __slots__ = ("timeout_s", "token")

    def __init__(self, token: str, timeout_s: float) -> None:
        self.token = token
        self.timeout_s = timeout_s


class AwaitTurn(Effect[None]):
    """Wait until `turn.is_called()`, `timeout_s` at most. The driver sets `turn.bell`, which any thread may call."""

    __slots__ = ("timeout_s", "turn")

    def __init__(self, turn: Any, timeout_s: float) -> None:
        self.turn = turn
        self.timeout_s = timeout_s


class Sleep(Effect[None]):
    """Let `seconds` pass; can be cancelled."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Tell(Effect[None]):
    """Call `function(argument)`, which is the caller's; where that may be awaited, await what it returns."""

    __slots__ = ("argument", "function")

    def __init__(self, function: Callable[[Any], Any], argument: Any) -> None:
        self.function = function
        self.argument = argument


class Spawn(Effect[None]):
    """Run a protocol in the background, soon; it is not waited for. It handles its own trouble."""

    __slots__ = ("protocol",)

    def __init__(self, protocol: Protocol[None]) -> None:
        self.protocol = protocol
