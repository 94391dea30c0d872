"""What users see: thin, the same for threads and asyncio."""

__all__: list[str] = []
