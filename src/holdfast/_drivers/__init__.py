"""Performing protocols: one driver for threads, one for asyncio."""

__all__: list[str] = []
