"""The fixtures that the lab's tests share with those of the package, and the process that forks their clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast_lab import runs
from holdfast_lab.bodies import Forks
from tests.conftest import shared_servers, unique_name, valkey_server

__all__ = ["one_for_all_plays", "shared_servers", "unique_name", "valkey_server"]


class _Kept(Forks):
    """Goes on when a lab is closed."""

    def close(self) -> None:
        pass

    def end(self) -> None:
        super().close()


@pytest.fixture(scope="session", autouse=True)
def one_for_all_plays() -> Iterator[None]:
    """Have all labs of this process fork their clients from one process, which takes 0.4 s of CPU to start."""
    made: list[_Kept] = []

    def kept() -> _Kept:
        if not made:
            made.append(_Kept())
        return made[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "Forks", kept)
        yield
    for each in made:
        each.end()
