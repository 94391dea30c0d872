"""`pytest -p tests.spikes.on_engine tests/contract`: the tests for threads, on the engine instead of the drivers."""

from spikes.engine.api import install

install()
