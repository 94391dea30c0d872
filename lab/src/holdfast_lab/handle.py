"""One client's view of one lock: what the lab calls, and what it is made of."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast_lab.driver import Address, BlockingDriver

__all__ = ["Handle", "Setup"]


@dataclass(frozen=True, slots=True)
class Setup:
    """The parts of a handle: the lock's name, its ttl, one address per server.

    ``restart_delay_s``: for how long a restarted server is left out, by those who can do that. The lab's servers are
    young, so that it is 0 except where that is the point.
    """

    name: str
    ttl_ms: int
    addresses: Sequence[Address]
    interrupt: Callable[[], None] | None = None
    restart_delay_s: float = 0.0
    password: str = field(default="", repr=False)

    @property
    def urls(self) -> list[str]:
        """One for each server, with the password."""
        credentials = f":{self.password}@" if self.password else ""
        return [f"redis://{credentials}{host}:{port}/0" for host, port in self.addresses]

    @property
    def url(self) -> str:
        """The first server's."""
        return self.urls[0]

    def driver(self) -> BlockingDriver:
        """A driver that performs the effects of a scheme."""
        return BlockingDriver(self.addresses, self.interrupt, self.password)


class Handle:
    """One client's lock. `try_acquire` is one attempt; it may wait for half a second, if that is its way."""

    #: Between two attempts, s.
    pause_s = 0.05
    #: What other threads of the process use as well, so that it outlives the client's thread.
    shared: object = None

    def try_acquire(self) -> bool:
        raise NotImplementedError

    def wait(self, interrupted: Callable[[], bool] | None = None) -> None:
        """Wait as the listing does until the lock is acquired; with `interrupted`, in its interruptible way."""
        raise NotImplementedError

    def release(self) -> None:
        raise NotImplementedError

    def fence(self) -> int | None:
        """The fencing token of what was acquired, where there is one."""
        return None

    def valid_until_ns(self) -> int | None:
        """Until when it relies on what was acquired, as it stands now; None: it has no such notion."""
        return None

    def is_lost(self) -> bool:
        """True if it knows by itself that it does not hold any more. Raises what its check raises instead."""
        return False

    def wait_readable(self, channel: socket.socket, timeout_s: float | None) -> bool:
        """True if the channel can be read within that time; what the lock does by itself goes on meanwhile."""
        return bool(select.select([channel], [], [], timeout_s)[0])

    def sleep(self, seconds: float) -> None:
        """A pause of the client."""
        time.sleep(seconds)

    def close(self) -> None:
        pass
