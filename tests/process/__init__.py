"""Faults of the process around the protocol: signals, the collector, forks, threads, exits, closed clients."""
