"""The histories that verify/ ships, and the larger ones that it does not: what makes each of them.

`python -m rig record` makes those that are shipped, into verify/histories, with MANIFEST.json; `--all` the others, too.
Faults come at other moments each time, so that no file is made twice: what a checker says of each has to be the same.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from verify.check import check

__all__ = ["RECORDINGS", "Recording", "record"]

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "verify" / "histories"
_PROCESSES = "kill a command,stop a command,kill a worker,stop a worker"
_FAST = "--fast --loops 8 --processes 3"
#: What others are put through. One lock, few who want it: so that what a fault hits is an acquire that is granted.
_REDIS_PY = (
    "--locks 1 --processes 3 --loops 1 --pause 0.1 --ttl 0.5 --long 0.8 --seconds 30 --seed 5 --faults 'late replies'"
)
_RENEWED = "--locks 1 --processes 3 --pause 0.1 --ttl 1 --long 0.6 --seconds 30 --seed 2 --faults 'late replies'"
_EMPTIED = (
    "--topology quorum --locks 1 --processes 3 --pause 14 --ttl 4 --long 0.4 --seconds 45 --seed 3 "
    "--faults 'restart a majority empty'"
)
_VOTES = "members that were restarted without data vote at once"


class Recording(NamedTuple):
    """One file. `convicted`: the rules of which one at least is broken; none: it holds. `large`: not shipped."""

    name: str
    arguments: str
    why: str
    convicted: tuple[str, ...] = ()
    large: bool = False

    @property
    def file(self) -> str:
        """Compressed where it is shipped: that takes longer than all the rest."""
        return f"{self.name}.jsonl" if self.large else f"{self.name}.jsonl.xz"

    @property
    def command(self) -> list[str]:
        return ["python", "-m", "rig", "torture", *shlex.split(self.arguments)]


RECORDINGS = (
    Recording("single", "--faults network --ttl 1 --seconds 80 --commands 1 --seed 11", "every fault of one server"),
    Recording("single-lives", "--faults process --seconds 45 --seed 12", "faults of the process"),
    Recording("single-order", "--faults none --locks 1 --loops 8 --seconds 30 --seed 13", "the order of arrival"),
    Recording("single-fast", "--faults none --fast --loops 4 --processes 2 --seconds 12 --seed 14", "many operations"),
    Recording(
        "commands",
        f"--faults '{_PROCESSES}' --commands 4 --processes 2 --ttl 1 --long 0.3 --pause 0.8 --seconds 60 --seed 10",
        "holdfast run, its guard and its command are killed and stopped",
    ),
    Recording(
        "durable",
        "--topology durable --faults network --ttl 1 --seconds 45 --commands 1 --seed 15",
        "restarts with data",
    ),
    Recording(
        "sentinel",
        "--topology sentinel --faults network --seconds 60 --commands 1 --seed 16",
        "failovers, all replicas synced",
    ),
    Recording(
        "cluster", "--topology cluster --faults network --seconds 45 --commands 1 --seed 17", "failovers of masters"
    ),
    Recording(
        "cluster-synced",
        "--topology cluster-synced --faults network --seconds 60 --seed 18",
        "the same, replicas synced",
    ),
    Recording(
        "quorum",
        "--topology quorum --faults network --seconds 60 --commands 1 --seed 19",
        "members restarted without data, one or a majority",
    ),
    Recording(
        "redis-py",
        f"--library redis-py {_REDIS_PY}",
        "acquire() returns True when its answer comes after the end of the lease",
        ("exclusion",),
    ),
    Recording(
        "python-redis-lock",
        f"--library python-redis-lock {_RENEWED}",
        "acquire() returns True when its answer comes after the end of the lease",
        ("exclusion",),
    ),
    Recording("pottery", f"--library pottery {_EMPTIED}", _VOTES, ("exclusion",)),
    Recording("redlock-py", f"--library redlock-py {_EMPTIED}", _VOTES, ("exclusion",)),
    Recording("single-as-redis-py", f"--kinds lock {_REDIS_PY}", "what redis-py was put through"),
    Recording("single-as-python-redis-lock", f"--kinds lock {_RENEWED}", "what python-redis-lock was put through"),
    Recording("quorum-as-peers", f"--kinds lock {_EMPTIED}", "what pottery and redlock-py were put through"),
    Recording("large-single", f"--faults none {_FAST} --locks 8 --seconds 60 --seed 31", "all kinds", (), True),
    Recording(
        "large-lock",
        "--faults none --fast --kinds lock --locks 2 --loops 16 --processes 2 --seconds 120 --seed 35",
        "tenures, which a client hands on inside",
        (),
        True,
    ),
    Recording(
        "large-faults", f"--faults network {_FAST} --seconds 60 --seed 36", "every fault of one server", (), True
    ),
    Recording(
        "large-cluster", f"--topology cluster --faults network {_FAST} --seconds 60 --seed 32", "failovers", (), True
    ),
    Recording(
        "large-sentinel", f"--topology sentinel --faults network {_FAST} --seconds 60 --seed 33", "failovers", (), True
    ),
    Recording(
        "large-quorum", f"--topology quorum --faults network {_FAST} --seconds 60 --seed 34", "restarts", (), True
    ),
)


def record(only: str, into: Path, *, everything: bool) -> int:
    """Make them, write what was made into the manifest; 1 if one is not judged as it should be."""
    into.mkdir(parents=True, exist_ok=True)
    wrong = 0
    chosen = [each for each in RECORDINGS if only in ("", each.name) and (everything or only or not each.large)]
    for recording in chosen:
        file = into / recording.file
        arguments = [*recording.command[1:], "--json", "--save", str(file)]
        done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        if not file.exists():
            print(f"{recording.name}: {done.stderr[-2000:]}", file=sys.stderr)
            return 1
        entry = _entry(recording, file, json.loads(done.stdout)["operations"])
        found = entry["found"]
        as_expected = set(recording.convicted) <= set(found) and (bool(found) == bool(recording.convicted))
        wrong += not as_expected
        print(f"{recording.name}: {entry['operations']:,} operations, {found or 'holds'}", flush=True)
        if not as_expected or (done.returncode and not recording.convicted):
            print(done.stdout, file=sys.stderr)
        _note(into / "MANIFEST.json", entry)
    return 1 if wrong else 0


def _entry(recording: Recording, file: Path, operations: int) -> dict[str, Any]:
    verdict = check(str(file))
    return {
        "file": file.name,
        "command": shlex.join([*recording.command, "--save", file.name]),
        "why": recording.why,
        "expect": "convicted" if recording.convicted else "holds",
        "rules": list(recording.convicted),
        "operations": operations,
        "found": dict(Counter(rule for rule, _ in verdict.violations)),
    }


def _note(manifest: Path, entry: dict[str, Any]) -> None:
    entries: list[dict[str, Any]] = json.loads(manifest.read_text()) if manifest.exists() else []
    entries = [each for each in entries if each["file"] != entry["file"]] + [entry]
    order = {each.file: at for at, each in enumerate(RECORDINGS)}
    entries.sort(key=lambda each: order.get(each["file"], len(order)))
    manifest.write_text(json.dumps(entries, indent=1) + "\n")
