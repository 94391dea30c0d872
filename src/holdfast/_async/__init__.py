"""The asyncio API, which is also the source of the threads API: `_sync` is generated from it."""
