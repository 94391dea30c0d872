"""trio: holdfast.trio. `python -m examples.frameworks.trio_tasks`"""

from __future__ import annotations

import os

import trio

import holdfast.trio

URL = os.environ.get("HOLDFAST_URL", "redis://localhost:6379")

locks = holdfast.trio.connect(URL)
written: list[tuple[str, int]] = []


async def write(item: str, fencing_token: int) -> None:
    await trio.sleep(0.01)  # stands for your database
    written.append((item, fencing_token))


async def sell(item: str) -> None:
    async with locks.lock(f"stock:{item}") as lease:
        await write(item, lease.fencing_token)


async def main() -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(sell, "lamp")
    fences = [fence for _, fence in written]
    assert fences == sorted(set(fences)) and len(fences) == 20, "one after the other"
    print("sold")


if __name__ == "__main__":
    trio.run(main)
