"""Messages of servers, and the protocols that wait for them.

Laws: a message that comes before its waiter waits is kept; where an inbox breaks, all that wait there look for
themselves; an inbox is opened once, however many want it, and not again at once where it broke as soon as it was open;
few stay open by which no one hears of anything any more.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from holdfast._core.agent.runner import SUSPENDED, Runner, Task
from holdfast._core.effects import AwaitWake, Listen, Wake
from holdfast._core.failure import RequestFailed
from holdfast._core.settings import Settings
from holdfast._core.snapshot import snapshot
from holdfast._core.standing import Standings

#: While more inboxes are open, those that are not needed are closed now and then.
OPEN_MAX = 500
#: While more are open, none is opened for holders: these find notes when they renew.
_FOR_HOLDERS_MAX = 1_000
#: An inbox that was open for this long has worked, s.
_LASTED_S = 1.0


class Listening(Runner):
    """A runner with inboxes."""

    @abstractmethod
    def place_of(self, key: str) -> Hashable:
        """Where to listen for what is said of the key."""

    @abstractmethod
    def subscribe(self, place: Hashable, effect: Listen, answer: Callable[[RequestFailed | None], None]) -> None:
        """Open the inbox there, for the one that asked first; `answer` is called once."""

    def unsubscribe(self, place: Hashable) -> None:
        """Close the inbox there."""

    @abstractmethod
    def silence(self, place: Hashable) -> RequestFailed:
        """Return the failure of a server from which nothing has come in time."""

    @abstractmethod
    def inbox_opened(self) -> None:
        """Hear that one was opened."""

    @abstractmethod
    def held_keys(self) -> Iterable[str]:
        """The keys of which holders have to hear."""


class _Listener:
    """One token that listens: where, what has come for it, and who waits for that, since when."""

    __slots__ = ("came", "places", "task", "ticket")

    def __init__(self) -> None:
        self.came: deque[Wake] = deque()
        self.places: set[Hashable] = set()
        self.task: Task | None = None
        self.ticket = 0


class Inboxes:
    """The inboxes of one client, by the places that it listens at: servers, or in a Cluster, channels of servers."""

    def __init__(self, client: Listening, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        #: Since when they are open, the one asked for last at the end; what changed since it was looked what is needed.
        self._open: dict[Hashable, float] = {}
        self._changes = 0
        #: Those that wait for one to be opened.
        self._opening: dict[Hashable, list[tuple[Task, int, Listen]]] = {}
        #: How long to pause before those are opened again that broke at once, s.
        self._pauses: dict[Hashable, float] = {}
        self._listeners: dict[str, _Listener] = {}
        self.standing = Standings()

    def __iter__(self) -> Iterator[Hashable]:
        """The places of those that are open."""
        return iter(tuple(self._open))

    def listening(self, key: str) -> bool:
        """True if the inbox for that key is open, so that a first request may queue."""
        return self._client.place_of(key) in self._open

    def missing(self, key: str) -> Hashable | None:
        """The place at which an inbox has to be opened for a holder to hear of that key; None: at none."""
        place = self._client.place_of(key)
        return None if place in self._open or len(self._open) >= _FOR_HOLDERS_MAX else place

    def is_awaited(self) -> bool:
        """True if a token listens."""
        return bool(self._listeners or self.standing)

    # -- effects ----------------------------------------------------------------------------------

    def listen(self, task: Task, effect: Listen) -> Any:
        """Register the token; wait for the inbox."""
        place = self._client.place_of(effect.key)
        if effect.deaf_at is not None and self._open.get(place, effect.deaf_at) < effect.deaf_at:
            self.broke((place,))
        if self._is_open(place, task, effect):
            return None
        task.timer = self._client.later(effect.request_timeout_s, self._silent, task, task.ticket, effect.key)
        return SUSPENDED

    def _is_open(self, place: Hashable, task: Task, effect: Listen) -> bool:
        """Let the token listen there. False: the task has to wait, until it is resumed."""
        if self._register(effect.token, place):
            return True
        waiting = self._opening.setdefault(place, [])
        waiting.append((task, task.ticket, effect))
        if len(waiting) == 1:
            pause_s = self._pauses.get(place)
            if pause_s:
                self._client.later(pause_s, self._begin, place, effect)
            else:
                self._begin(place, effect)
        return False

    def await_wake(self, task: Task, effect: AwaitWake) -> Any:
        """Wait for its next message."""
        listener = self._listeners.get(effect.token)
        if listener is not None:
            if listener.came:
                return listener.came.popleft()
            listener.task, listener.ticket = task, task.ticket
        task.timer = self._client.later(effect.timeout_s, self._client.resume, task, task.ticket, None)
        return SUSPENDED

    def listens(self, token: str, key: str) -> bool:
        """As of `Driver`. What stands there goes on: where the inbox has broken, that was told to look."""
        place = self._client.place_of(key)
        stands = token in self.standing
        return (stands or place in self._open) and (self._register(token, place) or stands)

    def _register(self, token: str, place: Hashable) -> bool:
        """Note that the token listens there. True if the inbox is open, which is the one asked for last then."""
        listener = self._listeners.get(token)
        if listener is None:
            listener = self._listeners[token] = _Listener()
            if (standing := self.standing.pop(token, None)) is not None:
                listener.came = standing.came
        listener.places.add(place)
        since = self._open.pop(place, None)
        if since is not None:
            self._open[place] = since
        return since is not None

    def unlisten(self, token: str) -> None:
        """Forget the token."""
        self._listeners.pop(token, None)
        self._close_some()

    # -- what comes -------------------------------------------------------------------------------

    def wake(self, token: str, wake: Wake) -> None:
        """Wake a waiter by a message. If there is none, it has left, and sent its give-back."""
        listener = self._listeners.get(token)
        if listener is None:
            self.standing.wake(token, wake)
            return
        task, listener.task = listener.task, None
        if task is not None and task.ticket == listener.ticket:
            self._client.resume(task, task.ticket, wake)
        else:
            listener.came.append(wake)

    def ask_all(self) -> None:
        """Have all that wait look for themselves."""
        for token in list(self._listeners):
            self.wake(token, Wake(Wake.ASK))
        self.standing.wake_all()

    # -- open and closed --------------------------------------------------------------------------

    def _begin(self, place: Hashable, effect: Listen) -> None:
        # In the time of the one that asked first. Later ones try again, and are not held up by an attempt that hangs.
        self._client.subscribe(place, effect, lambda failure: self._opened(place, failure))

    def _opened(self, place: Hashable, failure: RequestFailed | None) -> None:
        waiting = self._opening.pop(place, ())
        if failure is None:
            self._open[place] = self._client.now()
            self._client.inbox_opened()
            self._close_some()
        for task, ticket, effect in waiting:
            if failure is not None and failure.kind == "MOVED" and task.ticket == ticket:
                elsewhere = self._client.place_of(effect.key)
                if elsewhere != place:
                    if self._is_open(elsewhere, task, effect):
                        self._client.resume(task, ticket, None)
                    continue
            self._client.resume(task, ticket, None, failure and failure.again(maybe_executed=False))

    def _silent(self, task: Task, ticket: int, key: str) -> None:
        failure = self._client.silence(self._client.place_of(key))
        self._client.resume(task, ticket, None, failure.again(maybe_executed=False))

    def _close_some(self) -> None:
        """Now and then, if there are too many, close those that are not needed, but for some that were used last."""
        count = len(self._open)
        self._changes += 1
        if count <= OPEN_MAX or 4 * self._changes < count:
            return
        self._changes = 0
        held = {self._client.place_of(key) for key in self._client.held_keys()}
        used = {place for listener in self._listeners.values() for place in listener.places}
        used |= {self._client.place_of(standing.key) for standing in snapshot(self.standing.values())}
        idle = [place for place in self._open if place not in held and place not in used]
        for place in idle[: count - OPEN_MAX // 2]:
            del self._open[place]
            self._client.unsubscribe(place)

    def broke(self, places: Iterable[Hashable], by_us: bool = False) -> bool:
        """Forget inboxes that have ended; False when none was open. All that wait there look.

        What ends `by_us` may be opened again at once: the server can do nothing for it.
        """
        now, settings = self._client.now(), self._settings
        broken = [place for place in places if place in self._open]
        for place in broken:
            if now - self._open.pop(place) > _LASTED_S:
                self._pauses.pop(place, None)
            elif not by_us:
                pause_s = max(2 * self._pauses.get(place, 0.0), settings.trouble_pause_s)
                self._pauses[place] = min(pause_s, settings.trouble_pause_max_s)
        for token, listener in tuple(self._listeners.items()) if broken else ():
            if not listener.places.isdisjoint(broken):
                self.wake(token, Wake(Wake.ASK))
        if broken:
            self.standing.wake_all()
        return bool(broken)
