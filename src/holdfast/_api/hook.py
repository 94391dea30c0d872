"""Where `holdfast.testing` looks on, and gets in between. Costs one comparison otherwise."""

from __future__ import annotations

from typing import Any

#: A `Trouble`: told of all acquisitions of this process, by the thread or task that makes them. What its `acquiring`
#: raises is what `acquire` raises; what its `granted` raises gives the lease back.
observer: Any = None
