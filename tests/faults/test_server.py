"""Rows of the fault catalogue: what goes wrong at the server, and what it says then.

Each server trouble ends in one clear error, or is waited out inside `timeout`, and leaves no orphan.
"""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

import holdfast
from holdfast import embedded
from holdfast._core.keys import lock_keys
from holdfast._lua import SCRIPTS
from holdfast.errors import ScriptRefused
from holdfast.fencing import FenceGate
from testbed import servers
from testbed.servers import KINDS, Kind
from testbed.waiting import eventually
from tests.support.apis import Api, warm
from tests.support.keys import fence_of, key_of, queue_of

LONG_S = 600

EVERY_SERVER = pytest.mark.parametrize("kind", KINDS)
#: Where what lies between the two says the same.
OLDEST_AND_NEWEST = pytest.mark.parametrize("kind", ["redis62", "valkey"])


def renewed(look: Any, lease: Any) -> Callable[[], bool]:
    """Return a function that tells whether the lease was renewed since this call, and is HELD."""

    def ends_at() -> float:
        return time.monotonic() * 1000 + float(look.pttl(key_of(lease.name)))

    before = ends_at()
    return lambda: ends_at() > before + 200 and lease.state.name == "HELD"


# ---------------------------------------------------------------- the wrong server, or not yet


@OLDEST_AND_NEWEST
def test_26_readonly_is_waited_out(
    api: Api, private_server: Any, looking_at: Any, unique_name: str, kind: Kind
) -> None:
    server = private_server(kind)
    look = looking_at(server)
    locks = api.connect(server.url)
    lease = locks.lock(unique_name, ttl=3).acquire()
    look.execute_command("REPLICAOF", "127.0.0.1", "1")  # no one there: it keeps its data, and refuses writes
    with pytest.raises(holdfast.ServerError) as caught:
        locks.lock(f"{unique_name}-2").acquire(timeout=0.5)
    assert caught.value.kind == "READONLY"
    assert "master" in str(caught.value)
    waiting = api.start(locks.lock(f"{unique_name}-2").acquire, timeout=60)
    eventually(lambda: lease.state.name == "SUSPECT", "a renewal was refused")
    assert not waiting.done()
    look.execute_command("REPLICAOF", "NO", "ONE")
    waiting.result(60).release()
    eventually(lambda: lease.state.name == "HELD", "renewed as soon as it could be")
    lease.release()


@OLDEST_AND_NEWEST
def test_27_missing_replicas_are_waited_for(
    api: Api, private_server: Any, looking_at: Any, unique_name: str, kind: Kind
) -> None:
    server = private_server(kind)
    look = looking_at(server)
    locks = api.connect(server.url)
    lease = locks.lock(unique_name, ttl=3).acquire()
    look.config_set("min-replicas-to-write", 1)
    with pytest.raises(holdfast.ServerError) as caught:
        locks.lock(f"{unique_name}-2").acquire(timeout=0.3)
    assert caught.value.kind == "NOREPLICAS"
    assert "min-replicas-to-write" in str(caught.value)
    waiting = api.start(locks.lock(f"{unique_name}-2").acquire, timeout=60)
    eventually(lambda: lease.state.name == "SUSPECT")
    assert not waiting.done()
    look.config_set("min-replicas-to-write", 0)
    waiting.result(60).release()
    eventually(lambda: lease.state.name == "HELD")
    lease.release()


@pytest.mark.parametrize("kind", ["valkey", "redis70"])  # 6.2 answers only every 2 MB while it loads
def test_28_a_loading_server_is_waited_for(
    api: Api, private_server: Any, looking_at: Any, unique_name: str, kind: Kind
) -> None:
    server = private_server(
        kind,
        config={"dbfilename": "dump.rdb", "key-load-delay": 5000, "loading-process-events-interval-bytes": 1024},
    )
    look = looking_at(server)
    locks = api.connect(server.url)
    lease = locks.lock(unique_name, ttl=LONG_S).acquire()
    look.mset({f"bulk:{number}": "x" * 100 for number in range(300)})
    look.save()
    server.kill()
    starting = threading.Thread(target=server.start)
    starting.start()
    try:
        eventually(lambda: says_loading(server))
        other = locks.lock(f"{unique_name}-2").acquire(timeout=60)
        other.release()
    finally:
        starting.join()
    lease.extend(LONG_S)
    assert look.get(key_of(unique_name)) == lease.token
    lease.release()


def says_loading(server: embedded.Server) -> bool:
    try:
        with socket.create_connection((server.host, server.port), timeout=5) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(100).startswith(b"-LOADING")
    except OSError:
        return False


# ---------------------------------------------------------------- scripts


@OLDEST_AND_NEWEST
def test_29_scripts_that_are_forgotten_are_loaded_again(
    api: Api, private_server: Any, looking_at: Any, unique_name: str, kind: Kind
) -> None:
    server = private_server(kind)
    look = looking_at(server)
    first, second = api.connect(server.url), api.connect(server.url)
    lease = first.lock(unique_name, ttl=3).acquire()
    waiting = api.start(second.lock(unique_name, ttl=LONG_S).acquire)
    eventually(lambda: look.zcard(queue_of(unique_name)) == 1)
    look.script_flush()
    eventually(renewed(look, lease))
    look.script_flush()
    lease.release()
    after = waiting.result(60)
    look.script_flush()
    after.extend(LONG_S)
    look.script_flush()
    after.release()
    assert not look.exists(key_of(unique_name))


def test_29_a_script_that_is_forgotten_costs_one_request_more(
    api: Api, private_server: Any, looking_at: Any, unique_name: str
) -> None:
    """On a slow wire each one takes a part of the lease's time."""
    server = private_server("valkey")
    look = looking_at(server)
    lock = api.connect(server.url).lock(unique_name, ttl=LONG_S)
    lease = lock.acquire()  # the next one begins with the fast path
    # A client asks once whether it is heard, a moment after its first grant: on a busy machine, amid what is counted.
    eventually(lambda: look.script_exists(SCRIPTS["hears"].sha)[0], "it has asked whether it is heard")
    lease.release()

    def requests_of(step: Callable[[], Any]) -> list[int]:
        look.script_flush()
        look.config_resetstat()
        step()
        told = look.info("commandstats")
        return [told.get(f"cmdstat_{command}", {"calls": 0})["calls"] for command in ("evalsha", "eval")]

    leases: list[Any] = []
    assert requests_of(lambda: leases.append(lock.acquire())) == [1, 1]
    assert requests_of(lambda: leases[0].extend(LONG_S)) == [1, 1]
    assert requests_of(leases[0].release) == [1, 1]


@OLDEST_AND_NEWEST
def test_32_a_script_that_blocks_the_server_is_waited_out(
    api: Api, private_server: Any, looking_at: Any, unique_name: str, kind: Kind
) -> None:
    server = private_server(kind, config={"lua-time-limit": 20})
    look = looking_at(server)
    locks = api.connect(server.url)
    warm(locks)
    lease = locks.lock(unique_name, ttl=6).acquire()
    time.sleep(1.2)  # it is renewed after two seconds, and that script takes all of a core until then
    with blocked(server, "while true do end") as end:
        with pytest.raises(holdfast.ServerError) as caught:
            locks.lock(f"{unique_name}-2").acquire(timeout=0.5)
        assert caught.value.kind == "BUSY"
        assert "SCRIPT KILL" in str(caught.value)
        waiting = api.start(locks.lock(f"{unique_name}-2").acquire, timeout=60)
        eventually(lambda: lease.state.name == "SUSPECT")
        end()
    waiting.result(60).release()
    eventually(lambda: lease.state.name == "HELD")
    assert look.get(key_of(unique_name)) == lease.token
    lease.release()


def test_33_a_script_that_cannot_be_killed(api: Api, private_server: Any, looking_at: Any, unique_name: str) -> None:
    server = private_server(config={"lua-time-limit": 20})
    locks = api.connect(server.url)
    lease = locks.lock(unique_name, ttl=1.5).acquire()
    with blocked(server, "redis.call('SET', 'written', 1) while true do end"):
        with pytest.raises(holdfast.HoldfastError) as caught:
            locks.lock(f"{unique_name}-2").acquire(timeout=1)
        assert isinstance(caught.value, holdfast.ServerError | holdfast.OutcomeUnknown)
        assert lease.lost.wait(60), "its time passed while no one could renew it"
        server.kill()
    server.start()
    look = looking_at(server)
    eventually(lambda: not look.exists(key_of(unique_name), key_of(f"{unique_name}-2")))


@contextlib.contextmanager
def blocked(server: embedded.Server, code: str) -> Iterator[Callable[[], None]]:
    """Run that code at the server; the value ends it."""
    runner = redis.Redis.from_url(server.url, socket_timeout=None)
    stopper = redis.Redis.from_url(server.url)

    def run() -> None:
        with contextlib.suppress(redis.RedisError):
            runner.eval(code, 0)

    def busy() -> bool:
        try:
            stopper.get("any")
        except redis.ResponseError as error:
            return "BUSY" in str(error)
        return False

    def end() -> None:
        stopper.script_kill()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        eventually(busy)
        yield end
    finally:
        with contextlib.suppress(redis.RedisError):
            end()
        thread.join(60)
        runner.close()
        stopper.close()


# ---------------------------------------------------------------- memory


@EVERY_SERVER
def test_30_a_full_server_refuses_clearly_and_takes_back(
    api: Api, private_server: Any, looking_at: Any, unique_name: str, kind: Kind
) -> None:
    server = private_server(kind)
    look = looking_at(server)
    locks = api.connect(server.url)
    warm(locks)
    lease = locks.lock(unique_name, ttl=3).acquire()
    other = locks.lock(f"{unique_name}-2", ttl=LONG_S).acquire()
    look.config_set("maxmemory", 1)
    began = time.monotonic()
    with pytest.raises(holdfast.ServerError) as caught:
        locks.lock(f"{unique_name}-3", ttl=LONG_S).acquire(timeout=60)
    assert caught.value.kind == "OOM"
    assert "maxmemory" in str(caught.value)
    assert time.monotonic() - began < 30, "it does not pass by itself, so no one waits for that"
    assert not look.exists(key_of(f"{unique_name}-3"))
    eventually(renewed(look, lease))
    other.extend(LONG_S)
    other.release()
    lease.release()
    assert not look.exists(key_of(unique_name), key_of(f"{unique_name}-2"))


@OLDEST_AND_NEWEST
def test_30_a_full_server_hands_over(
    api: Api, private_server: Any, looking_at: Any, unique_name: str, kind: Kind
) -> None:
    server = private_server(kind)
    look = looking_at(server)
    first, second = api.connect(server.url), api.connect(server.url)
    warm(first)
    lease = first.lock(unique_name, ttl=LONG_S).acquire()
    waiting = api.start(second.lock(unique_name, ttl=LONG_S).acquire)
    eventually(lambda: look.zcard(queue_of(unique_name)) == 1)
    look.config_set("maxmemory", 1)
    lease.release()
    after = waiting.result(60)
    assert after.fencing_token > lease.fencing_token
    after.release()
    assert not look.exists(key_of(unique_name))


def test_31_an_evicted_lock_is_a_lost_one(api: Api, private_server: Any, looking_at: Any, unique_name: str) -> None:
    server = private_server(config={"maxmemory-policy": "allkeys-random"})
    look = looking_at(server)
    locks = api.connect(server.url)
    lease = locks.lock(unique_name, ttl=3).acquire()
    look.config_set("maxmemory", 1)
    with contextlib.suppress(redis.OutOfMemoryError):
        look.set("one", "more")
    assert not look.exists(key_of(unique_name)), "evicted"
    assert lease.lost.wait(60)
    assert lease.lost.reason == "taken", "told by a renewal, and not by its deadline"
    assert not look.exists(key_of(unique_name)), "a lost lease is never made again"


# ---------------------------------------------------------------- pauses and crowds


def test_34_a_paused_server_is_waited_for(api: Api, private_server: Any, looking_at: Any, unique_name: str) -> None:
    server = private_server()
    look = looking_at(server)
    locks = api.connect(server.url)
    lease = locks.lock(unique_name, ttl=6).acquire()
    look.execute_command("CLIENT", "PAUSE", 1500, "ALL")
    began = time.monotonic()
    other = locks.lock(f"{unique_name}-2", ttl=6).acquire(timeout=60)
    assert time.monotonic() - began > 1, "it was paused"
    lease.ensure_held()
    eventually(renewed(look, lease))
    for each in (lease, other):
        each.release()


@OLDEST_AND_NEWEST
def test_35_a_crowded_server_says_so_and_renewals_go_on(
    api: Api, private_server: Any, looking_at: Any, unique_name: str, kind: Kind
) -> None:
    server = private_server(kind, config={"maxclients": 12})
    look = looking_at(server)
    look.ping()
    inside = api.connect(server.url)
    lease = inside.lock(unique_name, ttl=6).acquire()  # a busy machine may take a second for a request
    crowd = []
    with contextlib.suppress(redis.RedisError):
        for _ in range(20):
            client = redis.Redis.from_url(server.url, retry=None)
            crowd.append(client)
            client.ping()
    outside = api.connect(server.url)
    with pytest.raises(holdfast.ServerError) as caught:
        outside.lock(f"{unique_name}-2").acquire(timeout=2)  # in which a busy machine connects
    assert caught.value.kind == "MAXCLIENTS"
    eventually(renewed(look, lease), "it keeps its connection")
    waiting = api.start(outside.lock(f"{unique_name}-2").acquire, timeout=60)
    assert not waiting.done()
    for client in crowd:
        client.close()
    waiting.result(60).release()
    lease.release()


# ---------------------------------------------------------------- data that is gone


def test_46_a_restart_without_data_is_a_loss_and_fencing_tokens_grow(
    api: Api, private_server: Any, looking_at: Any, unique_name: str
) -> None:
    server = private_server()
    locks, others = api.connect(server.url), api.connect(server.url)
    lease = locks.lock(unique_name, ttl=3).acquire()
    server.kill()
    server.start()
    look = looking_at(server)
    with others.lock(unique_name, ttl=LONG_S) as after:
        assert after.fencing_token > lease.fencing_token, "the resource can tell them apart"
        assert lease.lost.wait(60)
        assert look.get(key_of(unique_name)) == after.token


def test_46_waiters_queue_again_after_a_restart_without_data(
    api: Api, private_server: Any, looking_at: Any, unique_name: str
) -> None:
    server = private_server()
    locks, others = api.connect(server.url), api.connect(server.url)
    lease = locks.lock(unique_name, ttl=LONG_S, renew=False).acquire()
    waiting = api.start(others.lock(unique_name, ttl=LONG_S).acquire)
    look = looking_at(server)
    eventually(lambda: look.zcard(queue_of(unique_name)) == 1)
    server.kill()
    server.start()
    after = waiting.result(60)
    assert after.fencing_token > lease.fencing_token
    after.release()
    assert lease.remaining() > 0, "without renewal nothing tells it, so that only its fencing token is left"
    with contextlib.suppress(holdfast.LeaseLost):  # or done: a connection that broke may have carried it out
        lease.release()


def test_47_an_aof_that_lost_its_tail_is_a_loss_and_fencing_tokens_grow(
    api: Api, private_server: Any, looking_at: Any, unique_name: str
) -> None:
    server = private_server(config={"appendonly": "yes", "appendfsync": "everysec"})
    locks, others = api.connect(server.url), api.connect(server.url)
    look = looking_at(server)
    look.set("before", 1)
    (log,) = server.directory.glob("appendonlydir/*.incr.aof")
    kept = log.stat().st_size
    lease = locks.lock(unique_name, ttl=3).acquire()
    eventually(lambda: log.stat().st_size > kept)
    server.kill()
    with log.open("r+b") as file:
        file.truncate(kept)
    server.start()
    assert look.get("before") == "1"
    with others.lock(unique_name, ttl=LONG_S) as after:
        assert after.fencing_token > lease.fencing_token
        assert lease.lost.wait(60)


@pytest.mark.parametrize("action", ["FLUSHALL", "DEL"])
def test_55_a_key_that_was_removed_by_hand_is_a_loss(
    api: Api, private_server: Any, looking_at: Any, unique_name: str, action: str
) -> None:
    server = private_server()
    look = looking_at(server)
    locks, others = api.connect(server.url), api.connect(server.url)
    lease = locks.lock(unique_name, ttl=3).acquire()
    told: list[holdfast.LeaseLost] = []
    lease.on_lost(told.append)
    look.execute_command(action, *([key_of(unique_name)] if action == "DEL" else []))
    with others.lock(unique_name, ttl=LONG_S) as after:
        assert after.fencing_token > lease.fencing_token
        eventually(lambda: told)
        assert told[0].reason == "taken"
        with pytest.raises(holdfast.LeaseLost):
            lease.release()
        assert look.get(key_of(unique_name)) == after.token


def test_55_a_kept_lease_is_behind_what_was_granted_after_a_loss_of_data(
    api: Api, private_server: Any, looking_at: Any, unique_name: str
) -> None:
    server = private_server()
    locks, others = api.connect(server.url), api.connect(server.url)
    lock, gate = locks.lock(unique_name, ttl=12, cache_for=6), FenceGate()

    def taken_again() -> bool:
        tokens = [token_of(lock) for _ in range(2)]
        return tokens[0] == tokens[1]

    def token_of(lock: Any) -> str:
        with lock as lease:
            token: str = lease.token
            return token

    eventually(taken_again)
    looking_at(server).flushall()
    with others.lock(unique_name, ttl=LONG_S) as after:
        gate.check("resource", after.fencing_token)
        again = lock.acquire(timeout=60)
        assert again.fencing_token < after.fencing_token
        with pytest.raises(holdfast.StaleFencingToken):
            gate.check("resource", again.fencing_token)
        assert again.lost.wait(60)
        with pytest.raises(holdfast.LeaseLost) as told:
            again.ensure_held()
        assert told.value.reason == "taken"
        after.ensure_held()


def test_39_the_keys_of_a_lock_share_a_slot(api: Api, private_server: Any, looking_at: Any) -> None:
    server = private_server(config={"cluster-enabled": "yes"})
    look = looking_at(server)
    for name in ("a", "{a}", "a}b", "}", "{}", "ü{x}y", "a" * 200, "%7B"):
        slots = {look.execute_command("CLUSTER", "KEYSLOT", key) for key in lock_keys("holdfast", name).all}
        assert len(slots) == 1, name


# ---------------------------------------------------------------- who may, and over which wire


@EVERY_SERVER
def test_passwords(api: Api, private_server: Any, unique_name: str, kind: Kind) -> None:
    server = private_server(kind, password="s3cret, with: odd/characters@")
    with api.connect(server.url).lock(unique_name) as lease:
        lease.ensure_held()
    for url, kind_of_error in (
        (f"redis://{server.host}:{server.port}/0", "NOAUTH"),
        (f"redis://:wrong@{server.host}:{server.port}/0", "WRONGPASS"),
        (f"redis://unknown:wrong@{server.host}:{server.port}/0", "WRONGPASS"),
    ):
        began = time.monotonic()
        with pytest.raises(holdfast.ServerError) as caught:
            api.connect(url).lock(unique_name).acquire(timeout=60)
        assert caught.value.kind == kind_of_error
        assert "password" in str(caught.value)
        assert time.monotonic() - began < 30, "that does not pass by itself"


#: What a user needs for locks: documented for users in the same words.
LOCK_COMMANDS = (
    "+evalsha +eval +script|load +get +set +del +exists +pexpire +pttl +time +publish +subscribe +unsubscribe "
    "+pubsub|numsub +zadd +zrem +zrank +zcard +zpopmin +zrange +zscore +getrange +ping +select +hello "
    "+client|setinfo +client|setname +multi +exec"
)


def test_a_user_with_just_the_needed_rights(api: Api, private_server: Any, looking_at: Any, unique_name: str) -> None:
    server = private_server()
    look = looking_at(server)
    rights = [*LOCK_COMMANDS.split(), "~holdfast:*", "&holdfast:inbox:*"]
    look.execute_command("ACL", "SETUSER", "locker", "on", ">pw", "resetkeys", "resetchannels", "-@all", *rights)
    url = f"redis://locker:pw@{server.host}:{server.port}/0"
    first, second = api.connect(url), api.connect(url)
    lease = first.lock(unique_name, ttl=1.5).acquire()
    waiting = api.start(second.lock(unique_name).acquire)
    eventually(lambda: look.zcard(queue_of(unique_name)) == 1)
    eventually(lambda: look.keys("holdfast:client:*"), "it says who it is")
    eventually(renewed(look, lease))
    assert first.lock(unique_name).holder().token == lease.token
    assert first.lock(unique_name).holder().host
    lease.extend(20)
    lease.release()
    waiting.result(60).release()
    assert look.get(fence_of(unique_name))
    denied = [entry for entry in look.acl_log() if entry["username"] == "locker"]
    assert denied == [], "nothing that it sent was refused"


def test_a_user_without_scripts_is_told_what_is_missing(
    api: Api, private_server: Any, looking_at: Any, unique_name: str
) -> None:
    server = private_server()
    look = looking_at(server)
    look.execute_command("ACL", "SETUSER", "poor", "on", ">pw", "~*", "&*", "+@all", "-@scripting")
    locks = api.connect(f"redis://poor:pw@{server.host}:{server.port}/0")
    with pytest.warns(RuntimeWarning, match=r"NOPERM.*\+evalsha"):
        locks.lock(unique_name).acquire(timeout=30).release()
    with pytest.raises(ScriptRefused, match="NOPERM"):
        locks.semaphore(unique_name, 3).acquire(timeout=30)


def test_a_user_with_other_keys_is_told(api: Api, private_server: Any, looking_at: Any, unique_name: str) -> None:
    server = private_server()
    look = looking_at(server)
    look.execute_command("ACL", "SETUSER", "other", "on", ">pw", "~other:*", "&*", "+@all")
    locks = api.connect(f"redis://other:pw@{server.host}:{server.port}/0")
    with pytest.raises(holdfast.ServerError) as caught:
        locks.lock(unique_name).acquire(timeout=30)
    assert caught.value.kind == "NOPERM"


@EVERY_SERVER
def test_unix_sockets(api: Api, shared_servers: Any, unique_name: str, kind: Kind) -> None:
    program = servers.executable(kind)
    if isinstance(program, str):
        pytest.skip(program)
    server = shared_servers(kind)
    locks = api.connect(f"unix://{server.unix_path}")
    with locks.lock(unique_name) as lease:
        assert locks.lock(unique_name).holder().token == lease.token
    gone = api.connect(f"unix://{server.unix_path}-not")
    with pytest.raises(holdfast.ServerUnreachable, match="-not"):
        gone.lock(unique_name).try_acquire()


def test_other_databases_are_other_locks(api: Api, shared_servers: Any, unique_name: str) -> None:
    base = shared_servers("valkey").url.rsplit("/", 1)[0]
    with api.connect(f"{base}/1").lock(unique_name) as lease:
        other = api.connect(f"{base}/2").lock(unique_name).try_acquire()
        assert other is not None
        other.release()
        lease.ensure_held()


# A handshake that the server's end cuts short leaves a socket of the standard library behind until it is collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_tls(api: Api, private_server: Any, unique_name: str, certificates: Any) -> None:
    key, certificate = certificates
    server = private_server("redis70")
    port = servers.free_port()
    server.close()
    server = private_server(
        "redis70",
        config={
            "tls-port": port,
            "tls-cert-file": str(certificate),
            "tls-key-file": str(key),
            "tls-ca-cert-file": str(certificate),
            "tls-auth-clients": "no",
        },
    )
    url = f"rediss://localhost:{port}/0?ssl_ca_certs={certificate}"
    first, second = api.connect(url), api.connect(url)
    lease = first.lock(unique_name, ttl=1.5).acquire()
    waiting = api.start(second.lock(unique_name).acquire)
    eventually(lambda: first.lock(unique_name).waiters() == 1)
    lease.extend(30)
    lease.release()
    after = waiting.result(60)
    after.ensure_held()
    after.release()
    outsider = api.connect(f"rediss://localhost:{port}/0")
    with pytest.raises(holdfast.ServerUnreachable, match=r"(?i)certificate"):
        outsider.lock(unique_name).acquire()  # at once: waiting makes it no better
    for client in (first, second, outsider):
        client.close()  # before the server is gone
    gc.collect()
