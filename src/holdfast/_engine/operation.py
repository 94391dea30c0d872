"""What a caller submits to the engine, and claims or abandons.

Laws: one of the two claims its outcome: the engine, which delivers it, or the caller, who has left. What the server
granted to one that was abandoned is given back.

Theory: the claim is one `pop` of a list with one element, which is atomic. The second one sees it, and acts on that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast._core.agent.runner import Abandoned, Runner, Task
from holdfast._core.effects import Protocol


class Operation:
    """One protocol that a caller waits for. `wake` is called by the engine when it has ended.

    What the protocol tells a function of the caller's (`chores`) is told by the caller, between its waits.

    What makes it may be given instead: a coroutine that is dropped before it has begun, by an exception, is complained
    of.

    `give_back(result)` makes the protocol that undoes a result which reached no caller.
    """

    __slots__ = (
        *("_claims", "_give_back", "_protocol", "_runner", "_task", "_wake", "chores", "error", "over"),
        "result",
    )

    def __init__(
        self,
        runner: Runner,
        protocol: Protocol[Any] | Callable[[], Protocol[Any]],
        wake: Callable[[], None],
        give_back: Callable[[Any], Protocol[None] | None] | None = None,
    ) -> None:
        self._runner = runner
        self._protocol: Protocol[Any] | Callable[[], Protocol[Any]] | None = protocol
        self._wake = wake
        self._give_back = give_back
        self._claims = [None]
        #: (function, its argument, and who is told what came of it)
        self.chores: deque[tuple[Callable[[Any], Any], Any, Callable[[Any, BaseException | None], None]]] = deque()
        self._task: Task | None = None
        self.over = False
        self.result: Any = None
        self.error: BaseException | None = None

    def begin(self) -> None:
        """In the engine: run it."""
        if not self._claims:
            self._close()  # abandoned before it had begun
            return
        protocol, self._protocol = self._protocol, None  # which may know its client, and would keep that
        assert protocol is not None
        task = self._runner.begin(protocol() if callable(protocol) else protocol, "operation", self._ended)
        self._task = None if task.done else task

    def _close(self) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None and not callable(protocol):
            protocol.close()

    def tell(
        self, function: Callable[[Any], Any], argument: Any, told: Callable[[Any, BaseException | None], None]
    ) -> None:
        """By the engine: have the caller call it."""
        self.chores.append((function, argument, told))
        self._wake()

    def do_chores(self, call: Callable[..., None]) -> None:
        """By the caller: do what it was asked to do."""
        while self.chores:
            function, argument, told = self.chores.popleft()
            value, failed = None, None
            try:
                value = function(argument)
            except BaseException as error:  # it is the protocol's to clean up after
                failed = error
            call(told, value, failed)

    def take(self) -> Any:
        """By the caller, once it is over: return the result, or raise.

        An error is kept by nothing of ours then: its traceback has frames of its callers, which may have leases.
        """
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
            return self.result
        finally:
            error = None

    def _ended(self, result: Any, error: BaseException | None) -> None:
        self.result, self.error, self._task = result, error, None
        if self._claim():
            self.over = True
            self._wake()
        elif error is None:
            self._undo()

    def _undo(self) -> None:
        if self._give_back is None or self.result is None:
            return
        protocol = self._give_back(self.result)
        if protocol is not None:
            self._runner.spawn(protocol, "give back")

    def _claim(self) -> bool:
        try:
            self._claims.pop()
        except IndexError:
            return False
        return True

    def abandon(self, call: Callable[..., None]) -> None:
        """By the caller, who leaves without the result. `call`: has the engine do something."""
        if self._claim():
            call(self._leave)
        elif self.error is None:
            call(self._undo)  # it was delivered, and arrived nowhere

    def _leave(self) -> None:
        task = self._task
        if task is not None:
            self._runner.interrupt(task, Abandoned())
        else:
            self._close()  # it was not submitted
