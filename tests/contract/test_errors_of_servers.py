"""What goes wrong between a client and its server is said at once, with what it was about and the way out."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import redis

import holdfast
from holdfast import embedded
from testbed.servers import free_port, unique
from tests.support.apis import Api

#: Far less than the 30 s for which an outage is tolerated, s.
AT_ONCE_S = 5.0


def refused(kind: type[BaseException], act: Callable[[], Any]) -> Any:
    began_at = time.monotonic()
    with pytest.raises(kind) as caught:
        act()
    assert time.monotonic() - began_at < AT_ONCE_S
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    return caught.value


def test_an_option_that_no_connection_has(api: Api, url: str) -> None:
    error = refused(holdfast.ConfigurationError, lambda: api.connect(f"{url}?bogus=1").lock("a").acquire())
    assert "bogus" in str(error)


def test_a_stand_in_for_a_client(api: Api, url: str) -> None:
    """The stand-in has what a client has, and connects to nothing."""

    class Pretender:
        def __init__(self, **options: Any) -> None:
            self.retry: Any = None

        def connect(self) -> None:
            pass

        def disconnect(self) -> None:
            pass

    class AsyncPretender(Pretender):
        async def connect(self) -> None:  # type: ignore[override]
            pass

    pretender = Pretender if api.name == "threads" else AsyncPretender
    client = mock.Mock()
    client.connection_pool.connection_class = pretender
    client.connection_pool.connection_kwargs = {}
    client.connection_pool.service_name = None
    del client.nodes_manager
    error = refused(holdfast.ConfigurationError, lambda: api.client(client).lock("a").acquire())
    assert error.argument == "redis_client"


def test_a_password_where_none_is_set(api: Api, server: embedded.Server) -> None:
    """The password is taken, as redis-py has it, whichever way the client was made."""
    given = f"redis://:secret@{server.host}:{server.port}"
    made = api.redis().Redis.from_url(given)
    for locks in (api.connect(given), api.client(made)):
        assert locks.lock(unique("password")).locked() is False


def test_a_wrong_password(api: Api, private_server: Callable[..., embedded.Server]) -> None:
    server = private_server(password="right")
    place = f"{server.host}:{server.port}"
    for given, kind in ((f"redis://:wrong@{place}", "WRONGPASS"), (f"redis://{place}", "NOAUTH")):
        error = refused(holdfast.ServerError, api.connect(given).lock("a").acquire)
        assert error.kind == kind
        assert "right" not in str(error)
        assert "wrong" not in str(error).replace("WRONGPASS", "")


@pytest.mark.parametrize(
    ("make", "about"),
    [
        (lambda locks, name: locks.lock(name), "lock"),
        (lambda locks, name: locks.semaphore(name, permits=2), "semaphore"),
        (lambda locks, name: locks.rwlock(name).read(), "rwlock"),
        (lambda locks, name: locks.election(name), "election"),
    ],
    ids=["lock", "semaphore", "rwlock", "election"],
)
def test_errors_name_what_they_are_about(
    api: Api, server: embedded.Server, raw: Any, make: Callable[[Any, str], Any], about: str
) -> None:
    name = unique("about")
    acquire = "campaign" if about == "election" else "acquire"
    suffix = {"semaphore": ":sem", "election": ":leader"}.get(about, "")
    raw.lpush(f"holdfast:{{{name}}}{suffix}:queue", "not a queue")
    raw.lpush(f"holdfast:{{{name}}}{suffix}", "not a lock")
    error = refused(holdfast.ServerError, getattr(make(api.connect(server.url), name), acquire))
    assert error.kind == "WRONGTYPE" or "WRONGTYPE" in str(error)
    assert f"{about} {name!r}" in str(error)
    assert "delete it, or use another name" in str(error)
    assert f"one of the keys 'holdfast:{{{name}}}{suffix}', 'holdfast:{{{name}}}{suffix}:fence', " in str(error)
    assert f"'holdfast:{{{name}}}{suffix}:queue'" in str(error)
    nowhere = api.connect(f"redis://127.0.0.1:{free_port()}")
    unreachable = refused(
        holdfast.ServerUnreachable,
        getattr(make(nowhere, name), f"try_{acquire}", None) or (lambda: make(nowhere, name).campaign(timeout=0.1)),
    )
    assert f"{about} {name!r}" in str(unreachable)


@pytest.mark.parametrize("kind", ["queue", "fence", "gone"])
def test_keys_of_another_type_beside_the_lock(api: Api, server: embedded.Server, raw: Any, kind: str) -> None:
    name = unique("beside")
    key = f"holdfast:{{{name}}}:{kind}"
    raw.xadd(key, {"of": "another type"})
    locks = api.connect(server.url)
    refusals = []
    for made in (locks.lock(name), locks.rwlock(name).write(), locks.multilock(name, f"{name}-2")):
        try:
            made.acquire(timeout=1).release()
        except holdfast.ServerError as error:
            refusals.append(str(error))
    assert refusals
    for said in refusals:
        assert repr(key) in said and name in said
    raw.delete(key)


def test_many_keys_are_not_all_named(api: Api, server: embedded.Server, raw: Any) -> None:
    names = sorted(unique("many") for _ in range(50))
    raw.lpush(f"holdfast:{{{names[0]}}}", "not a lock")
    error = refused(holdfast.ServerError, api.connect(server.url).multilock(*names).acquire)
    assert f"'holdfast:{{{names[0]}}}'" in str(error)
    assert len(str(error)) < 2_000


def test_one_key_that_is_changed_without_a_lock(api: Api, server: embedded.Server, raw: Any) -> None:
    key = unique("key")
    raw.lpush(key, "not a string")
    locks = api.connect(server.url)
    error = refused(holdfast.ServerError, lambda: locks.compare_and_set(key, "a", "b"))
    assert repr(key) in str(error)


def test_a_server_that_is_no_node_of_a_cluster(api: Api, server: embedded.Server, raw: Any) -> None:
    """Such a server would grant what the other servers of that "Cluster" have granted, too."""
    name = unique("single")
    locks = api.connect(f"redis+cluster://{server.host}:{server.port}")
    for act in (
        locks.lock(name).acquire,
        locks.lock(name).try_acquire,
        locks.semaphore(name, permits=2).acquire,
        locks.rwlock(name).read().acquire,
        locks.multilock(name, f"{name}-2").acquire,
        locks.latch(name, 2).count_down,
        locks.lock(name).locked,
        lambda: locks.compare_and_set(name, None, "a"),
    ):
        error = refused(holdfast.ConfigurationError, act)
        assert "redis://" in str(error) and f"{server.host}:{server.port}" in str(error)
    assert raw.keys(f"*{name}*") == []


def test_a_command_that_is_denied_inside_a_script(api: Api, server: embedded.Server, raw: Any) -> None:
    """The user may run scripts; what they use is another matter."""
    user = unique("acl")
    raw.execute_command(
        *("ACL", "SETUSER", user, "on", ">pw", "~*", "&*", "+@all", "-get"),
    )
    locks = api.connect(f"redis://{user}:pw@{server.host}:{server.port}")
    error = refused(holdfast.ServerError, locks.lock(unique("denied")).waiters)
    assert error.kind == "NOPERM"
    assert not isinstance(error, holdfast.ScriptRefused)
    assert "holdfast doctor" in str(error) and "user_script" not in str(error), "nor where in the script that was"
    raw.execute_command("ACL", "DELUSER", user)


def test_a_database_that_there_is_not(api: Api, server: embedded.Server) -> None:
    error = refused(
        holdfast.ServerError, lambda: api.connect(f"redis://{server.host}:{server.port}/99").lock("a").acquire()
    )
    assert "out of range" in str(error)


@pytest.mark.usefixtures("torn_handshakes")
def test_raw_errors_of_redis_py_do_not_come_through(api: Api) -> None:
    """TLS to a port that speaks none, and the reverse, are said in our words."""
    with embedded.server(port=0) as server:
        locks = api.connect(f"rediss://{server.host}:{server.port}")
        error = refused(holdfast.HoldfastError, locks.lock("a").try_acquire)
        assert not isinstance(error, redis.RedisError)
        assert f"{server.host}:{server.port}" in str(error)
