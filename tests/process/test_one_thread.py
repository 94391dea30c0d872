"""However many clients, servers and leases a process has: one thread of ours, and one connection to each server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from holdfast import embedded
from tests.support.imports import ROOT

PROGRAM = """
import asyncio, sys, threading, time
import redis
import holdfast, holdfast.asyncio
from testbed.waiting import eventually

name, urls = sys.argv[1], sys.argv[2:]

def ours():
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast"))

def connections():
    return len(server.client_list()) - 1

server = redis.Redis.from_url(urls[0])
server.ping()
clients = [holdfast.connect(urls[0]) for _ in range(3)]
quorum = holdfast.Client.quorum(urls, restart_delay=0)

held = []

async def main():
    tasks = holdfast.asyncio.connect(urls[0])
    for number in range(100):
        leases = [await tasks.lock(f"{name} task {number}", ttl=4).acquire()]
        leases += [client.lock(f"{name} {each} {number}", ttl=4).acquire() for each, client in enumerate(clients)]
        if number % 10 == 0:
            leases.append(quorum.lock(f"{name} quorum {number}", ttl=10).acquire())
        held.extend(leases)
    refused = [threading.Thread(target=clients[each % 3].lock(f"{name} task 0").try_acquire) for each in range(9)]
    for thread in refused:
        thread.start()
    for thread in refused:
        thread.join()
    time.sleep(5)  # the loop is blocked, and all of them are renewed
    eventually(lambda: ours() == ["holdfast"], f"one thread, not {ours()}")
    assert connections() == 5, f"{connections()} connections, not one for each client"
    for lease in held:
        lease.ensure_held()
        released = lease.release()
        if released is not None:
            await released
    await tasks.close()

asyncio.run(main())
for client in clients:
    client.close()
assert ours() == ["holdfast"], ours()
quorum.close()
eventually(lambda: not ours(), "it ends with the last client")
with holdfast.connect(urls[0]) as again, again.lock(name):
    eventually(lambda: ours() == ["holdfast"], "one that connects ends by itself")
eventually(lambda: not ours(), "and again")
"""


def test_a_process_has_one_thread_of_ours(private_server: Callable[..., embedded.Server], unique_name: str) -> None:
    servers = [private_server("valkey") for _ in range(3)]
    command = [sys.executable, "-W", "error", "-c", PROGRAM, unique_name, *(server.url for server in servers)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
