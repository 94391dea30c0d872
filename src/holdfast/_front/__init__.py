"""How callers wait for the engine: threads, tasks of asyncio."""
