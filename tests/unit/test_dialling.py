"""Connections that come too late for a call to several servers."""

from __future__ import annotations

from typing import Any

from holdfast._drivers.many import Dialler, _Group
from holdfast._transport.threads import Wire
from testbed.waiting import eventually


class _Node:
    """Connects at once."""

    def __init__(self) -> None:
        self.wire = Wire.__new__(Wire)
        self.idle: list[Wire] = []

    def connect(self, _timeout_s: float) -> Wire:
        return self.wire

    def put(self, wire: Wire) -> None:
        self.idle.append(wire)


def test_each_is_left_to_the_server_that_it_leads_to() -> None:
    """Else a server would be asked twice, and its votes counted for another one."""
    nodes: Any = [_Node(), _Node()]

    class Waker:
        def wake(self) -> None:
            group.connected.append((1, nodes[1].wire))  # by the thread of the other server
            group.over = True

    waker: Any = Waker()
    group = _Group(waker, nodes)
    dialler = Dialler(nodes[0])
    assert dialler.dial(group, 0)
    eventually(lambda: not group.connected and nodes[0].idle)
    dialler.stop()
    assert [node.idle for node in nodes] == [[nodes[0].wire], [nodes[1].wire]]
