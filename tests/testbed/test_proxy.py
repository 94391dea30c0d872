"""The wire that tests have a hand on keeps the order of what passes."""

from __future__ import annotations

import contextlib
import socket
import threading

from testbed.proxy import Proxy


def echo(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection, contextlib.suppress(OSError):
        while data := connection.recv(65536):
            connection.sendall(data)


def test_a_slow_wire_keeps_the_order() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=echo, args=(listener,), daemon=True).start()
        with Proxy(*listener.getsockname()) as proxy, socket.create_connection(("127.0.0.1", proxy.port)) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.settimeout(30)
            proxy.slow(0.0, 0.02)
            sent = b"".join(b"%05d" % number for number in range(500))
            for at in range(0, len(sent), 5):
                if at == 1500:
                    proxy.slow(0.0)
                client.sendall(sent[at : at + 5])
            got = b""
            while len(got) < len(sent):
                got += client.recv(65536)
            assert got == sent
