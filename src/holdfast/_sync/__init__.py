"""The threads API. Generated from `_async` by `tools/async_to_sync.py`, but for `loss`, `kernel` and `lifecycle`."""
