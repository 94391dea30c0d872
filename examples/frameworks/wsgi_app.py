"""WSGI, whatever the framework, under gunicorn. `docs/frameworks/web.md` explains it.

export HOLDFAST_URL=redis://localhost:6379
gunicorn --preload --workers 2 --threads 4 examples.frameworks.wsgi_app:app
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIEnvironment

import holdfast

locks = holdfast.connect()  # HOLDFAST_URL

with locks.lock("migrate"):  # once at a time on all hosts; with --preload once for all workers of this one
    pass  # migrate the database


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    name, seconds = environ["PATH_INFO"], float(environ["QUERY_STRING"] or 0)
    try:
        with locks.lock(name, ttl=8).acquire(timeout=1) as lease:
            time.sleep(seconds)  # the work
            lease.ensure_held()
    except holdfast.AcquireTimeout:
        start_response("423 Locked", [("Retry-After", "1")])
        return [b""]
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"%d %d" % (os.getpid(), lease.fencing_token)]
