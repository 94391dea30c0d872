"""The command as a process group of its own: made, started, signalled, waited for.

Laws: the command runs as if it had been started by a shell (arguments, environment, open files, signals,
output: all untouched); it dies with us where the kernel can see to that.

Theory: the process is forked before the lock is asked for, while there is one thread only, since forking is safe
then; it waits on a pipe, and becomes the command when it gets the fencing token there. End of the pipe means that
there is nothing to run. That the command could not be executed comes back on a second pipe, which closes by
itself when it could.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from holdfast.cli import exits
from holdfast.cli.signals import Mask, as_before, forked

#: From linux/prctl.h: the signal to get when the parent dies.
_PR_SET_PDEATHSIG = 1


class Command:
    """Made before there are threads; runs nothing before `start`."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        (go, tells), (hears, failed) = os.pipe(), os.pipe()
        parent = os.getpid()

        def become(mask: Mask) -> NoReturn:
            as_before(mask)
            os.close(tells)
            os.close(hears)
            os.environ.update(environment)
            _become_command(list(argv), go, failed, parent)

        #: The process group, and its first process.
        self.group = forked(become)
        os.close(go)
        os.close(failed)
        self._go, self._failed = open(tells, "wb", buffering=0), open(hears, "rb")  # noqa: SIM115 - see `close`
        # Both sides do it, so that the group is there for either of them. It cannot have become the command yet.
        with suppress(OSError):  # it was faster, or has died: then waiting for it says so
            os.setpgid(self.group, self.group)
        self.name = argv[0]
        #: Exit status as a shell would say it, once the command has ended.
        self.status: int | None = None
        #: The signal that stopped it, while it is stopped.
        self.stopped_by: int | None = None

    def start(self, fencing_token: int) -> None:
        """Become the command."""
        with suppress(BrokenPipeError), self._go:  # it was killed already; waiting for it says how
            self._go.write(b"%d" % fencing_token)

    def close(self) -> None:
        """End it, whether it runs, or has not been started."""
        self._go.close()
        self._failed.close()
        if self.status is None:
            self.signal(signal.SIGKILL)
            os.waitpid(self.group, 0)

    def signal(self, number: int) -> None:
        """Send a signal to the whole group; it may have ended."""
        with suppress(OSError):
            os.killpg(self.group, number)

    def look(self) -> None:
        """Note what has become of it; does not wait."""
        while self.status is None:
            pid, status = os.waitpid(self.group, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                self.stopped_by = os.WSTOPSIG(status)
            elif os.WIFCONTINUED(status):
                self.stopped_by = None
            elif os.WIFSIGNALED(status):
                self.status = exits.SIGNALLED + os.WTERMSIG(status)
            else:
                self.status = os.WEXITSTATUS(status)

    def why_not_executed(self) -> str | None:
        """Once it has ended, and once: why it did not become the command; None when it did."""
        said = self._failed.read()
        return os.strerror(int(said)) if said else None


def _become_command(argv: list[str], go: int, failed: int, parent: int) -> NoReturn:
    os.setpgid(0, 0)
    # Python ignores these two; the command should find what a shell would give it.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    _die_with(parent)
    with open(go, "rb") as pipe:
        token = pipe.read()
    if not token:
        os._exit(0)  # nothing to run
    os.environb[b"HOLDFAST_FENCING_TOKEN"] = token
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(failed, b"%d" % (error.errno or errno.EIO))
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
    except ValueError:  # an empty word as the command
        os.write(failed, b"%d" % errno.ENOENT)
        missing = True
    os._exit(exits.NOT_FOUND if missing else exits.CANNOT_EXECUTE)


def _die_with(parent: int) -> None:
    """Get SIGKILL when the parent dies: a second net below the guard, for when both are killed at once."""
    with suppress(ImportError, OSError, AttributeError):  # no Linux, or a Python without ctypes
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
