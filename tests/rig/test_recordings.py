"""The histories that are shipped are those of rig/recordings.py, each with the command that made it."""

from __future__ import annotations

import json
import shlex

from rig.locks import KINDS
from rig.recordings import FOLDER, RECORDINGS

LISTED = json.loads((FOLDER / "MANIFEST.json").read_text(encoding="utf-8"))
SHIPPED = [each for each in RECORDINGS if not each.large]


def test_the_manifest_lists_what_is_recorded_and_how() -> None:
    assert [(each["file"], each["command"], each["why"]) for each in LISTED] == [
        (each.file, shlex.join([*each.command, "--save", each.file]), each.why) for each in SHIPPED
    ]


def test_what_is_shipped_is_there_and_small() -> None:
    files = {each["file"]: FOLDER / each["file"] for each in LISTED}
    assert {path.name for path in FOLDER.iterdir()} == {*files, "MANIFEST.json"}
    assert sum(path.stat().st_size for path in files.values()) <= 5_000_000


def test_other_libraries_are_convicted_and_this_one_holds_under_the_same_faults() -> None:
    others = {each.name: each for each in SHIPPED if each.convicted}
    assert set(others) == set(KINDS) - {"holdfast"}
    ours = [each.arguments for each in SHIPPED if not each.convicted]
    for name, each in others.items():
        same = each.arguments.removeprefix(f"--library {name} ")
        assert f"--kinds lock {same}" in ours
