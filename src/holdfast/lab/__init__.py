"""The classic lock schemes, faults injected for real, and what follows from what happened."""

from holdfast.lab.history import Event, History
from holdfast.lab.verdicts import Verdict, judge

__all__ = ["Event", "History", "Verdict", "judge"]
