"""The same with asyncio. `python -m examples.frameworks.apscheduler_asyncio`"""

from __future__ import annotations

import asyncio
import os

from apscheduler.schedulers.asyncio import AsyncIOScheduler

import holdfast.asyncio

URL = os.environ.get("HOLDFAST_URL", "redis://localhost:6379")
EVERY_S = int(os.environ.get("SWEEP_EVERY_S", "30"))


async def main() -> None:
    async with holdfast.asyncio.connect(URL) as locks:
        scheduler = AsyncIOScheduler(timezone="UTC")

        @scheduler.scheduled_job("cron", second=f"*/{EVERY_S}", misfire_grace_time=EVERY_S // 2)
        @locks.locked("sweep", skip_if_held=True, at_least=EVERY_S / 2)
        async def sweep() -> None:
            print("swept", flush=True)

        scheduler.start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
