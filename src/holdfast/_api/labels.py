"""The label by which metrics tell locks apart: families of names, since each value of a label is kept for good."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import ConfigurationError

#: How many families a process may have: more are a mistake, and come under "other".
FAMILIES_MAX = 200
#: Upper bounds of the histograms, s: from one round trip to a long job.
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
#: Reasons of `LeaseLost` that are fixed words.
_REASONS = frozenset({"expired", "taken", "max_hold", "closed"})


class Families:
    """What a user's `label` function makes of names; "all" without one."""

    def __init__(self, label: Callable[[str], str] | None) -> None:
        if label is not None and not callable(label):
            raise ConfigurationError("label", label, "a function that takes a name and returns its family, or None")
        self._label = label
        self._seen: set[str] = set()

    def of(self, name: str) -> str:
        if self._label is None:
            return "all"
        family = str(self._label(name))
        if family not in self._seen:
            if len(self._seen) >= FAMILIES_MAX:
                return "other"
            self._seen.add(family)
        return family


def reason_of(reason: str) -> str:
    """The reason of a loss as a label. That of a break says who broke it and why, in the words of people."""
    return reason if reason in _REASONS else "broken" if reason.startswith("broken") else "other"
