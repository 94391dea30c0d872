"""The reference of the documentation site: every public name with its members, made from the docstrings.

`python tools/reference.py` prints it. What is inherited is shown with the class that users have, a signature is whole,
private parameters are left out, and what reads the same for asyncio, or for another class, is explained once.
"""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

__all__ = ["ASYNCIO", "MODULES", "THREADS", "members_of", "pages"]

THREADS = "holdfast"
ASYNCIO = "holdfast.asyncio"
#: Those beside the two APIs.
MODULES = (
    "holdfast.fencing",
    "holdfast.interrupting",
    "holdfast.embedded",
    "holdfast.testing",
    "holdfast.prometheus",
    "holdfast.opentelemetry",
    "holdfast.compat.redis",
    "holdfast.compat.redis.asyncio",
    "holdfast.compat.redis_lock",
)
#: Which public name is where; a name that is missing here comes at the end.
GROUPS = {
    "Client": ("connect", "Client", "LeaseOptions"),
    "Leases": ("Lease", "LeaseState", "Loss", "Wanted"),
    "Locks": ("Lock", "RWLock", "ReadLock", "WriteLock", "ReadLease", "WriteLease", "Semaphore", "MultiLock", "Cancel"),
    "Coordination": ("Condition", "CountDownLatch", "Event", "Barrier", "Election"),
    "Without a lock": ("Optimistic", "Transaction", "Outcome"),
    "Status and reports": (
        *("Holder", "LockStatus", "RWLockStatus", "SemaphoreStatus", "Waiting", "Listed", "Waiter", "Change"),
        *("Asked", "Broken", "Deadlock", "DeadlockParty", "Observer", "LeaseInfo"),
    ),
}
#: The others are made by a client, and their `__init__` is nothing to call.
MADE_BY_USERS = {"Client", "Cancel", "Observer", "FenceGate", "Server", "PrometheusObserver"} | {
    "OpenTelemetryObserver",
    "interrupt_on_lost",
}
_DROPPED = {"elsewhere"}
_WIDTH = 96
#: A text of more words is on a page once.
_LONG = 12


def _public(module: ModuleType) -> list[str]:
    return [name for name in module.__all__ if name != "__version__"]


def members_of(kind: type) -> dict[str, Any]:
    """Public attributes of a class, with those that it inherits from other classes of holdfast, as in the source."""
    found: dict[str, Any] = {}
    for each in kind.__mro__:
        if not each.__module__.startswith("holdfast") or issubclass(kind, enum.Enum):
            continue
        for name, value in vars(each).items():
            if name.startswith("_") or name in found or type(value).__name__ == "Elsewhere":
                continue
            function = getattr(value, "__func__", value)
            if (value.__doc__ or "").startswith("See `holdfast._"):
                continue  # for holdfast's own use
            if inspect.isfunction(function) or isinstance(value, property | functools.cached_property):
                found[name] = value
    return found


def _lease_of(kind: type) -> str:
    """Return the name of `L` in the annotations of a class that can be acquired."""
    for each in kind.__mro__:
        for base in vars(each).get("__orig_bases__", ()):
            for argument in typing.get_args(base):
                if not isinstance(argument, typing.TypeVar):
                    return str(getattr(argument, "__name__", argument)).strip("'").removeprefix("ForwardRef('")
    return "Lease"


def _annotation(given: Any, lease: str) -> str:
    if isinstance(given, typing.ForwardRef):
        given = given.__forward_arg__
    text = given if isinstance(given, str) else inspect.formatannotation(given)
    text = re.sub(r"\b(?:holdfast\.[\w.]*|collections\.abc|typing|datetime)\.(?=\w)", "", text).strip("'\"")
    return re.sub(r"\bL\b", lease, text)


def _signature(shown: str, function: Any, lease: str = "Lease", method: bool = False) -> str:
    """The whole of it, on one line where that is short enough."""
    signature = inspect.signature(function)
    parameters, star = [], False
    for number, each in enumerate(signature.parameters.values()):
        if (method and number == 0) or each.name.startswith("_") or each.name in _DROPPED:
            continue
        if each.kind is each.KEYWORD_ONLY and not star:
            parameters.append("*")
        star = star or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        prefix = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
        text = f"{prefix}{each.name}"
        if each.annotation is not each.empty:
            text += f": {_annotation(each.annotation, lease)}"
        if each.default is not each.empty:
            text += (" = " if ":" in text else "=") + _default(each.default)
        parameters.append(text)
    returns = signature.return_annotation
    end = "" if returns is signature.empty else f" -> {_annotation(returns, lease)}"
    end = "" if shown.startswith("with ") else end
    line = f"{shown}({', '.join(parameters)}){end}"
    if len(line) > _WIDTH and parameters:
        line = f"{shown}(\n" + "".join(f"    {each},\n" for each in parameters) + f"){end}"
    return f"```python\n{line}\n```"


def _text(documented: Any, indented: int) -> str:
    """A docstring as Markdown; the list of the options of a lease is on the page once."""
    raw = documented.__doc__ or ""
    first, _, rest = raw.partition("\n")
    margin = " " * indented
    rest = "\n".join(line.removeprefix(margin) for line in rest.splitlines())
    text = f"{first.strip()}\n{rest}".strip()
    text = re.split(r"\n\n *Options:\n", text)[0]
    text = re.sub(r"(?<=[:.]) ::(?=\n)", "", text)
    text = re.sub(r"^(Args|Raises):\n((?: .*\n?)+)", _listed, text, flags=re.MULTILINE)
    # What is indented after a paragraph is code.
    return re.sub(r"((?:^|\n)(?:    .*|\n)+)", _fenced, text)


def _fenced(found: re.Match[str]) -> str:
    code = textwrap.dedent(found[0]).strip("\n")
    return f"\n\n```python\n{code}\n```\n\n" if code else found[0]


def _listed(found: re.Match[str]) -> str:
    """`Args:` and `Raises:` as lists."""
    entries = re.split(r"\n(?=\S)", textwrap.dedent(found[2]).strip("\n"))
    lines = (re.sub(r"^([\w*]+):", r"- `\1`:", " ".join(entry.split())) for entry in entries)
    return f"{found[1]}:\n\n" + "\n".join(lines) + "\n"


def _default(value: Any) -> str:
    shown = repr(value).replace("'", '"')
    return "..." if shown.startswith("<") else shown


def _called(name: str, function: Any) -> str:
    """Return the beginning of a call: with `await`, or `with`."""
    if inspect.isgeneratorfunction(inspect.unwrap(function)) and hasattr(function, "__wrapped__"):
        return f"with {name}"  # contextlib made it
    return f"await {name}" if inspect.iscoroutinefunction(function) else name


class _Page:
    """One page: anchors are the full names."""

    def __init__(self, module: str, brief_of: ModuleType | None = None, there: str = "") -> None:
        self.module = importlib.import_module(module)
        self.name = module
        #: The API that explains what reads the same here.
        self._brief_of = brief_of
        #: The member that a long text was first explained with.
        self._explained: dict[str, str] = {}
        #: What links to that begin with.
        self._there = f"{there}#{brief_of.__name__}." if brief_of is not None else ""

    def lines(self, names: Iterable[str], level: int) -> Iterator[str]:
        for name in names:
            yield from self._object(name, getattr(self.module, name), "#" * level)

    def _heading(self, marks: str, name: str) -> str:
        return f"{marks} `{name}` {{ #{self.name}.{name} }}"

    def _object(self, name: str, value: Any, marks: str) -> Iterator[str]:
        yield self._heading(marks, name)
        if self._brief_of is not None and getattr(self._brief_of, name, None) is value:
            yield f"The same as [`{self._brief_of.__name__}.{name}`]({self._there}{name})."
            return
        if isinstance(value, type):
            yield from self._class(name, value, marks)
        elif callable(value):
            fixture = getattr(value, "_fixture_function", None)
            if fixture is None:
                yield _signature(_called(name, value), value)
            yield self._linked(_text(fixture or value, 4))
        else:
            shown = f"{type(value).__name__}.{value.name}" if isinstance(value, enum.Enum) else repr(value)
            yield f"```python\n{name} = {shown}\n```"

    def _class(self, name: str, kind: type, marks: str) -> Iterator[str]:
        lease = _lease_of(kind)
        init = getattr(kind, "__init__")  # noqa: B009 - mypy refuses the attribute, since a subclass may differ
        drop_in = kind.__module__.startswith("holdfast.compat") and not issubclass(kind, Exception)
        if (kind.__name__ in MADE_BY_USERS or drop_in) and inspect.isfunction(init):
            yield _signature(name, init, method=True).replace(" -> None", "")
        elif fields := _fields(kind):
            shown = [f"    {each}: {_annotation(annotation, lease)}" for each, annotation in fields.items()]
            yield "```python\nclass " + name + ":\n" + "\n".join(shown) + "\n```"
        if typing.is_typeddict(kind):
            yield from _options_table(kind)
        else:
            brief = self._twin(name)
            yield self._brief(kind, name, 4) if brief else self._linked(_text(kind, 4))
        if issubclass(kind, enum.Enum):
            yield from (f"- {line}" for line in _choices(kind))
        base = importlib.import_module(THREADS).Observer
        explained = list(members_of(base)) if issubclass(kind, base) and kind is not base else []
        if explained:
            there, here = f"threads.md#{THREADS}.Observer", f"{self.name}.{name}"
            links = (f"[`{each}`]({there}.{each}){{ #{here}.{each} }}" for each in explained)
            yield f"Has the methods of `Observer`: {', '.join(links)}."
        for member, value in members_of(kind).items():
            if member not in explained:
                yield from self._member(f"{name}.{member}", member, value, marks + "#", lease, kind)

    def _twin(self, name: str) -> Any:
        """Return the same name of the threads API, which has the explanation."""
        value: Any = self._brief_of
        for part in name.split("."):
            value = inspect.getattr_static(value, part, None)
            if value is None:
                return None
        return value

    def _member(self, full: str, member: str, value: Any, marks: str, lease: str, kind: type) -> Iterator[str]:
        yield self._heading(marks, full)
        function = getattr(value, "__func__", value)
        if isinstance(value, property | functools.cached_property):
            getter = value.fget if isinstance(value, property) else value.func
            returns = inspect.signature(getter).return_annotation if getter is not None else Any
            yield f"```python\n{full}: {_annotation(returns, lease)}\n```"
        else:
            yield _signature(_called(full, function), function, lease, method=not isinstance(value, staticmethod))
        twin = self._twin(full) if self._brief_of is not None else None
        documented = value if value.__doc__ else _inherited(kind, member)
        if twin is not None:
            yield self._brief(documented, full, 8)
            return
        text = _text(documented, 8)
        first = self._explained.setdefault(text, full) if len(text.split()) > _LONG else full
        yield self._linked(text) if first == full else f"As [`{first}`](#{self.name}.{first})."

    def _brief(self, documented: Any, full: str, indented: int) -> str:
        """Return a text of one paragraph; else a link to the same text elsewhere."""
        first, _, rest = _text(documented, indented).partition("\n\n")
        return f"[As explained here]({self._there}{full})." if rest else first

    def _linked(self, text: str) -> str:
        """Names of this page are links, each where it is first named; not in code."""
        seen = set[str]()

        def link(found: re.Match[str]) -> str:
            name = found[1]
            if found[0].startswith("```") or name in seen or not _known(self.module, name):
                return found[0]
            seen.add(name)
            return f"[`{name}`](#{self.name}.{name})"

        return re.sub(r"```.*?```|`([A-Z]\w+(?:\.\w+)?)`", link, text, flags=re.DOTALL)


def _known(module: ModuleType, name: str) -> bool:
    head, _, member = name.partition(".")
    if head not in module.__all__:
        return False
    kind = getattr(module, head)
    return not member or (isinstance(kind, type) and member in members_of(kind))


def _inherited(kind: type, member: str) -> Any:
    """The docstring that an override leaves to what it overrides."""
    documented = (vars(each)[member] for each in kind.__mro__ if member in vars(each) and vars(each)[member].__doc__)
    return next(documented, Any)


def _fields(kind: type) -> dict[str, Any]:
    """Return the fields of a dataclass or a named tuple."""
    if hasattr(kind, "__dataclass_fields__"):
        return {name: field.type for name, field in kind.__dataclass_fields__.items() if not name.startswith("_")}
    return dict(inspect.get_annotations(kind)) if hasattr(kind, "_fields") else {}


def _choices(kind: type[enum.Enum]) -> Iterator[str]:
    comments = dict(re.findall(r"((?:^ +#:.*\n)+) +(\w+) = ", inspect.getsource(kind), re.MULTILINE))
    said = {name: " ".join(re.findall(r"#: ?(.*)", comment)) for comment, name in comments.items()}
    for each in kind:
        yield f"`{each.name}`" + (f": {said[each.name]}" if each.name in said else "")


def _options_table(kind: type) -> Iterator[str]:
    """The options of a lease: type, default and meaning of each; `cache_for` is that of a lock alone."""
    first, _, listed = (kind.__doc__ or "").partition("\n\n")
    found = re.search(r"`cache_for`: (.*? None: not kept\.)", _lock_doc(), re.DOTALL)
    entries = dict(re.findall(r"^ +`(\w+)`: (.*?)(?=\n +`\w+`:|\s*\Z)", listed, re.MULTILINE | re.DOTALL))
    if found is not None:
        entries["cache_for"] = "only of `Client.lock`: " + found[1]
    types = {**kind.__annotations__, "cache_for": "Duration | None"}
    yield first.strip()
    rows = []
    for name, meaning in entries.items():
        shown = _annotation(types[name], "Lease").removesuffix(" | None")
        rows.append(f"| `{name}` | `{shown}` | {' '.join(meaning.split())} |")
    yield "\n".join(["| option | type | meaning |", "|---|---|---|", *rows])


def _lock_doc() -> str:
    import holdfast

    return holdfast.Client.lock.__doc__ or ""


def _grouped(module: ModuleType) -> dict[str, list[str]]:
    left = set(_public(module))
    found: dict[str, list[str]] = {}
    for title, names in GROUPS.items():
        found[title] = [name for name in names if name in left]
        left -= set(names)
    errors = {name for name in left if isinstance(getattr(module, name), type)}
    first = sorted(errors, key=lambda name: (name != "HoldfastError", name))
    return {**found, "Errors": first, "More": sorted(left - errors)}


def _api(name: str, title: str, head: str, brief_of: ModuleType | None = None) -> str:
    page = _Page(name, brief_of, "threads.md")
    parts = [f"# {title}", head]
    for section, names in _grouped(page.module).items():
        if names:
            parts += [f"## {section}", *page.lines(names, 3)]
    return "\n\n".join(parts) + "\n"


def _modules() -> str:
    parts = ["# Reference: modules", "What is beside the two APIs. Optional parts need an extra, as said there."]
    for name in MODULES:
        twin = name.removesuffix(".asyncio")
        page = _Page(name, importlib.import_module(twin) if twin != name else None)
        parts += [f"## `{name}` {{ #{name} }}", _text(page.module, 0), *page.lines(_public(page.module), 3)]
    return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """The pages by their names below `reference/`."""
    threads = importlib.import_module(THREADS)
    made: dict[str, Callable[[], str]] = {
        "threads.md": lambda: _api(
            THREADS,
            "Reference: holdfast (threads)",
            "For threads. [holdfast.asyncio](asyncio.md) has the same names. Durations are seconds (`int`, `float`) or "
            "a `timedelta`: `Duration`. A `Value` is `bytes`, `str`, `int` or `float`. `**options` are those of "
            "[`LeaseOptions`](#holdfast.LeaseOptions).",
        ),
        "asyncio.md": lambda: _api(
            ASYNCIO,
            "Reference: holdfast.asyncio",
            "The names of [holdfast](threads.md), for asyncio: `import holdfast.asyncio`. Await the calls that talk to "
            "the server; write `async with` and `async for`. What reads the same for threads is explained there. "
            "`holdfast.trio` has the same classes, for trio.",
            threads,
        ),
        "modules.md": _modules,
    }
    return {name: make() for name, make in made.items()}


if __name__ == "__main__":
    sys.stdout.write("\n".join(pages().values()))
