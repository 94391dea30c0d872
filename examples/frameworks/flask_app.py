"""Flask under gunicorn: one client for a module. `docs/frameworks/web.md` explains it.

export HOLDFAST_URL=redis://localhost:6379
gunicorn --preload --workers 2 --threads 4 examples.frameworks.flask_app:app
"""

from __future__ import annotations

import os
import time
from typing import Any

import flask

import holdfast

app = flask.Flask(__name__)
locks = holdfast.connect()  # HOLDFAST_URL; each worker opens its own connections, even after --preload


@app.errorhandler(holdfast.AcquireTimeout)
def locked(error: holdfast.AcquireTimeout) -> Any:
    return {"detail": f"{error.kind} {error.name} is taken"}, 423, {"Retry-After": "1"}


@app.post("/orders/<int:order>/pack")
def pack(order: int) -> Any:
    with locks.lock(f"order:{order}", ttl=10).acquire(timeout=0.5) as lease:
        time.sleep(float(flask.request.args.get("seconds", 0)))
        lease.ensure_held()  # or LeaseLost: check before what must not be done twice
        return {"packed_by": os.getpid(), "fencing_token": lease.fencing_token}
