"""What a life may leave in its process, since Python leaves it there."""

from __future__ import annotations

import sys
import threading
from collections import Counter

import pytest

from rig.life import Life
from rig.state import Interrupted


def test_a_start_that_an_exception_has_cut_short_is_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise Interrupted

    life = Life.__new__(Life)
    life.played = Counter()
    thread = threading.Thread(target=print, name="holdfast-unbegun", daemon=True)
    with monkeypatch.context() as patch:
        starts = "_start_new_thread" if sys.version_info < (3, 13) else "_start_joinable_thread"
        patch.setattr(threading, starts, interrupted)
        with pytest.raises(Interrupted):
            thread.start()
    try:
        left = ["threads: holdfast-unbegun", "objects: what it refers to"]
        assert life._begun(left) == []
        assert life._begun([*left, "threads: holdfast-begun × 2"]), "another one has begun"
        assert life._begun(left[1:]), "no thread refers to it"
        assert life.played.total() == 1
    finally:
        threading._limbo.pop(thread)  # type: ignore[attr-defined]
