"""Generated from `_async`."""
