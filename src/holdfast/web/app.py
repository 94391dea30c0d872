"""The page and what it asks for, as an ASGI application.

Laws: nothing is changed by a GET; a request that names another host than ours is refused, whatever address it came to
(DNS rebinding); the page loads nothing from elsewhere and runs no script that is not a file of ours; a lease is broken
only for a request from our own page, with the token, that names the holder it was shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.web import view
from holdfast.web.poller import Poller

_STATIC = Path(__file__).parent / "static"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: A request to break a lease has no more bytes.
_ASKED_MAX = 8_192
#: Streams at a time: each takes a connection and some memory.
_STREAMS_MAX = 100


def application(poller: Poller, hosts: frozenset[str], token: str | None = None) -> ASGIApp:
    """The application. `hosts`: names under which it may be asked. `token`: those that have it may break leases."""
    streams = asyncio.Semaphore(_STREAMS_MAX)

    async def events(request: Request) -> Response:
        if streams.locked():
            return PlainTextResponse("too many pages are open", 503)
        return StreamingResponse(_events(poller, streams), media_type="text/event-stream")

    async def table(request: Request) -> Response:
        # Browsers take a name such as ".." for a part of the path, so they may give it apart.
        name = request.query_params.get("name")
        return JSONResponse(poller.table() if name is None else {"locks": poller.detail(name)})

    async def detail(request: Request) -> Response:
        found = poller.detail(request.path_params["name"])
        return JSONResponse({"locks": found}, 200 if found else 404)

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(poller.metrics(), media_type="text/plain; version=0.0.4")

    async def take_away(request: Request) -> Response:
        refused = _refused(request, token)
        if refused is not None:
            return PlainTextResponse(*refused)
        asked = _asked(await _body(request))
        if asked is None:
            return PlainTextResponse("this takes kind, name, token, confirm and reason, as JSON", 400)
        try:
            status, said = await poller.take_away(**asked)
        except ConfigurationError as error:
            status, said = 400, str(error)
        except HoldfastError as error:
            status, said = 502, str(error)
        return JSONResponse({"said": said}, status)

    async def page(request: Request) -> Response:
        wanted = request.query_params.get("lang") or request.headers.get("accept-language", "")
        text = (_STATIC / "page.html").read_text(encoding="utf-8").replace("{LANG}", _language(wanted))
        return Response(text.replace("{BREAK}", "yes" if token else "no"), media_type="text/html; charset=utf-8")

    routes = [
        Route("/", page),
        Route("/api/events", events),
        Route("/api/locks", table),
        Route("/api/locks/{name:path}", detail),
        Route("/metrics", metrics),
        *([Route("/api/break", take_away, methods=["POST"])] if token else []),
        Mount("/", StaticFiles(directory=_STATIC)),
    ]
    return _guarded(Starlette(routes=routes), hosts)


async def _events(poller: Poller, streams: asyncio.Semaphore) -> AsyncIterator[bytes]:
    async with streams, contextlib.aclosing(poller.stream()) as stream:
        async for message in stream:
            yield b"data: " + message + b"\n\n"


def _refused(request: Request, token: str | None) -> tuple[str, int] | None:
    """Why not, and the status; None for a request of our own page, with the token."""
    given = request.headers.get("x-holdfast-token", "")
    if request.headers.get("origin") not in (f"http://{request.headers['host']}", f"https://{request.headers['host']}"):
        return "only the page itself may ask for this", 403
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return "only the page itself may ask for this", 403
    if token is None or not secrets.compare_digest(given.encode(), token.encode()):
        return "this is not the token that holdfast web has printed", 401
    return None


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _ASKED_MAX:
            return b""
    return body


def _asked(body: bytes) -> dict[str, str] | None:
    """Read what is to be broken; None where that is not said in full."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    keys = ("kind", "name", "token", "confirm", "reason")
    if not isinstance(found, dict) or not all(isinstance(found.get(key), str) for key in keys):
        return None
    return {key: found[key] for key in keys} if found["kind"] in view.KINDS and found["token"] else None


def _language(wanted: str) -> str:
    """The first of ours in a list as browsers send it (`zh-CN,zh;q=0.9,en;q=0.8`), by its weights."""
    found = []
    for place, part in enumerate(wanted[:200].split(",")):
        language, _, weight = part.strip().partition(";q=")
        try:
            found.append((-float(weight or 1), place, language[:2].lower()))
        except ValueError:
            continue
    return next((language for _, _, language in sorted(found) if language in ("en", "zh")), "en").replace("zh", "zh-CN")


def _guarded(app: ASGIApp, hosts: frozenset[str]) -> ASGIApp:
    """Refuse what names another host, and add the headers that keep a page to itself."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
            await send(message)

        given = [value for name, value in scope["headers"] if name == b"host"]
        if len(given) != 1 or not _is_ours(given[0].decode("latin-1"), hosts):
            await PlainTextResponse("this is not a name of mine (see --allow-host)", 421)(scope, receive, send)
        else:
            await app(scope, receive, with_headers)

    return guarded


def _is_ours(host: str, hosts: frozenset[str]) -> bool:
    """True if a Host header names us: by one of these names or, where "*ip" is one of them, by any address."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.strip("[]").lower()
    if name in hosts:
        return True
    with contextlib.suppress(ValueError):
        return "*ip" in hosts and bool(ipaddress.ip_address(name))
    return False
