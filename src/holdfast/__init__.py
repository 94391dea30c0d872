"""Distributed locks for Python on Redis and Valkey."""

__all__ = ["__version__"]

__version__ = "0.1.0"
