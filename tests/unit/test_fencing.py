"""Fencing helpers that need no server, and the recipe for SQL."""

from __future__ import annotations

import pickle
import sqlite3

import pytest

from holdfast import fencing
from holdfast.errors import ConfigurationError


def test_the_gate_lets_no_older_token_pass() -> None:
    gate = fencing.FenceGate()
    gate.check("disk", 5)
    gate.check("disk", 5)
    gate.check("disk", 9)
    gate.check("tape", 1)
    with pytest.raises(fencing.StaleFencingToken) as caught:
        gate.check("disk", 8)
    assert (caught.value.resource, caught.value.token, caught.value.seen) == ("disk", 8, 9)
    assert gate.newest("disk") == 9 and gate.newest("drum") is None
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) and again.seen == 9


@pytest.mark.parametrize("token", [0, -1, 2**53 + 1, 1.5, True, "7"])
def test_what_is_no_token_is_refused(token: object) -> None:
    with pytest.raises(ConfigurationError, match="fencing_token"):
        fencing.FenceGate().check("disk", token)  # type: ignore[arg-type]


def test_the_recipe_on_sqlite() -> None:
    database = sqlite3.connect(":memory:")
    database.execute(
        "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER, fence INTEGER NOT NULL DEFAULT 0)"
    )
    database.execute("INSERT INTO accounts (id, balance) VALUES (1, 100)")

    def write(balance: int, token: int) -> None:
        done = database.execute(
            "UPDATE accounts SET balance = :balance, fence = :token WHERE id = :id AND fence <= :token",
            {"id": 1, "balance": balance, "token": token},
        )
        fencing.check_rowcount(done.rowcount, "account 1", token)

    write(90, 10)
    write(80, 12)
    write(70, 12)
    with pytest.raises(fencing.StaleFencingToken, match="account 1"):
        write(60, 11)
    assert database.execute("SELECT balance, fence FROM accounts").fetchall() == [(70, 12)]
    database.close()


def test_the_recipe_where_the_row_may_be_missing() -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER, fence INTEGER NOT NULL)")

    def write(balance: int, token: int) -> None:
        done = database.execute(
            "INSERT INTO accounts (id, balance, fence) VALUES (:id, :balance, :token) "
            "ON CONFLICT (id) DO UPDATE SET balance = excluded.balance, fence = excluded.fence "
            "WHERE accounts.fence <= excluded.fence",
            {"id": 1, "balance": balance, "token": token},
        )
        fencing.check_rowcount(done.rowcount, "account 1", token)

    write(90, 10)
    write(80, 11)
    with pytest.raises(fencing.StaleFencingToken):
        write(70, 10)
    assert database.execute("SELECT balance FROM accounts").fetchall() == [(80,)]
    database.close()


def test_the_recipe_with_sqlalchemy() -> None:
    import sqlalchemy as sa  # here, since each worker of `make test` imports this file

    accounts = sa.Table(
        "accounts",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("balance", sa.Integer),
        sa.Column("fence", sa.BigInteger, nullable=False, server_default="0"),
    )
    engine = sa.create_engine("sqlite://")
    accounts.metadata.create_all(engine)

    def write(balance: int, token: int) -> None:
        with engine.begin() as connection:
            done = connection.execute(
                accounts.update()
                .where(accounts.c.id == 1, accounts.c.fence <= token)
                .values(balance=balance, fence=token)
            )
            fencing.check_rowcount(done.rowcount, "account 1", token)

    with engine.begin() as connection:
        connection.execute(accounts.insert().values(id=1, balance=100))
    write(90, 1_795_000_000_000_000)
    with pytest.raises(fencing.StaleFencingToken):
        write(80, 1_794_000_000_000_000)
    with engine.connect() as connection:
        assert connection.execute(sa.select(accounts.c.balance)).scalar_one() == 90
    engine.dispose()
