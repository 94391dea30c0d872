"""Names of locks from objects and from the arguments of a call. The same for both APIs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from holdfast._api.options import check_name
from holdfast._runtime.lazily import importing
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from string import Formatter

__all__ = ["check_template", "name_of", "namer"]


def name_of(subject: object) -> str:
    named = getattr(subject, "__lock_name__", None)
    if callable(named):
        named = named()
    if not isinstance(named, str) or not named:
        allowed = "an object with an attribute or a method __lock_name__ that gives a non-empty str"
        raise ConfigurationError("subject", subject, allowed)
    return check_name(named)


def check_template(template: object) -> str:
    if callable(template):
        allowed = 'a str: @locked has to be called, as @locked("order:{order_id}")'
        raise ConfigurationError("template", template, allowed)
    return check_name(template, "template")


def _fields(formatter: Formatter, template: str) -> Iterator[str]:
    """The fields of a format string, those within their formats included. ValueError where it is none."""
    for _, field, spec, conversion in formatter.parse(template):
        if field is not None:
            if conversion not in (None, "s", "r", "a"):
                raise ValueError(f"{conversion!r} is not a conversion")
            yield field
            yield from _fields(formatter, spec or "")


def namer(template: str, function: Callable[..., Any]) -> Callable[..., str]:
    """Return a function from the arguments of a call to the name. What the template names has to be a parameter."""
    check_template(template)
    # Imported here: a program that names no lock by a template need not wait for these at its start.
    with importing:
        from inspect import signature as signature_of
        from string import Formatter
    try:
        signature = signature_of(function)
    except (TypeError, ValueError):
        raise ConfigurationError("function", function, "a function whose signature Python knows") from None
    try:
        fields = list(_fields(Formatter(), template))
    except ValueError as error:
        raise ConfigurationError("template", template, f"a format string ({error})") from None
    called = getattr(function, "__qualname__", None) or repr(function)
    for field in fields:
        parameter = field.partition(".")[0].partition("[")[0]
        if parameter not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            allowed = f"fields that are parameters of {called} ({known}), not {field!r}"
            raise ConfigurationError("template", template, allowed)

    def name(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return check_name(template.format(**bound.arguments))

    return name
