"""SQLAlchemy: a column with the fencing token refuses a late writer. `docs/frameworks/databases.md` explains it."""

from __future__ import annotations

from sqlalchemy import BigInteger, Engine, String, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import holdfast


class Base(DeclarativeBase):
    pass


class Stock(Base):
    __tablename__ = "stock"
    item: Mapped[str] = mapped_column(String(40), primary_key=True)
    left: Mapped[int]
    fence: Mapped[int] = mapped_column(BigInteger, default=0)


class Stale(Exception):
    """A later holder of the lock has already written."""


def write_stock(session: Session, item: str, left: int, fence: int) -> None:
    mine = update(Stock).where(Stock.item == item, Stock.fence <= fence)
    if session.connection().execute(mine.values(left=left, fence=fence)).rowcount == 0:
        raise Stale(f"{item}: another holder of the lock has written since token {fence}")


async def write_stock_async(session: AsyncSession, item: str, left: int, fence: int) -> None:
    await session.run_sync(write_stock, item, left, fence)


def sell_one(locks: holdfast.Client, engine: Engine, item: str) -> None:
    # `with` exits from right to left: the transaction is committed before the lock is released.
    with locks.lock(f"stock:{item}") as lease, Session(engine) as session, session.begin():
        write_stock(session, item, session.get_one(Stock, item).left - 1, lease.fencing_token)
