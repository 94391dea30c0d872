"""The names of what lies on the server.

Laws: all keys of one lock share a slot of a Cluster, whatever its name; two names never share a key.

A kind of key that a user has named, as a condition, is written without ":", "%" and "}", so that it ends nothing.

Theory: a Cluster hashes what stands between the first "{" and the first "}" behind it, when that is not
empty. All our keys of a lock begin with the same `namespace:{NAME}`, so they agree whatever NAME holds, but
for a name that begins with "}", which would leave the braces empty: such a name (and, so that names stay
apart, one that begins with "%"s and "}") gets one more "%" in front.
"""

from __future__ import annotations

import binascii
import functools
import itertools
import re

from holdfast._core.kinds import KINDS, Kind
from holdfast.errors import ConfigurationError

_EMPTY_TAG = re.compile(r"%*\}")
_SPECIAL = re.compile("[:%}]")
#: Slots of a Cluster.
SLOTS = 16_384
#: Names that are the other keys of another name, without a namespace. See `_beside`.
_PARTS = {"done", "failed", "fence", "fenced", "queue", "gone", "order", "broken"}
_PARTS.update(part for kind in KINDS for part in ([kind.part] if kind.part else kind.beside))
_SIDE_KEY = re.compile(rf"(\{{[^}}]*\}}|.*\}}.*%c?):({'|'.join(sorted(_PARTS))})(:.*)?", re.DOTALL)


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

    def of(self, kind: Kind) -> LockKeys:
        """The keys of this kind under the same name."""
        return self.part(kind.part) if kind.part else self

    def part(self, kind: str) -> LockKeys:
        """The keys of something else with the same name, as its semaphore: apart from the lock, in its slot."""
        base = f"{self.tag}:{kind}"
        keys = LockKeys(self.name, base, base, self.inboxes)
        keys.tag = self.tag
        return keys

    def order_of(self, token: str) -> str:
        """Return the key of the order of a lease's extensions: one for each lease, since many may hold at once."""
        return f"{self.base}:order:{token}"

    def note_of(self, token: str) -> str:
        """Return the key that says which client has broken a lease, and why."""
        return f"{self.base}:broken:{token}"

    def more(self, *kinds: str) -> tuple[str, ...]:
        """`all`, and further keys behind them."""
        return (*self.all, *[f"{self.base}:{kind}" for kind in kinds])


def part_of_key(name: str) -> str:
    """A name that users have chosen, as one part of a key."""
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", name)


def inbox_prefix(namespace: str | None) -> str:
    """Return the prefix of the channel names of clients' inboxes."""
    return f"{namespace or 'holdfast'}:inbox:"


def client_key(namespace: str | None, client_id: str) -> str:
    """Return the key of what a client says of itself."""
    return f"{namespace or 'holdfast'}:client:{client_id}"


def lock_keys(namespace: str | None, name: str) -> LockKeys:
    """The keys of lock `name`. With `namespace=None` the lock's key is `name` itself, as other clients use it."""
    if namespace is not None:
        escaped = f"%{name}" if _EMPTY_TAG.match(name) else name
        key = f"{namespace}:{{{escaped}}}"
        return LockKeys(name, key, key, inbox_prefix(namespace))
    if _SIDE_KEY.fullmatch(name):
        raise ConfigurationError(
            "name", name, "without a namespace this is where holdfast keeps the other keys of a lock; use another name"
        )
    return LockKeys(name, name, _beside(name), inbox_prefix(None))


def name_within(tag: str) -> str:
    """The name that stands so between the braces of a key: the reverse of `lock_keys`, with a namespace."""
    return tag[1:] if tag[:1] == "%" and _EMPTY_TAG.match(tag) else tag


def _beside(name: str) -> str:
    """Return the prefix of the other keys of a lock whose key is `name` itself.

    Another one for every name, and always in the slot of `name`: that is the slot of what stands between the first "{"
    and the first "}" behind it, when that is not empty, and else of the whole name.
    """
    if _hashed(name) != name:
        return f"{name}%"  # it has a hash tag of its own
    if "}" not in name:
        return f"{{{name}}}"
    return f"{{{_number_in_slot(slot_of(name))}}}{name}%c"  # no hash tag can hold it


def _hashed(key: str) -> str:
    opened = key.find("{")
    closed = key.find("}", opened + 1) if opened >= 0 else -1
    return key[opened + 1 : closed] if closed > opened + 1 else key


def slot_of(key: str) -> int:
    """The slot of a Cluster that a key belongs to."""
    return binascii.crc_hqx(_hashed(key).encode(), 0) % SLOTS


def tag_of(key: str) -> str:
    """The hash tag that the other keys of a lock have whose key is this one."""
    hashed = _hashed(key)
    return hashed if "}" not in hashed else str(_number_in_slot(slot_of(key)))


def sharded_inbox(inboxes: str, key: str, client_id: str) -> str:
    """Return the channel of a client in the slot of the key: see `_lua/inboxes.lua`."""
    return f"{inboxes}{{{tag_of(key)}}}{client_id}"


@functools.lru_cache(256)
def _number_in_slot(slot: int) -> int:
    """The first number that, as a hash tag, leads to the slot."""
    return next(number for number in itertools.count() if binascii.crc_hqx(b"%d" % number, 0) % SLOTS == slot)
