"""How long each room of the package may be, and the lab, in lines of Python and Lua.

The reasons are in docs/design/0034. Raise a number in the commit that needs it, by what it needs; lower it when
something leaves. `make check` runs this.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from tools import rooms
from tools.rooms import LAB, TOP, lines_by_room

PACKAGE = Path(holdfast.__file__).parent
MOST_LINES = {
    "_core": 8_356,
    "_async": 2_812,
    "_engine": 3_464,
    "_front": 1_520,
    "_runtime": 743,
    "_reports": 562,
    "cli": 3_290,
    "_lua": 2_565,
    "_api": 3_383,
    TOP: 1_897,
    "compat": 990,
    "web": 627,
}
LAB_MOST_LINES = 7_200
#: The threads API is generated from `_async`: a smaller share of it than this is by hand, or comments are left out.
GENERATED = "_sync"
#: A budget that is this much too large allows anything.
SLACK = 500
#: A file that is longer has to be cut, or has its reason here.
FILE_MOST_LINES = 600
FILES = {
    "_async/client.py": (640, "a method for each thing that a client makes"),
    "_core/waiting.py": (660, "one loop, and the requests that it is made of"),
    "_engine/link.py": (807, "writing, reading and the end of a connection share what is under way on it"),
    "holdfast_lab/stage.py": (620, "a client and the stage name each other"),
    "holdfast_lab/verdicts.py": (610, "one verdict after the other, each from the same events"),
    "holdfast_lab/faults.py": (750, "one fault after the other, each read by itself"),
}


FOUND = lines_by_room()


def test_every_room_has_a_budget() -> None:
    assert set(FOUND) == {*MOST_LINES, GENERATED}


@pytest.mark.parametrize("room", MOST_LINES)
def test_a_room_is_not_longer_than_it_may_be(room: str) -> None:
    assert FOUND[room] <= MOST_LINES[room], "what does the change make superfluous? Else raise the budget, and say why"
    assert FOUND[room] > MOST_LINES[room] - SLACK, "it has got shorter: lower its budget"


def test_the_lab_is_not_longer_than_it_may_be() -> None:
    found = lines_by_room(LAB).total()
    assert LAB_MOST_LINES - SLACK < found <= LAB_MOST_LINES


def test_the_generated_api_is_not_longer_than_its_source() -> None:
    assert FOUND[GENERATED] <= FOUND["_async"]


def test_files_can_be_held_in_the_head() -> None:
    lengths = {
        str(path.relative_to(folder)): len(path.read_bytes().splitlines())
        for folder in (PACKAGE, LAB.parent)
        for path in folder.rglob("*.py")
        if GENERATED not in path.parts
    }
    assert {name for name, lines in lengths.items() if lines > FILES.get(name, (FILE_MOST_LINES, ""))[0]} == set()
    shorter = [name for name in FILES if lengths.get(name, 0) <= FILE_MOST_LINES - SLACK // 10]
    assert shorter == [], "these need no reason any more"


def test_lines_are_counted(tmp_path: Path) -> None:
    (tmp_path / "room" / "deep").mkdir(parents=True)
    (tmp_path / "room" / "deep" / "a.py").write_text("one\ntwo\n")
    (tmp_path / "room" / "b.lua").write_text("three\n")
    (tmp_path / "room" / "c.toml").write_text("no code\n")
    (tmp_path / "d.py").write_text("four\n")
    assert lines_by_room(tmp_path) == {"room": 3, TOP: 1}


def test_code_is_told_from_words(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        '"""Words.\n\nMore.\n"""\n\n# why\nx = """\ntext\n"""\n\n\ndef f() -> int:\n    """Words."""\n    return 1\n'
    )
    (tmp_path / "b.lua").write_text("-- KEYS\n\nreturn 1\n")
    assert rooms.code_lines(tmp_path / "a.py") == 5
    assert rooms.code_lines(tmp_path / "b.lua") == 1


@pytest.mark.parametrize("feature", rooms.FEATURES)
def test_features_name_files_that_exist(feature: str) -> None:
    found = {part for path in rooms.files_of(feature) for part in (path.stem, path.relative_to(PACKAGE).parts[0])}
    assert set(rooms.FEATURES[feature].split()) - found == set()
