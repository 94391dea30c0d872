"""A child amid busy threads or tasks: it holds nothing, starts afresh, and leaves the parent's leases alone."""

from __future__ import annotations

import asyncio
import atexit
import faulthandler
import gc
import os
import signal
import sys
import time
from typing import Any

from rig.state import LifeState

__all__ = ["fork_amid"]

#: A child must have ended after this, s.
_BOUND_S = 25.0


async def fork_amid(life: LifeState, client: Any, lease: Any, way: float) -> None:
    """Fork here and now; wait for the child. `way` (0 to 1) decides how it ends."""
    life.played["a fork amid busy threads"] += 1
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            faulthandler.dump_traceback_later(_BOUND_S - 5, exit=True)
            signal.setitimer(signal.ITIMER_REAL, 0)
            life.armed = False
            life.lift_limits()  # who would do so has not come along
            status = _child(life, client, lease, way)
        except BaseException as error:
            life.broken(f"in a child of fork: {type(error).__name__}: {error}")
        finally:
            os._exit(status)
    until = time.monotonic() + _BOUND_S
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - does not wait
        if done:
            break
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)  # noqa: ASYNC222 - it has just been killed
            life.broken(f"a child of fork did not end within {_BOUND_S:g} s")
            return
        if life.blocking:
            time.sleep(0.01)  # noqa: ASYNC251 - there is no event loop
        else:
            await asyncio.sleep(0.01)
    if status != 0:
        life.broken(f"a child of fork ended with {os.waitstatus_to_exitcode(status)}")


def _child(life: LifeState, client: Any, lease: Any, way: float) -> int:
    """The exit status."""
    state, lost = lease.state.name, lease.lost.is_set()
    if state != "LOST" or not lost or lease.remaining() > 0:
        life.broken(
            f"in a child of fork a lease of the parent is {state}, lost.is_set() {lost}, {lease.remaining():.2f} s left"
        )
    gc.collect()
    if life.blocking:
        _use(life, client, lease)
    else:
        asyncio.run(_ause(life, client, lease))
    if way < 0.5:
        life.played["a child that ends with os._exit"] += 1
        return 0
    # As an interpreter does, but for what would run the parent's blocks to their ends.
    atexit._run_exitfuncs()
    return 0


def _use(life: LifeState, client: Any, lease: Any) -> None:
    try:
        lease.release()
    except life.errors:
        pass
    else:
        life.broken("a child of fork could release a lease of its parent")
    name = f"torture-child-{os.getpid()}"
    try:
        with client.lock(name).acquire(timeout=2):
            pass
    except life.errors:
        pass  # closed by the parent, or a server in trouble
    own = life.connect()
    try:
        own.lock(name).acquire(timeout=2).release()
    except life.errors:
        pass
    finally:
        own.close()


async def _ause(life: LifeState, client: Any, lease: Any) -> None:
    try:
        await lease.release()
    except life.errors:
        pass
    else:
        life.broken("a child of fork could release a lease of its parent")
    name = f"torture-child-{os.getpid()}"
    try:
        async with await client.lock(name).acquire(timeout=2):
            pass
    except life.errors:
        pass
    own = life.connect()
    try:
        await (await own.lock(name).acquire(timeout=2)).release()
    except life.errors:
        pass
    finally:
        await own.close()
