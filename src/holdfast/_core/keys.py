"""The names of what lies on the server.

Laws: all keys of one lock share a slot of a Cluster, whatever its name; two names never share a key.

Theory: a Cluster hashes what stands between the first "{" and the first "}" behind it, when that is not
empty. All our keys of a lock begin with the same `namespace:{NAME}`, so they agree whatever NAME holds, but
for a name that begins with "}", which would leave the braces empty: such a name (and, so that names stay
apart, one that begins with "%"s and "}") gets one more "%" in front.
"""

from __future__ import annotations

import re

from holdfast.errors import ConfigurationError

__all__ = ["LockKeys", "inbox_prefix", "lock_keys"]

_EMPTY_TAG = re.compile(r"%*\}")


class LockKeys:
    """The keys of one lock: `all` in the order of the scripts, `base` to derive further ones from."""

    __slots__ = ("all", "base", "fence", "gone", "inboxes", "lock", "name", "queue", "tag")

    def __init__(self, name: str, lock: str, base: str, inboxes: str) -> None:
        self.name = name
        self.lock = lock
        self.base = base
        self.tag = base
        self.fence = f"{base}:fence"
        self.queue = f"{base}:queue"
        self.gone = f"{base}:gone"
        self.inboxes = inboxes
        self.all = (self.lock, self.fence, self.queue, self.gone)

    def part(self, kind: str) -> LockKeys:
        """The keys of something else with the same name, as its semaphore: apart from the lock, in its slot."""
        base = f"{self.tag}:{kind}"
        keys = LockKeys(self.name, base, base, self.inboxes)
        keys.tag = self.tag
        return keys

    def order_of(self, token: str) -> str:
        """Where the order of a lease's extensions is kept: one lease's, since many may hold at once."""
        return f"{self.base}:order:{token}"

    def more(self, *kinds: str) -> tuple[str, ...]:
        """`all`, and further keys behind them."""
        return (*self.all, *(f"{self.base}:{kind}" for kind in kinds))


def inbox_prefix(namespace: str | None) -> str:
    """What the channel names of clients' inboxes start with."""
    return f"{namespace or 'holdfast'}:inbox:"


def lock_keys(namespace: str | None, name: str) -> LockKeys:
    """The keys of lock `name`. With `namespace=None` the lock's key is `name` itself, as other clients use it."""
    if namespace is not None:
        escaped = f"%{name}" if _EMPTY_TAG.match(name) else name
        key = f"{namespace}:{{{escaped}}}"
        return LockKeys(name, key, key, inbox_prefix(namespace))
    opened = name.find("{")
    closed = name.find("}", opened + 1) if opened >= 0 else -1
    if opened >= 0 and closed > opened + 1:
        base = name  # it has a hash tag of its own
    elif "}" not in name:
        base = f"{{{name}}}"
    else:
        raise ConfigurationError(
            "name",
            name,
            'without a namespace a name with "}" needs a hash tag, as in "{order}7", for its other keys',
        )
    return LockKeys(name, name, base, inbox_prefix(None))
