"""Views and tasks call these."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from django.db import transaction

import holdfast

from .locks import locks
from .models import Order


class Stale(Exception):
    """A later holder of the lock has already written."""


@contextlib.contextmanager
def locked_order(order: int, timeout: float = 5) -> Iterator[holdfast.Lease]:
    """The lock outside, the transaction inside: the next holder sees what was committed."""
    with locks.lock(f"order:{order}").acquire(timeout=timeout) as lease, transaction.atomic():
        yield lease
        lease.ensure_held()  # if it was lost, LeaseLost rolls the transaction back


def set_state(order: int, state: str, lease: holdfast.Lease) -> None:
    token = lease.fencing_token
    if not Order.objects.filter(pk=order, fence__lte=token).update(state=state, fence=token):
        raise Stale(f"order {order} was written by a later holder, or does not exist")


def ship(order: int) -> None:
    with locked_order(order) as lease:
        set_state(order, "shipped", lease)


def ship_inside_a_transaction(order: int) -> None:
    """With ATOMIC_REQUESTS, a transaction is already open: keep the lock until it is committed."""
    lease = locks.lock(f"order:{order}", max_hold=60).acquire(timeout=5)
    try:
        set_state(order, "shipped", lease)
        transaction.on_commit(lease.release)
    except BaseException:
        lease.release()
        raise
