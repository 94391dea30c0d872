"""Every error of a server, whatever was asked for: it says what that was about, and a way out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import embedded
from holdfast._core.settings import DEFAULT
from testbed.servers import unique
from testbed.topologies import Quorum
from tests.support.apis import Api
from tests.support.liar import CUT, HANG, Liar
from tests.support.operations import OPERATIONS, Scene

#: No operation has to wait for long, whatever the trouble.
SETTINGS = DEFAULT._replace(retry_limit_s=0.5, request_timeout_s=1.5, member_patience_s=0.5)
TIMEOUT_S = 1.0

#: What each operation is about, by what it is called; else what its class is called, in small letters.
KINDS = {
    "Lease": "lock",
    "ReadLock": "rwlock",
    "WriteLock": "rwlock",
    "ReadLease": "rwlock",
    "WriteLease": "rwlock",
    "SemaphoreLease": "semaphore",
    "MultiLockLease": "multilock",
    "Condition": "lock",  # or "condition of lock"
    "CountDownLatch": "latch",
    "Client": "key",
    "fencing": "key",
    "Optimistic": "key",
}
TROUBLE = {
    "refused": (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", holdfast.ServerError, "memory"),
    "odd": (b"-ODD one\r\n", holdfast.ServerError, "holdfast doctor"),
    "nonsense": (b"+what?\r\n", holdfast.ServerError, "is this a Redis or Valkey server"),
    "cut": (CUT, (holdfast.OutcomeUnknown, holdfast.ServerUnreachable), ""),
    "silent": (HANG, (holdfast.OutcomeUnknown, holdfast.ServerUnreachable), ""),
    "down": (None, holdfast.ServerUnreachable, ""),
}
WAYS_OUT = {
    holdfast.OutcomeUnknown: "check the state before repeating it",
    holdfast.ServerUnreachable: "check the address and that the server is running",
}


def scenes_on(api: Api, url: str, count: int) -> list[Scene]:
    """One client, connected already, since some operations give a new connection little time."""
    locks = api.client(api.redis().Redis.from_url(url), _settings=SETTINGS)
    scenes = [Scene(api, locks, api.actor(), TIMEOUT_S) for _ in range(count)]
    for scene in scenes:
        scene.ask(locks.lock(unique("warm")), "locked")
    return scenes


def complaint(what: str, scene: Scene, error: BaseException | None, kinds: Any, way_out: str) -> str | None:
    """Return what is wrong with an error, or None."""
    if way_out.startswith("is this") and isinstance(error, holdfast.OutcomeUnknown):
        way_out = ""  # asyncio: the nonsense was told to another one on the same connection
    elif isinstance(error, holdfast.ServerUnreachable) and "another answer on this connection made no sense" in str(
        error
    ):
        way_out = ""  # the same, for a request that changes nothing when it is repeated
    elif what == "CountDownLatch.wait" and isinstance(error, holdfast.OutcomeUnknown | holdfast.ServerUnreachable):
        way_out = ""  # it waits for 50 ms only, which may be over before there is a connection and an answer
    elif not isinstance(error, kinds):
        return f"{what}: {error!r}"
    group = what.partition(".")[0]
    kind = KINDS.get(group, group.lower())
    about = str(getattr(error, "about", None))
    named = scene.name in about or group == "Client"
    if not named or not about.removeprefix("condition of ").startswith(f"{kind} '"):
        return f"{what} is about {about}: {error}"
    if not str(error).startswith(f"{about}: "):
        return f"{what} does not say what it is about: {error}"
    if (way_out or WAYS_OUT[type(error)]) not in str(error):
        return f"{what} says no way out: {error}"
    return None


@pytest.mark.parametrize("trouble", TROUBLE)
def test_every_operation(api: Api, valkey_server: embedded.Server, trouble: str) -> None:
    """All of them at the same time, since some have to wait for what does not come."""
    reply, kinds, way_out = TROUBLE[trouble]
    operations = [each for each in OPERATIONS if each.strict or trouble != "nonsense"]
    with Liar(valkey_server.host, valkey_server.port) as liar:
        scenes = scenes_on(api, liar.url, len(operations))
        ready = [operation.prepare(scene) for operation, scene in zip(operations, scenes, strict=True)]
        if reply is None:
            liar.refuse()
        else:
            liar.always(reply)
        ended = [api.start(do) for do in ready]
        errors = [future.exception(60) for future in ended]
        liar.truth()
        scenes[0].locks.close()
    wrong = [
        complaint(operation.what, scene, error, kinds, way_out)
        for operation, scene, error in zip(operations, scenes, errors, strict=True)
    ]
    assert [each for each in wrong if each] == []


@pytest.fixture(scope="module")
def quorum() -> Iterator[Quorum]:
    with Quorum(3) as quorum:
        yield quorum


@pytest.mark.parametrize("trouble", TROUBLE)
def test_over_a_quorum(api: Api, quorum: Quorum, trouble: str) -> None:
    """If a majority says the same, that is the error; else one error has what each of them said."""
    reply = TROUBLE[trouble][0]
    wrong = []
    with contextlib.ExitStack() as stack:
        liars = [stack.enter_context(Liar(server.host, server.port)) for server in quorum.servers]
        url = f"redlock://{','.join(liar.address for liar in liars)}/0?restart_delay=0"
        for what in ("acquire", "try_acquire", "locked", "holder", "extend", "release", "campaign"):
            locks = api.connect(url)
            name = unique("quorum")
            lock = locks.election(name, ttl=20) if what == "campaign" else locks.lock(name, ttl=20)
            target = lock.acquire() if what in ("extend", "release") else lock
            for liar in liars:
                if reply is None:
                    liar.refuse()
                else:
                    liar.always(reply)
            options: Any = {"timeout": 0.3} if what in ("acquire", "campaign") else {}
            arguments = (30,) if what == "extend" else ()
            with pytest.raises(holdfast.HoldfastError) as error:
                getattr(target, what)(*arguments, **options)
            about = f"{'election' if what == 'campaign' else 'lock'} {name!r}"
            if not isinstance(error.value, (holdfast.QuorumUnreachable, holdfast.ServerError)):
                wrong.append(f"{what}: {error.value!r}")
            elif error.value.about != about or not str(error.value).startswith(f"{about}: "):
                wrong.append(f"{what} is about {error.value.about}: {error.value}")
            for liar in liars:
                liar.truth()
            locks.close()
            if reply is None:
                break
    assert wrong == []
