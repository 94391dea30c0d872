"""Puts the engine under every Python that a test starts, where `tests.spikes.on_engine` is used."""

import sys

# The processes of pytest itself are left to the plugin, which comes when modules can be rewritten.
if not any("pytest" in argument or "execnet" in argument or "sys.stdin" in argument for argument in sys.orig_argv):
    from spikes.engine.api import install

    install()
