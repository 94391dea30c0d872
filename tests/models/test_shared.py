"""The Promela model of the shared lock: its laws hold, and each assumption that is taken away breaks one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).resolve().parents[2] / "models" / "shared.pml"
# `make model` has most of the answers; here are larger worlds, and the law that is broken is looked at.
pytestmark = pytest.mark.thorough

LIVENESS = ("-a", "-f", "-N", "turn")


def check(folder: Path, *defines: str, liveness: bool) -> str:
    """Return the verifier's output."""
    if shutil.which("spin") is None or shutil.which("cc") is None:
        pytest.skip("no spin or no C compiler on PATH (Debian: apt-get install spin gcc)")
    flags = [f"-D{define}" for define in defines]
    subprocess.run(["spin", *flags, "-a", str(MODEL)], cwd=folder, check=True, capture_output=True, timeout=100)
    build = ["cc", "-O1", "-w", *([] if liveness else ["-DSAFETY"]), "-o", "pan", "pan.c"]
    subprocess.run(build, cwd=folder, check=True, capture_output=True, timeout=100)
    run = ["./pan", "-m200000", *(LIVENESS if liveness else ())]
    said = subprocess.run(run, cwd=folder, check=True, capture_output=True, text=True, timeout=100).stdout
    assert "max search depth too small" not in said
    return said


@pytest.mark.parametrize("defines", [(), ("CRASHES",), ("P=4", "W=2")], ids=" ".join)
@pytest.mark.parametrize("liveness", [False, True], ids=["safety", "liveness"])
def test_the_laws_hold(tmp_path: Path, defines: tuple[str, ...], liveness: bool) -> None:
    assert "errors: 0" in check(tmp_path, *defines, liveness=liveness)


@pytest.mark.parametrize(
    "defines, liveness, broken",
    [
        (("BARGE",), True, "acceptance cycle"),
        (("TWOSTEP",), False, "assertion violated"),
        (("BLIND", "CRASHES"), True, "acceptance cycle"),
    ],
    ids=["readers barge in", "two steps", "the dead are not passed"],
)
def test_each_assumption_is_needed(tmp_path: Path, defines: tuple[str, ...], liveness: bool, broken: str) -> None:
    said = check(tmp_path, *defines, liveness=liveness)
    assert "errors: 0" not in said
    assert broken in said
