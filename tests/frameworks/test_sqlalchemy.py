"""SQLAlchemy on SQLite: a write that comes too late is refused by the column with the fencing token."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="`make frameworks` has it")

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import holdfast
from examples.frameworks.sqlalchemy_stock import Base, Stale, Stock, sell_one, write_stock, write_stock_async
from testbed.servers import start


def test_a_stale_writer_is_refused(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/stock.db")
    Base.metadata.create_all(engine)
    with start() as server, holdfast.connect(server.url) as locks, holdfast.connect(server.url) as elsewhere:
        with Session(engine) as session, session.begin():
            session.add(Stock(item="lamp", left=10))
        late = elsewhere.lock("stock:lamp", ttl=0.5, renew=False).acquire()
        with locks.lock("stock:lamp").acquire(timeout=30) as lease, Session(engine) as session, session.begin():
            write_stock(session, "lamp", 7, lease.fencing_token)
            write_stock(session, "lamp", 6, lease.fencing_token)  # the same holder may write again
        assert late.state is holdfast.LeaseState.LOST
        with Session(engine) as session, pytest.raises(Stale), session.begin():
            write_stock(session, "lamp", 9, late.fencing_token)
        sell_one(locks, engine, "lamp")
        with Session(engine) as session:
            stock = session.get_one(Stock, "lamp")
            assert stock.left == 5 and stock.fence > lease.fencing_token
    engine.dispose()


def test_an_asyncio_session(tmp_path: Path) -> None:
    async def play() -> int:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/stock.db")
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with AsyncSession(engine) as session, session.begin():
            session.add(Stock(item="lamp", left=10))
        async with AsyncSession(engine) as session, session.begin():
            await write_stock_async(session, "lamp", 7, 2)
        async with AsyncSession(engine) as session:
            with pytest.raises(Stale):
                async with session.begin():
                    await write_stock_async(session, "lamp", 9, 1)
        async with AsyncSession(engine) as session:
            left = (await session.get_one(Stock, "lamp")).left
        await engine.dispose()
        return left

    assert asyncio.run(play()) == 7
