"""`holdfast ask NAME`: ask the holder of a lock to let go."""

from importlib import import_module

__all__ = ["main"]

main = import_module("holdfast.cli.break").main_of_ask
