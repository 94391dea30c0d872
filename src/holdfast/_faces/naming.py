"""Names of locks from objects and from the arguments of a call. The same for both faces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast._faces.options import check_name
from holdfast.errors import ConfigurationError

__all__ = ["name_of", "namer"]


def name_of(subject: object) -> str:
    """What an object says its lock is called."""
    named = getattr(subject, "__lock_name__", None)
    if callable(named):
        named = named()
    if not isinstance(named, str) or not named:
        raise ConfigurationError(
            "subject", subject, "an object with an attribute or a method __lock_name__ that gives a non-empty str"
        )
    return check_name(named)


def namer(template: str, function: Callable[..., Any]) -> Callable[..., str]:
    """From the arguments of a call to the name. What the template names has to be a parameter of the function."""
    check_name(template, "template")
    # Imported here: a program that names no lock by a template shall not wait for these at its start.
    from inspect import signature as signature_of
    from string import Formatter

    signature = signature_of(function)
    try:
        fields = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise ConfigurationError("template", template, f"a format string ({error})") from None
    for field in fields:
        parameter = field.partition(".")[0].partition("[")[0]
        if parameter not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            raise ConfigurationError(
                "template", template, f"fields that are parameters of {function.__qualname__} ({known}), not {field!r}"
            )

    def name(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return check_name(template.format(**bound.arguments))

    return name
