"""Puts the engine under every Python that a test starts, where `tests.spikes.on_engine` is used."""

from spikes.engine.api import install

install()
