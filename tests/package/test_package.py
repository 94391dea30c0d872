"""The package as it is installed."""

import re
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import pytest

import holdfast


def test_version_is_the_installed_one() -> None:
    assert holdfast.__version__ == metadata.version("holdfast-locks")


def test_types_are_published() -> None:
    assert resources.files("holdfast").joinpath("py.typed").is_file()


def test_every_public_name_is_there_and_listed() -> None:
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    assert set(holdfast.__all__) <= set(dir(holdfast))
    assert holdfast.errors.LeaseLost is holdfast.LeaseLost


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'frobnicate'"):
        _ = holdfast.frobnicate


def test_a_lock_needs_neither_redis_py_nor_asyncio_to_be_imported() -> None:
    """Nor else what takes long and serves reports alone: `holdfast run` stands in front of cron jobs."""
    script = (
        "import sys; before = {*sys.modules}; import holdfast; holdfast.connect('redis://h').lock('x', ttl=3)\n"
        "slow = {'redis', 'asyncio', 'ssl', 'dataclasses', 'inspect', 'datetime', 'json'}\n"
        "print(*slow & ({*sys.modules} - before))"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, timeout=60, check=True)
    assert done.stdout.split() == []


def test_every_error_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (`\w+`.*?) \|", page, re.MULTILINE)
    described = {name for cell in table for name in re.findall(r"`(\w+)`", cell)} - {
        "TimeoutError",
        "ValueError",
        "RuntimeError",
    }
    assert described | {"HoldfastError"} == set(holdfast.errors.__all__)
