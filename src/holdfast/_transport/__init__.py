"""Talking to servers: connections, topologies, bytes."""

__all__: list[str] = []
