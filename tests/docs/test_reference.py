"""The reference has every public name, both APIs, inherited members and whole signatures, and nothing private."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import typing
from types import ModuleType

import pytest

import holdfast
from tools import reference

MODULES = [reference.THREADS, reference.ASYNCIO, *reference.MODULES]
PAGES = reference.pages()
ALL = "\n".join(PAGES.values())


def entry(name: str) -> str:
    """Return the text below the heading of that name, up to the next one."""
    assert f"{{ #{name} }}" in ALL, f"{name} is not in the reference"
    return re.split(r"^#+ ", ALL.split(f"{{ #{name} }}")[1], maxsplit=1, flags=re.MULTILINE)[0]


def public_members(kind: type) -> set[str]:
    """By `dir`, so as not to compare the reference with itself: what users of an object can call and read."""
    found = set()
    for name in dir(kind):
        value = inspect.getattr_static(kind, name)
        function = getattr(value, "__func__", value)
        callable_or_property = inspect.isfunction(function) or isinstance(value, property)
        where = getattr(function, "__module__", None) or getattr(getattr(value, "fget", None), "__module__", None)
        if not name.startswith("_") and callable_or_property and str(where).startswith("holdfast"):
            found.add(name)
    return found


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_and_member_is_there(name: str) -> None:
    module: ModuleType = importlib.import_module(name)
    missing = []
    for each in module.__all__:
        value = getattr(module, each)
        full = [f"{name}.{each}"]
        same = name == reference.ASYNCIO and getattr(holdfast, each, None) is value
        if isinstance(value, type) and not issubclass(value, enum.Enum) and not same and not typing.is_typeddict(value):
            full += [f"{name}.{each}.{member}" for member in public_members(value)]
        missing += [anchor for anchor in full if f"{{ #{anchor} }}" not in ALL]
    # What a plugin of pytest calls, by the interface of its own `Observer`.
    assert sorted(set(missing) - {f"holdfast.testing.Trouble.{each}" for each in ("acquiring", "granted")}) == []


def test_every_documented_module_is_there() -> None:
    listed = set(re.findall(r"`(holdfast(?:\.\w+)+)`", inspect.getsource(reference).split("GROUPS")[0]))
    public = {path.stem for path in (reference_package()).glob("[a-z]*.py")}
    assert public == {
        "asyncio",
        "trio",
        "errors",
        *(each.split(".")[1] for each in reference.MODULES if "compat" not in each),
    }
    assert listed <= set(MODULES)


def reference_package() -> typing.Any:
    from pathlib import Path

    return Path(holdfast.__file__).parent


@pytest.mark.parametrize(
    "name", ["Lock.acquire", "Lock.try_acquire", "Semaphore.acquire", "ReadLock.acquire", "Client.once", "connect"]
)
@pytest.mark.parametrize("module", [reference.THREADS, reference.ASYNCIO])
def test_signatures_are_whole(module: str, name: str) -> None:
    function: typing.Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    shown = entry(f"{module}.{name}").split("```")[1]
    for each in inspect.signature(function).parameters.values():
        assert each.name in ("self", "elsewhere") or each.name in shown
    assert ("await " in shown) == inspect.iscoroutinefunction(function)
    assert re.search(r"-> \w+", shown)


def test_the_options_of_a_lease_are_a_table() -> None:
    table = entry("holdfast.LeaseOptions")
    rows = {name: cells for name, *cells in re.findall(r"^\| `(\w+)` \| `(.+)` \| (.{20,}) \|$", table, re.MULTILINE)}
    assert rows["sync_replicas"][0] == "int | Literal['all']"
    assert set(rows) == {*holdfast.LeaseOptions.__annotations__, "cache_for"}
    assert ALL.count("seconds after which it is no longer renewed") == 1, "the options are explained once"


def test_a_long_text_is_explained_once() -> None:
    assert "As [`Lock.acquire`](#holdfast.Lock.acquire)." in entry("holdfast.WriteLock.acquire")
    assert "```python\nWriteLock.acquire(" in entry("holdfast.WriteLock.acquire"), "the signature is its own"
    for name, page in PAGES.items():
        paragraphs = [each for each in page.split("\n\n") if len(each.split()) > 50 and not each.startswith("```")]
        assert len(paragraphs) == len(set(paragraphs)), name


def test_nothing_private_is_shown() -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", ALL, re.DOTALL))
    assert re.findall(r"\b_[a-z]\w*|\bSession\b|\bLeaseRecord\b|<class|ForwardRef|object at 0x", code) == []
    assert re.findall(r":(?:meth|class|func|attr):|(?<!`)``(?!`)", ALL) == [], "roles of another markup"


def test_links_of_the_reference_lead_somewhere() -> None:
    anchors = set(re.findall(r"\{ #(\S+) \}", ALL))
    targets = set(re.findall(r"\]\((?:threads\.md)?#([\w.]+)\)", ALL))
    assert len(targets) > 50
    assert sorted(targets - anchors) == []
