"""What the locks protect."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    state = models.CharField(max_length=20, default="new")
    fence = models.BigIntegerField(default=0)  # the fencing token of the last write
