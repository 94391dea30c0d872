"""The page for beginners, followed to the letter in an empty folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from testbed.servers import free_port
from tests.support.pages import matches, play

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["start.md", "start.zh-CN.md"])
def test_the_page_can_be_followed(name: str, tmp_path: Path) -> None:
    port = str(free_port())
    page = (DOCS / name).read_text(encoding="utf-8")
    assert page.count("6379") >= 3
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "HOLDFAST_URL": f"redis://localhost:{port}",
        "PYTHONWARNINGS": "error",
    }
    assert play(page.replace("6379", port), tmp_path, environment) == 6


def test_what_differs_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="instead of"):
        play("```console\n$ echo two\none\n```\n", tmp_path, os.environ)
    assert matches("held by …\n", "held by web1, pid 7\n")
    assert not matches("held by …\n", "held by web1\nand more\n")
