"""`pytest -p tests.spikes.on_engine tests/contract`: the tests on the engine, and the programs that they start."""

import os

from spikes.engine.api import install
from tests.support.imports import ROOT

install()
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests" / "spikes" / "site"), str(ROOT)])
