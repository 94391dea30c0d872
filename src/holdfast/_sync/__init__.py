"""The threads API. Generated from `_async` by `tools/async_to_sync.py`."""
