"""FastAPI (Starlette): a lock for a request. `docs/frameworks/web.md` explains it.

export HOLDFAST_URL=redis://localhost:6379
uvicorn --workers 2 examples.frameworks.fastapi_app:app
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse

import holdfast.asyncio as holdfast


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with holdfast.connect() as locks:  # HOLDFAST_URL; connects when first used
        app.state.locks = locks
        yield  # at shutdown, what is still held is released


app = FastAPI(lifespan=lifespan)


async def lease_of_order(order: int, request: Request) -> AsyncIterator[holdfast.Lease]:
    lock = request.app.state.locks.lock(f"order:{order}", ttl=10)
    async with await lock.acquire(timeout=0.5) as lease:
        yield lease


OrderLease = Annotated[holdfast.Lease, Depends(lease_of_order)]


@app.exception_handler(holdfast.AcquireTimeout)
async def locked(request: Request, error: holdfast.AcquireTimeout) -> JSONResponse:
    seconds = error.holder.remaining_s if error.holder else None
    after = {"Retry-After": str(math.ceil(seconds or 1))}
    return JSONResponse({"detail": f"{error.kind} {error.name} is taken"}, 423, headers=after)


@app.exception_handler(holdfast.LeaseLost)
async def lost(request: Request, error: holdfast.LeaseLost) -> JSONResponse:
    return JSONResponse({"detail": "the lock was lost; try again"}, 503, headers={"Retry-After": "1"})


@app.post("/orders/{order}/pack")
async def pack(order: int, lease: OrderLease, seconds: float = 0) -> dict[str, Any]:
    await asyncio.sleep(seconds)  # the work, cancelled if the lease is lost
    return {"packed_by": os.getpid(), "fencing_token": lease.fencing_token}


@app.post("/reports/{day}")
async def report(day: str, request: Request) -> JSONResponse:
    lease = await request.app.state.locks.lock(f"report:{day}").try_acquire()
    if lease is None:
        return JSONResponse({"detail": "already being written"}, 409)
    async with lease:
        await asyncio.sleep(0.2)
        return JSONResponse({"detail": "written"})
