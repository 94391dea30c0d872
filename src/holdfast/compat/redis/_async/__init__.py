"""The source of both: `_sync` is generated from it."""
