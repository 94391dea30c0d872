"""anyio, on asyncio or trio: holdfast.asyncio. `BACKEND=trio python -m examples.frameworks.anyio_tasks`"""

from __future__ import annotations

import os

import anyio

import holdfast.asyncio

URL = os.environ.get("HOLDFAST_URL", "redis://localhost:6379")


async def main() -> None:
    async with holdfast.asyncio.connect(URL) as locks, holdfast.asyncio.connect(URL) as others:
        async with others.lock("page"):
            with anyio.move_on_after(0.1) as waiting:
                await locks.lock("page").acquire()
        assert waiting.cancelled_caught

        with anyio.move_on_after(0.1) as working:
            async with locks.lock("page"):
                await anyio.sleep(60)
        assert working.cancelled_caught

        lease = await others.lock("page").acquire(timeout=15)  # nothing was left behind
        await lease.release()
    print("moved on")


if __name__ == "__main__":
    anyio.run(main, backend=os.environ.get("BACKEND", "asyncio"))
