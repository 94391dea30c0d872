"""Connections that are ended from the server's side, all at once, and replies that end half-way."""

from __future__ import annotations

import contextlib
import socket
import time
from functools import partial
from typing import Any

import pytest

import holdfast
from testbed.proxy import Proxy
from testbed.waiting import eventually
from tests.support.apis import Api
from tests.support.standin import Scripted

WAITERS, CLIENTS = 100, 20


def test_all_waiters_outlast_a_storm_of_killed_connections(
    api: Api, private_server: Any, looking_at: Any, unique_name: str
) -> None:
    """Each is granted once, in the end, and nothing is left in the queue."""
    server = private_server()
    look = looking_at(server)
    lease = api.connect(server.url).lock(unique_name, ttl=60).acquire()

    def take(client: Any) -> int:
        taken = client.lock(unique_name, ttl=60).acquire(timeout=60)
        token: int = taken.fencing_token
        taken.release()
        return token

    clients = [api.connect(server.url) for _ in range(CLIENTS)]
    waiting = [api.start(take, client) for client in clients for _ in range(WAITERS // CLIENTS)]
    queue = f"holdfast:{{{unique_name}}}:queue"
    eventually(lambda: look.zcard(queue) >= CLIENTS, "each client waits")
    for _ in range(5):
        look.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        look.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        time.sleep(0.02)
    lease.release()
    tokens = [each.result(90) for each in waiting]
    assert len(set(tokens)) == WAITERS and min(tokens) > lease.fencing_token
    assert look.zcard(queue) == 0
    assert not look.exists(f"holdfast:{{{unique_name}}}")


#: What an acquire is answered with.
GRANTED = b"*2\r\n:1\r\n:1700000000000000\r\n"
#: After how many bytes it ends: nothing, amid the head, between and amid the elements, but for the last byte.
CUTS = (0, 2, 4, 5, 8, 14, len(GRANTED) - 1)


@pytest.mark.parametrize("end", ["closed", "half-closed"])
def test_a_reply_that_ends_half_way_is_no_grant(api: Api, end: str) -> None:
    """The server's side is closed, or closed for sending only, after some of its bytes."""

    def talk(client: Any, cut: int) -> None:
        said = b""
        while b"EVALSHA" not in said:
            more = client.recv(65536)
            if not more:
                return
            said += more
            if b"EVALSHA" not in more:
                client.sendall(b"+OK\r\n" * more.count(b"*"))
        client.sendall(GRANTED[:cut])
        if end == "half-closed":
            client.shutdown(socket.SHUT_WR)
            client.settimeout(5)
            with contextlib.suppress(OSError):
                client.recv(65536)

    def refused(client: Any) -> bool:
        with pytest.raises(holdfast.HoldfastError):
            client.lock("cut", ttl=5).acquire(timeout=0)
        return True

    with contextlib.ExitStack() as outsiders:
        clients = [api.connect(outsiders.enter_context(Scripted(partial(talk, cut=cut))).url) for cut in CUTS]
        asked = [api.start(refused, client) for client in clients]
        assert all(each.result(60) for each in asked)
    # All at once: each takes a second, in which its server, which is gone, might take back what it has granted.
    for closed in [api.start(client.close) for client in clients]:
        closed.result(60)


def test_what_is_to_stay_for_a_while_is_cut_to_that_though_its_release_was_broken(
    near: Any, wire: Proxy, look: Any, unique_name: str
) -> None:
    lease = near.lock(unique_name, ttl=60, at_least=20).acquire()
    resets = wire.on("renew", "reset", most=2)
    with pytest.raises(holdfast.OutcomeUnknown):
        lease.release()
    assert resets.times == 2
    eventually(lambda: 0 < look.pttl(f"holdfast:{{{unique_name}}}") <= 20_000)
