"""These tests need the frameworks: `make frameworks` runs them in its environment. Nothing else collects them."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("celery") else ["test_*.py"]
