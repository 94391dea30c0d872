"""`holdfast web`: a page that shows the locks as they are, for browsers on this machine."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import os
import re
import secrets
import socket
import sys
from importlib.util import find_spec
from typing import Any

from holdfast.cli import exits
from holdfast.cli.exits import UsageError
from holdfast.cli.options import INTERVAL_LEAST_S, Parser, add_server_options, client_options
from holdfast.cli.report import say

_EPILOG = """\
examples:
  holdfast web
  holdfast web 'orders:*' --listen 127.0.0.1:9000

Shows names, holders and queues to anyone who can open its address: by default, this machine. To look from elsewhere,
better forward the port (ssh -L 8765:127.0.0.1:8765 HOST) than listen on the network. /metrics is for Prometheus, and
/api/locks for programs.

exit status: 64 usage  69 not available: the address, or a package; otherwise that of the signal that ended it"""

_LISTEN = re.compile(r"(?:(?P<host>[^:\[\]]+)|\[(?P<ip6>[^\]]+)\]):(?P<port>\d{1,5})")
#: The environment's token, which keeps it out of `ps`; and what is too short to be one.
_TOKEN = "HOLDFAST_WEB_TOKEN"
_TOKEN_LEAST = 16
#: How long an open page may hold up the end, s.
_END_S = 2


def main(words: list[str]) -> int:
    parser = Parser("web", description="A live page of the locks, their holders and queues.", epilog=_EPILOG)
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", default="*", help="which names (default: all)")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:8765",
        help="where (default: 127.0.0.1:8765; port 0: a free one)",
    )
    parser.add_argument(
        "--allow-host", metavar="NAME", action="append", default=[], help="another host name that browsers may use"
    )
    parser.add_duration("--interval", "how often to look (default: 400ms)", 0.4, INTERVAL_LEAST_S)
    parser.add_argument("--allow-break", action="store_true", help="leases may be broken, by those who have the token")
    parser.add_argument("--token", metavar="T", help="that token (default: HOLDFAST_WEB_TOKEN, or one that is printed)")
    add_server_options(parser, embedded=False)
    options = parser.parse_args(words)
    host, port = _address(options.listen)
    token = _token(options)
    if not all(map(find_spec, ("starlette", "uvicorn"))):
        # Not the extra: how that is named depends on where holdfast was installed from.
        say("the page needs Starlette and uvicorn: pip install starlette uvicorn")
        return exits.UNAVAILABLE
    try:
        listening = _listen(host, port)
    except OSError as error:
        say(f"cannot listen on {options.listen}: {str(error.strerror or error).partition(' (while')[0]}")
        return exits.UNAVAILABLE
    with listening:
        asyncio.run(_serve(options, host, listening, token))
    return exits.OK


def _address(text: str) -> tuple[str, int]:
    found = _LISTEN.fullmatch(text)
    if found is None or int(found["port"]) > 65_535:
        raise UsageError(f"--listen {text!r} is not a valid HOST:PORT, as in 127.0.0.1:8765 or [::1]:8765", "web")
    return found["host"] or found["ip6"], int(found["port"])


def _token(options: argparse.Namespace) -> str | None:
    """Return the token that allows its owner to break leases; None: the page is read-only."""
    if not options.allow_break:
        if options.token is not None:
            raise UsageError("--token is for --allow-break", "web")
        return None
    token: str = options.token or os.environ.get(_TOKEN) or secrets.token_urlsafe(24)
    if len(token) < _TOKEN_LEAST or not token.isascii() or not token.isprintable():
        raise UsageError(f"--token has at least {_TOKEN_LEAST} printable ASCII characters", "web")
    return token


def _listen(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family)


def _names(host: str, more: list[str]) -> frozenset[str]:
    """The names under which browsers may ask."""
    names = {host.lower(), *(each.lower() for each in more)}
    if _is_loopback(host):
        names |= {"localhost", "127.0.0.1", "::1"}
    else:
        # Rebinding takes a name that its owner can point at us; an address is none, nor is the name of this machine.
        names |= {"*ip", "localhost", socket.gethostname().lower()}
    return frozenset(names)


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _trouble(error: Exception) -> None:
    if os.environ.get("HOLDFAST_TRACEBACK") and exits.status_of(error) == exits.INTERNAL:
        raise error
    said = str(error) if isinstance(error, TimeoutError) else exits.sentence(error)
    say(f"{said}; looking again until it answers")


async def _serve(options: argparse.Namespace, host: str, listening: socket.socket, token: str | None) -> None:
    import uvicorn

    import holdfast.asyncio
    from holdfast.web.app import application
    from holdfast.web.poller import Poller

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            super().handle_exit(sig, frame)
            loop.call_soon_threadsafe(poller.stop)  # else the streams of open pages would hold up the end

    loop = asyncio.get_running_loop()
    async with holdfast.asyncio.connect(**client_options(options)) as client:
        poller = Poller(client, options.pattern, options.interval, _trouble)
        app = application(poller, _names(host, options.allow_host), token)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=_END_S,
        )
        client.list(options.pattern)  # a pattern that is refused is refused here
        bound = listening.getsockname()
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        if not _is_loopback(host):
            say(f"warning: {shown} can be reached from elsewhere: names and holders of locks are shown to anyone there")
        sys.stdout.write(f"http://{shown}:{bound[1]}/\n")
        if token and options.token is None and _TOKEN not in os.environ:
            sys.stdout.write(f"token: {token}\n")
        sys.stdout.flush()
        async with asyncio.TaskGroup() as group:
            polling = group.create_task(poller.run())
            await Server(config).serve(sockets=[listening])
            polling.cancel()
