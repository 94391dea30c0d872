"""`python -m django close_day`: in the crontab of every host, and run by one of them."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from ...locks import locks
from ...models import Order


class Command(BaseCommand):
    help = "Close shipped orders. Does nothing if another host runs it."

    def handle(self, *args: Any, **options: Any) -> None:
        lease = locks.lock("close-day", at_least=55).try_acquire()
        if lease is None:
            self.stdout.write("runs elsewhere, or has run this minute")
            return
        with lease:
            closed = Order.objects.filter(state="shipped").update(state="closed", fence=lease.fencing_token)
            self.stdout.write(f"closed {closed}")
