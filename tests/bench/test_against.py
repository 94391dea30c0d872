"""The comparison of two checkouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.against import compared, main

PAIR, OTHER = ("threads", "holdfast", "p50"), ("threads", "redis-py", "p50")


def test_medians_and_their_ratio() -> None:
    here = [{PAIR: 50.0, OTHER: 10.0}, {PAIR: 500.0, OTHER: 10.0}, {PAIR: 60.0, OTHER: 10.0}]
    there = [{PAIR: 40.0}, {PAIR: 30.0}, {PAIR: 40.0}]
    assert compared(here, there)[2:] == ["| threads | holdfast | p50 | 60.0 | 40.0 | 1.50 |"], "what both have"


@pytest.mark.parametrize("words", [["/nowhere"], [".", "no-such-row"]])
def test_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert words[-1] in capsys.readouterr().err


def test_a_row_is_measured_in_both(capsys: pytest.CaptureFixture[str]) -> None:
    """Against itself."""
    assert main([str(Path(__file__).resolve().parents[2]), "startup", "--rounds", "1", "--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 2 and all(line.startswith("| startup |") for line in lines[2:])
