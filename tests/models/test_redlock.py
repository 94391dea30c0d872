"""The model of the quorum holds, and fails without each of its protections. Needs Spin and a C compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).resolve().parents[2] / "models" / "redlock.pml"

# `make model` has the same answers; here the law that is broken is looked at, too.
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        shutil.which("spin") is None or shutil.which("gcc") is None,
        reason="needs spin and gcc (Debian: apt-get install spin gcc)",
    ),
]


def checked(folder: Path, *defines: str) -> str:
    """Return the verifier's output for the model with these definitions."""
    subprocess.run(["spin", *defines, "-a", str(MODEL)], cwd=folder, check=True, capture_output=True)
    subprocess.run(["gcc", "-O1", "-w", "-DSAFETY", "-o", "pan", "pan.c"], cwd=folder, check=True)
    said = subprocess.run(["./pan", "-m100000", "-E"], cwd=folder, check=True, capture_output=True, text=True)
    return said.stdout


def test_the_model_holds(tmp_path: Path) -> None:
    said = checked(tmp_path)
    assert "errors: 0" in said
    assert "max search depth too small" not in said


@pytest.mark.parametrize(
    "defines, broken",
    [
        (["-DNO_WRITE_BACK"], "greatest>last"),
        (["-DVOTE_AT_ONCE", "-DRESTARTS=1"], "holders<=1"),
        (["-DNO_DEADLINE"], "holders<=1"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_without_a_protection_it_fails(tmp_path: Path, defines: list[str], broken: str) -> None:
    said = checked(tmp_path, *defines)
    assert "errors: 1" in said
    assert broken in said
