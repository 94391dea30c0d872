"""Reading arguments: durations, the options that commands share, and an argparse that exits as we do."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

from holdfast.cli.exits import UsageError

#: The longest lease that the library allows, s.
TTL_MAX_S = 365 * 86_400.0
#: Between two looks at all locks, s.
INTERVAL_LEAST_S = 0.1
#: What is longer is as good as this, some thirty years, for which every system can wait, s.
_DURATION_MAX_S = 1e9
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


#: With a width it need not find out that of the terminal, for which it imports more than all of argparse.
_Help = partial(argparse.RawDescriptionHelpFormatter, width=110)


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` where argparse would exit with 2."""

    def __init__(self, command: str, **settings: Any) -> None:
        super().__init__(prog=f"holdfast {command}", formatter_class=_Help, allow_abbrev=False, **settings)
        self.command = command

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, self.command)

    def add_duration(self, option: str, help: str, default: float | None = None, least_s: float = 0.0) -> None:
        self.add_argument(option, metavar="D", type=partial(duration, least_s=least_s), default=default, help=help)


def duration(text: str, least_s: float = 0.0) -> float:
    """Seconds of `30`, `30s`, `500ms`, `1.5m`, `2h`, `1d`."""
    number = text.strip().rstrip("mshd")
    unit = text.strip().removeprefix(number) or "s"
    if not (number.isascii() and number.replace(".", "", 1).isdigit() and unit in _UNIT_S):
        raise argparse.ArgumentTypeError(
            f"{shortened(text)!r} is not a valid duration: a number with ms, s, m, h or d, as in 500ms or 2m"
        )
    seconds = min(float(number) * _UNIT_S[unit], _DURATION_MAX_S)
    if seconds < least_s:
        raise argparse.ArgumentTypeError(f"{shortened(text)!r} is too short: at least {least_s:g}s")
    return seconds


def shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "…"


def add_server_options(parser: Parser, *, embedded: bool = True) -> None:
    group = parser.add_argument_group("server")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--url",
        metavar="URL",
        help="redis://, rediss:// (TLS), unix://, redis+sentinel://, redis+cluster:// or redlock://, as in "
        "docs/topologies.md; default: HOLDFAST_URL, which also keeps a password out of `ps`",
    )
    if embedded:
        which.add_argument(
            "--embedded", action="store_true", help="start a private Valkey for this command only, to try things out"
        )
    group.add_argument(
        "--namespace",
        metavar="N",
        default="holdfast",
        help="prefix of the keys (default: holdfast); '' makes NAME itself the key, as other lock libraries do",
    )


def add_report_options(parser: Parser, as_json: str = "print JSON") -> None:
    parser.add_argument("--json", action="store_true", help=as_json)
    add_server_options(parser, embedded=False)


def client_options(options: argparse.Namespace) -> dict[str, Any]:
    return {"url": options.url, "namespace": options.namespace or None}


@contextmanager
def private_server(options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Start the server of --embedded, if that is given; yields what a command finds of it in its environment."""
    if not options.embedded:
        yield {}
        return
    from holdfast import embedded

    with embedded.server() as server:
        options.url = server.unix_url
        yield {"HOLDFAST_URL": server.unix_url}


def split_command(words: list[str], command: str) -> tuple[list[str], list[str]]:
    at = words.index("--") if "--" in words else len(words)
    if at + 1 >= len(words) and not {"-h", "--help"} & {*words}:
        wrong = "there is no command after --" if "--" in words else "put the command after --, as in: NAME -- CMD …"
        raise UsageError(wrong, command)
    return words[:at], words[at + 1 :]
