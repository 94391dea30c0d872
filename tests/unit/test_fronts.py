"""Fronts: Python finds fast what each acquire reads of them."""

from __future__ import annotations

import asyncio

import holdfast
import holdfast.asyncio

URL = "redis://127.0.0.1:1"
#: CPython 3.11 keeps 30 attributes in place, but for one or two that it reserves, and those of others in a dictionary.
MOST = 28


def test_the_front_of_threads_has_few_attributes() -> None:
    with holdfast.connect(URL) as locks:
        assert len(vars(locks._session.driver)) <= MOST


async def _attributes() -> int:
    async with holdfast.asyncio.connect(URL) as locks:
        assert locks._session.driver.home is not None  # which it remembers
        return len(vars(locks._session.driver))


def test_the_front_of_tasks_has_few_attributes() -> None:
    assert asyncio.run(_attributes()) <= MOST
