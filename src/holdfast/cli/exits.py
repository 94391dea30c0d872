"""What the exit statuses mean. All of them, in this one place; docs/cli.md has the same table.

Statuses 64 to 78 are those of sysexits.h as far as it has a fitting one. `holdfast run` otherwise ends with the
status of its command; a command that uses the same numbers can be told apart by the message only.
"""

from __future__ import annotations

import holdfast
from holdfast.errors import quoted

#: Done (for `run`: the command ended with 0).
OK = 0
#: `deadlocks`: there are some.
DEADLOCK = 1
#: The arguments are wrong (EX_USAGE).
USAGE = 64
#: `break`, `ask`: no one holds it (EX_NOINPUT).
NOT_HELD = 66
#: The server cannot be reached, does not answer, or is in trouble (EX_UNAVAILABLE).
UNAVAILABLE = 69
#: A mistake in holdfast itself (EX_SOFTWARE).
INTERNAL = 70
#: The system has no room for what is written, starts no process, … (EX_OSERR).
SYSTEM = 71
#: The lock is held by another client; try again later (EX_TEMPFAIL).
NOT_ACQUIRED = 75
#: The lease was lost, or was about to be, and the command was ended for that.
LEASE_LOST = 76
#: The server does not let this user in, or not do what is needed (EX_NOPERM).
REFUSED = 77
#: `doctor`: the server can be reached, but locks must not be kept there (EX_CONFIG).
UNUSABLE = 78
#: The command is there and cannot be executed (as shells say).
CANNOT_EXECUTE = 126
#: There is no such command (as shells say).
NOT_FOUND = 127
#: Plus the signal's number: ended by a signal (as shells say).
SIGNALLED = 128

_NO_ENTRY = frozenset({"NOAUTH", "WRONGPASS", "NOPERM"})
_ADDRESS = "check the address"


class UsageError(Exception):
    """The arguments of `command` are wrong."""

    def __init__(self, message: str, command: str = "") -> None:
        super().__init__(message)
        self.command = command


def status_of(error: BaseException) -> int:
    if isinstance(
        error, (UsageError, holdfast.ConfigurationError, holdfast.DeclarationMismatch, holdfast.TooManyPermits)
    ):
        return USAGE
    if isinstance(error, (holdfast.AcquireTimeout, holdfast.AcquireCancelled, holdfast.AlreadyHeld)):
        return NOT_ACQUIRED
    if isinstance(error, (holdfast.LeaseLost, holdfast.NotHeld)):
        return LEASE_LOST
    if isinstance(error, holdfast.ScriptRefused) or getattr(error, "kind", None) in _NO_ENTRY:
        return REFUSED
    if isinstance(error, holdfast.HoldfastError):
        return SYSTEM if isinstance(error, holdfast.CannotStartThread) else UNAVAILABLE
    return SYSTEM if isinstance(error, OSError) else INTERNAL


def sentence(error: BaseException) -> str:
    """Tell people about an error. Never shows what a URL says about users and passwords."""
    if isinstance(error, holdfast.ServerUnreachable):
        return str(error).replace(_ADDRESS, f"{_ADDRESS} (--url or HOLDFAST_URL)", 1)
    if isinstance(error, holdfast.DeclarationMismatch):
        return f"{quoted(error.name)} has {error.stored} slots, not {error.declared}: use the same --slots everywhere"
    if isinstance(error, holdfast.ConfigurationError) and error.value is None:  # an option that was not given, or ''
        return f"--{error.argument}: {error.allowed}"
    if isinstance(error, (holdfast.HoldfastError, UsageError)):
        return str(error)
    what = error.strerror if isinstance(error, OSError) else None
    what = f"the system says: {what}" if what else f"internal error: {type(error).__name__}: {error}"
    return f"{what} (HOLDFAST_TRACEBACK=1 shows where)"
