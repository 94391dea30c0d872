"""The package as it is installed."""

from importlib import metadata, resources

import holdfast


def test_version_is_the_installed_one() -> None:
    assert holdfast.__version__ == metadata.version("holdfast")


def test_types_are_published() -> None:
    assert resources.files("holdfast").joinpath("py.typed").is_file()
