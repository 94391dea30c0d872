"""How pushed messages are told from replies."""

from __future__ import annotations

import hiredis

__all__ = ["PUSHES", "Push"]


class _NoPush:
    """What nothing is an instance of: hiredis before 3.2 gives pushes as plain lists."""


#: The class of what a server pushes between replies.
Push: type = getattr(hiredis, "PushNotification", _NoPush)
#: Whether there is one, so that a connection can have commands and subscriptions at once.
PUSHES = Push is not _NoPush
