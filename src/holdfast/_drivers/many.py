"""Asking many servers at once from one thread.

Laws: everything is sent before anything is read; a server that hangs holds up only what asks it alone; a
connection that owes a reply is used for nothing else until that has come.

Theory: the caller's thread sends on one connection to each server and polls them all. When enough have answered, it
waits a moment for the others, but not for those that took too long the last time; connections that still owe a
reply are left to the watchdog, which reads it and hands it to `late`. A server without an idle connection is dialled
by a thread of that server's own, since a handshake may hang; the caller takes the connection over when it is there.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence

from holdfast._core.effects import Answer, Call, CallMany
from holdfast._core.failure import RequestFailed
from holdfast._drivers.teller import CANNOT_START
from holdfast._lua import SCRIPTS, Script
from holdfast._transport.clock import clock
from holdfast._transport.greenlets import new_poll
from holdfast._transport.handlers import raised_by_handler
from holdfast._transport.inherited import ours
from holdfast._transport.pack import pack_script
from holdfast._transport.pending import PendingReply
from holdfast._transport.threads import Node, Wire
from holdfast._transport.waits import Mailbox

__all__ = ["Dialler", "ask_all"]

_READABLE = select.POLLIN
#: When enough have answered, the others are waited for this long, s, or as long as it took so far.
GRACE_S = 0.002
#: How many connections to one server may owe replies: enough for a slow one, an end to those that hang.
OWED_MAX = 32
#: A connection that owes a reply is closed after this, s.
LATE_PATIENCE_S = 30.0
#: How long a handshake may take, s.
DIAL_PATIENCE_S = 2.0
#: How many calls wait for a connection to one server.
DIALS_MAX = 64
#: A dialling thread that has nothing to do for this long ends, s.
DIAL_IDLE_S = 10.0
#: Where there is no descriptor left for a waker, it is looked whether the call was cancelled so often, s.
BLIND_S = 0.05


class _Waker:
    """Interrupts a poll from another thread."""

    def __init__(self) -> None:
        #: The process, and what monkey patching replaces.
        self.made_in = (os.getpid(), socket.socket)
        # Not a pipe: under eventlet reading one that is empty waits, whatever was set.
        self._ends = socket.socketpair()
        for end in self._ends:
            end.setblocking(False)
            ours(end)
        self.reader = self._ends[0].fileno()

    def wake(self) -> None:
        try:
            self._ends[1].send(b"!")
        except OSError:
            pass  # full: it will wake up

    def drain(self) -> None:
        try:
            self._ends[0].recv(4096)
        except OSError:
            pass

    def __del__(self) -> None:
        for end in getattr(self, "_ends", ()):  # none where no descriptor was left
            try:
                end.close()
            except Exception:  # gevent's sockets at the end of the interpreter, when its modules are gone
                pass


#: Those that are not in use. Not one for each thread: a signal handler may ask in the middle of another call.
_wakers: list[_Waker] = []


def _waker() -> _Waker:
    """One that is registered nowhere. Raises OSError when no descriptor is left."""
    while True:
        try:
            waker = _wakers.pop()
        except IndexError:
            return _Waker()
        if waker.made_in == (os.getpid(), socket.socket):
            return waker


class _Group:
    """What the dialling threads put their results into, of calls that go to these nodes."""

    __slots__ = ("_nodes", "connected", "over", "waker")

    def __init__(self, waker: _Waker, nodes: Sequence[Node]) -> None:
        self.waker = waker
        self._nodes = nodes
        self.over = False
        #: (place of the call, connection or trouble)
        self.connected: deque[tuple[int, Wire | RequestFailed]] = deque()

    def is_over(self) -> bool:
        """True if the call has ended."""
        return self.over

    def leave(self) -> None:
        """Connections that came too late for their call are there for the next one, to the same server."""
        while True:
            try:
                index, result = self.connected.popleft()
            except IndexError:
                return
            if isinstance(result, Wire):
                self._nodes[index].put(result)


class Dialler:
    """Makes connections to one server, in a thread that is there while one is wanted."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._jobs: Mailbox[tuple[_Group, int] | None] = Mailbox()
        self._thread: threading.Thread | None = None
        self._place = [None]  # taken by the one thread that stays
        self._stopping = False

    def dial(self, group: _Group, index: int) -> bool:
        """Make a connection for that call; False when too many wait already, or no thread can be started."""
        if len(self._jobs) >= DIALS_MAX:
            self._forget_those_over()
        if len(self._jobs) >= DIALS_MAX or self._stopping:
            return False
        self._jobs.put((group, index))  # first: a thread that finds nothing to do ends
        if self._thread is None:
            try:
                threading.Thread(target=self._run, name="holdfast-dialler", daemon=True).start()
            except CANNOT_START:
                return False  # one that is started later forgets it
        return True

    def _forget_those_over(self) -> None:
        for _ in range(len(self._jobs)):
            job = self._jobs.get(0.0)
            if job is not None and not job[0].over:
                self._jobs.put(job)

    def stop(self) -> None:
        """End the thread as soon as it does not hang."""
        self._stopping = True
        self._jobs.put(None)

    def _run(self) -> None:
        while len(self._jobs):
            try:
                self._place.pop()
            except IndexError:
                return  # another one was started at the same time
            self._thread = threading.current_thread()
            try:
                self._main()
            finally:
                self._thread = None
                self._place.append(None)
            if self._stopping:
                return

    def _main(self) -> None:
        while not self._stopping:
            job = self._jobs.get(DIAL_IDLE_S)
            if job is None:
                return
            group, index = job
            if group.is_over():
                continue
            result: Wire | RequestFailed
            try:
                result = self._node.connect(DIAL_PATIENCE_S)
            except RequestFailed as failure:
                result = failure
            if isinstance(result, Wire) and group.is_over():
                self._node.put(result)
                continue
            group.connected.append((index, result))
            group.waker.wake()
            if group.is_over():
                group.leave()


def ask_all(
    many: CallMany,
    nodes: Sequence[Node],
    dialler_of: Callable[[Node], Dialler],
    adopt: Callable[[Sequence[PendingReply]], None],
    cancelled: Callable[[Callable[[], None] | None], bool] | None,
) -> list[Answer]:
    """Send all calls, `calls[i]` to `nodes[i]`, and take the answers as they come.

    `adopt` takes over what is under way at the end. `cancelled(waker)`: whether to stop, and whom to wake for that.
    """
    asking = _Asking(many, nodes)
    try:
        for index, node in enumerate(nodes):
            asking.ask(index, node, dialler_of)
        if cancelled is not None:
            asking.listen(cancelled)
        asking.take(cancelled)
    finally:
        asking.end(adopt)
    return asking.answers


class _Asking:
    """One call of `ask_all`."""

    __slots__ = (
        *("_begun_at", "_dialling", "_group", "_longest_s", "_many", "_nodes"),
        *("_poll", "_requests", "_under_way", "_waker", "answers"),
    )

    def __init__(self, many: CallMany, nodes: Sequence[Node]) -> None:
        self._many = many
        self._nodes = nodes
        self.answers: list[Answer] = [None] * len(many.calls)
        #: By descriptor.
        self._under_way: dict[int, PendingReply] = {}
        self._dialling: set[int] = set()
        self._poll = new_poll()
        self._waker: _Waker | None = None
        self._group: _Group | None = None
        self._begun_at = clock()
        #: A poll that nothing interrupts lasts no longer.
        self._longest_s = float("inf")
        self._requests = _pack(many.calls)

    def ask(self, index: int, node: Node, dialler_of: Callable[[Node], Dialler]) -> None:
        """Send that call, or have a connection made for it."""
        wire = node.idle()
        if wire is not None:
            self._send(index, wire, self._begun_at)
            return
        if self._group is None:
            try:
                waker = self._register_waker()
            except OSError as error:
                if raised_by_handler(error):
                    raise
                self._refuse(index, error.strerror or str(error))
                return
            waker.drain()
            self._group = _Group(waker, self._nodes)
        if node.owed >= OWED_MAX or not dialler_of(node).dial(self._group, index):
            self._refuse(index, "it owes too many answers already, or no thread could be started to connect to it")
        else:
            self._dialling.add(index)

    def listen(self, cancelled: Callable[[Callable[[], None] | None], bool]) -> None:
        """Have the poll end when the call is cancelled."""
        try:
            cancelled((self._waker or self._register_waker()).wake)
        except OSError as error:
            if raised_by_handler(error):
                raise
            self._longest_s = BLIND_S

    def take(self, cancelled: Callable[[Callable[[], None] | None], bool] | None) -> None:
        """Take the answers until there are enough, or the time is over."""
        enough, under_way = self._many.enough, self._under_way
        until = self._begun_at + self._many.request_timeout_s
        satisfied = False
        # TLS may have read ahead; a plain socket has nothing before it is polled.
        while under_way or self._dialling:
            if cancelled is not None and cancelled(None):
                break
            now = clock()
            if not satisfied and enough is not None and enough(self.answers):
                satisfied = True
                until = min(until, now + max(GRACE_S, now - self._begun_at))
            if now >= until or (satisfied and all(asked.node.slow for asked in under_way.values())):
                break
            for fd, _ in self._poll.poll(max(0.0, min(until - now, self._longest_s) * 1000)):
                asked_there = under_way.get(fd)
                if asked_there is not None:
                    self._read(fd, asked_there)
                elif self._waker is not None:
                    self._waker.drain()
                    self._take_connections()

    def end(self, adopt: Callable[[Sequence[PendingReply]], None]) -> None:
        """Leave what did not come in time to others."""
        if self._group is not None:
            self._group.over = True
            self._group.leave()
        for index in self._dialling:
            self._refuse(index, "no connection in time")
        if self._under_way:
            late_until = clock() + LATE_PATIENCE_S
            for asked in self._under_way.values():
                asked.node.slow = True
                asked.until = late_until
            adopt(tuple(self._under_way.values()))
        if self._waker is not None:
            _wakers.append(self._waker)

    def _send(self, index: int, wire: Wire, at: float) -> None:
        node = self._nodes[index]
        script, packed = self._requests[index]
        try:
            if wire.request_timeout_s:
                wire.patience(0.0)
            wire.sendall(packed)
        except OSError as error:
            wire.close()
            if raised_by_handler(error):
                raise
            node.drop_idle()
            self.answers[index] = RequestFailed("broken", str(error), node.name, maybe_executed=True, transient=True)
            return
        fd = wire.sock.fileno()
        self._under_way[fd] = PendingReply(index, script, packed, node, wire, self._many.late, at)
        self._poll.register(fd, _READABLE)

    def _refuse(self, index: int, said: str) -> None:
        name = self._nodes[index].name
        self.answers[index] = RequestFailed("refused", said, name, maybe_executed=False, transient=True)

    def _register_waker(self) -> _Waker:
        self._waker = waker = _waker()
        self._poll.register(waker.reader, _READABLE)
        return waker

    def _read(self, fd: int, asked: PendingReply) -> None:
        answer = asked.read()
        if answer is not None:
            self._poll.unregister(fd)
            del self._under_way[fd]
            self.answers[asked.index] = answer
            asked.node.slow = False

    def _take_connections(self) -> None:
        """Send on what the dialling threads have connected."""
        while self._group is not None and self._group.connected:
            index, result = self._group.connected.popleft()
            self._dialling.discard(index)
            if isinstance(result, Wire):
                self._send(index, result, clock())
            else:
                self.answers[index] = result


def _pack(calls: Sequence[Call]) -> list[tuple[Script, bytes]]:
    requests: list[tuple[Script, bytes]] = []
    before: Call | None = None
    for call in calls:
        if (
            before is not None
            and call.args is before.args
            and call.keys is before.keys
            and call.script == before.script
        ):
            requests.append(requests[-1])  # members of a quorum are asked the same
        else:
            script = SCRIPTS[call.script]
            requests.append((script, pack_script(script, call.keys, call.args)))
        before = call
    return requests
