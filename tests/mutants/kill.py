"""Run by the runner with a changed package in front: the simulation looks for what is wrong with it, for some time."""

from __future__ import annotations

import itertools
import sys
import time

from sim import run
from tests.mutants.table import BROKEN, IN_LINES, IN_SLOTS, KEPT

__all__: list[str] = []

MODES = ("ordinary", "calm", "empty")
#: The lock over a quorum has worlds of its own.
#: Locks that workers of a process hand on.
LINE_MODES = ("tenures", "calm-tenures")
#: And those of a Cluster.
SLOT_MODES = ("cluster",)
#: And those that processes keep.
KEPT_MODES = ("keeps", "calm-keeps")
#: And those that are taken away from their holders.
BREAK_MODES = ("calm-breaks", "breaks")
#: Parties that wait for each other have worlds of their own, too.
DEADLOCK_MODES = ("calm-deadlocks", "deadlocks")
QUORUM_MODES = ("quorum-empty", "quorum")


def main(seconds: float, primitive: str, first: tuple[str, ...] = ()) -> int:
    """1 as soon as something is seen, in `seconds` of CPU. `first`: the seed and the mode to begin with."""
    until = time.process_time() + seconds
    over_quorum = primitive == "quorum"
    modes: tuple[str, ...]
    modes, names = (QUORUM_MODES, None) if over_quorum else (MODES, [primitive])
    if primitive == IN_LINES:
        modes, names = LINE_MODES, ["mutex"]
    elif primitive == IN_SLOTS:
        modes, names = SLOT_MODES, ["mutex"]
    elif primitive == KEPT:
        modes, names = KEPT_MODES, ["mutex"]
    elif primitive == BROKEN:
        modes, names = BREAK_MODES, ["mutex"]
    elif primitive == "deadlocks":
        modes, names = DEADLOCK_MODES, None
    worlds = ((seed, mode) for seed in itertools.count() for mode in modes)
    known = [(int(first[0]), first[1])] if first and first[1] in modes else []
    for count, (seed, mode) in enumerate(itertools.chain(known, worlds)):
        violation = run.run_seed(seed, mode, names=names).violation
        if violation is not None:
            print(f"simulation: {violation.kind} (seed {seed}, {mode})")
            return 1
        if time.process_time() > until:
            print(f"nothing in {count + 1} worlds")
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2], tuple(sys.argv[3:5])))
