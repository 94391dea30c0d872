"""The command line: `holdfast run`, `status`, `doctor`, …

One file a command, each imported only when it is asked for: `holdfast run` stands in front of cron jobs and starts
fast. Nothing here ends in a traceback unless HOLDFAST_TRACEBACK is set; what a status means is in `exits`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]

_USAGE = """\
usage: holdfast COMMAND …

Distributed locks on Redis and Valkey, from the command line.

commands:
  run NAME -- CMD …     run a command while holding a lock
  status NAME           who holds a lock, since when, how many wait
  doctor                can this server be used, and how safely
{more}
options:
  -h, --help            this text; `holdfast COMMAND --help` has more, with examples
  --version             the version

environment:
  HOLDFAST_URL          the server, when no --url is given (redis://localhost:6379)
"""

#: Where each command lives; what a machine lacks (click for the lab) is found out when it is asked for.
_COMMANDS = {"run": "run", "status": "status", "doctor": "doctor", "elect": "elect", "lab": "lab"}
_MORE = {
    "elect": "elect NAME -- CMD …   run a command while being the leader",
    "lab": "lab                   the classic schemes, and how they break",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` (default: this process's arguments) names; returns the exit status."""
    from holdfast.cli import exits, report

    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except exits.UsageError as error:
        report.say(f"{error} (try: holdfast {error.command} --help)" if error.command else f"{error}")
        return exits.USAGE
    except KeyboardInterrupt:
        return exits.SIGNALLED + 2
    except BrokenPipeError:
        # Whoever read our output has gone; nothing is left to say, also not when the interpreter flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return exits.SIGNALLED + 13
    except Exception as error:
        if os.environ.get("HOLDFAST_TRACEBACK"):
            raise
        report.say(exits.sentence(error))
        return exits.status_of(error)


def _dispatch(words: list[str]) -> int:
    from holdfast.cli import exits

    first = words[0] if words else "--help"
    if first in ("-h", "--help", "help"):
        (sys.stdout if words else sys.stderr).write(
            _USAGE.format(more="".join(f"  {line}\n" for line in _MORE.values() if _has(line)))
        )
        return exits.OK if words else exits.USAGE
    if first in ("-V", "--version"):
        import holdfast

        sys.stdout.write(f"holdfast {holdfast.__version__}\n")
        return exits.OK
    if first not in _COMMANDS or not _has(first):
        known = ", ".join(name for name in _COMMANDS if _has(name))
        raise exits.UsageError(f"there is no command {first!r}; there are: {known} (try: holdfast --help)")
    if first == "run":
        from holdfast.cli import run

        return run.main(words[1:])
    if first == "status":
        from holdfast.cli import status

        return status.main(words[1:])
    if first == "doctor":
        from holdfast.cli import doctor

        return doctor.main(words[1:])
    return _elsewhere(first, words[1:])


def _has(line: str) -> bool:
    """Whether the command at the beginning of a line is part of this installation."""
    name = line.split(" ", 1)[0]
    return os.path.exists(os.path.join(os.path.dirname(__file__), f"{_COMMANDS[name]}.py"))


def _elsewhere(name: str, words: list[str]) -> int:
    """Commands that are click groups."""
    import importlib

    from holdfast.cli import exits, report

    try:
        module = importlib.import_module(f"holdfast.cli.{name}")
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        report.say(f"`holdfast {name}` needs {error.name}: pip install 'holdfast[cli]'")
        return exits.UNAVAILABLE
    if hasattr(module, "main"):
        return int(module.main(words) or 0)
    try:
        return int(getattr(module, name).main(words, prog_name=f"holdfast {name}", standalone_mode=False) or 0)
    except Exception as error:
        shown = getattr(error, "format_message", None)  # click's own errors say what was wrong with the usage
        if shown is None:
            raise
        raise exits.UsageError(shown(), name) from None
