"""What a seed draws: the size of its world, its rhythms, and which faults strike how often (a swarm).

Modes: "ordinary" draws only faults after which a client can keep every promise. Most others take one protection away
or add one fault that no client can answer for, and say which invariant must then be seen to break. Drawn as protected,
the very same worlds have the protection, or are without that fault, and nothing may break.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

__all__ = ["MODES", "Mode", "Options"]


@dataclass(frozen=True)
class Mode:
    """A kind of world: what must break in it (None: nothing), and what is not promised in it.

    `protection`: with what nothing breaks, and what is not promised even then.
    """

    name: str
    what: str
    demanded: str | None = None
    not_promised: frozenset[str] = frozenset()
    protection: str | None = None
    not_even: frozenset[str] = frozenset()


#: What no one promises once data are lost or a server's clock jumps.
_LOOSE = frozenset({"overlap", "shorter on the server", "stolen", "order", "orphan", "told fence"})

MODES: dict[str, Mode] = {
    mode.name: mode
    for mode in (
        Mode("ordinary", "faults that a client can answer for"),
        Mode("calm", "no faults at all, cancellations only: order and no idle lock from the first second"),
        Mode("empty", "servers restart without their data; everything but exclusion holds", None, _LOOSE),
        Mode("tenures", "several workers of a process wait for each other, and hand locks on"),
        Mode(
            "calm-tenures", "the same without faults, and no waiter is overtaken by more than a tenure of each process"
        ),
        Mode("keeps", "processes keep what they release, while no other one asks for it"),
        Mode("crashes", "others get in soon after a holder's connections have ended, and not before it knows"),
        Mode("calm-keeps", "the same without faults: what is kept and idle is let go at once"),
        Mode("breaks", "leases are taken away from their holders, at any moment of theirs"),
        Mode("calm-breaks", "the same without faults: a holder that listens is told, and lets go itself"),
        Mode("deadlocks", "parties of several locks, shared locks and permits wait for each other, and look for that"),
        Mode("calm-deadlocks", "the same without faults: who is told of a deadlock is in one, and no one else is told"),
        Mode("cluster", "keys lie on several servers by their slots"),
        Mode(
            "restart-empty",
            "the same, and exclusion is checked",
            "overlap",
            _LOOSE - {"overlap"},
            "no data are lost",
        ),
        Mode(
            "failover-no-wait",
            "a replica is promoted, no one waited for replicas",
            "overlap",
            _LOOSE - {"overlap"},
            "both replicas have acknowledged",
        ),
        Mode(
            "failover-wait-1",
            "of two replicas one has acknowledged, the other is promoted",
            "overlap",
            _LOOSE - {"overlap"},
            "both replicas have acknowledged",
        ),
        Mode(
            "server-clock-forward",
            "a server's clock jumps forward",
            "overlap",
            _LOOSE - {"overlap"},
            "clocks do not jump",
        ),
        Mode(
            "empty-and-clock-back",
            "data lost and the clock set back at once",
            "fence",
            _LOOSE,
            "not both at once",
        ),
        Mode(
            "drift",
            "clocks that run faster or slower than validity allows for",
            "shorter on the server",
            frozenset({"overlap", "told fence", "stolen", "order"}),
            "drift within the allowance",
        ),
        Mode("quorum", "independent servers whose clocks differ: a majority decides"),
        Mode(
            "quorum-empty",
            "the same, and members restart without their data; tokens are promised while a majority remembers",
            None,
            frozenset({"fence", "shorter on the server"}),
        ),
        Mode(
            "quorum-instant-restart",
            "members restart without their data and vote at once",
            "overlap",
            _LOOSE - {"overlap"} | {"fence"},
            "they vote after the longest ttl",
            frozenset({"fence", "shorter on the server"}),
        ),
        Mode(
            "quorum-clock-forward",
            "a member's clock jumps forward",
            "overlap",
            _LOOSE - {"overlap"} | {"fence"},
            "clocks do not jump",
        ),
        Mode(
            "quorum-drift",
            "members and clients whose clocks run faster or slower than validity allows for",
            "shorter on the server",
            frozenset({"overlap", "told fence", "stolen"}),
            "drift within the allowance",
        ),
        Mode(
            "quorum-not-written-back",
            "fencing tokens are not written back to a majority",
            "fence",
            frozenset(),
            "they are",
        ),
        Mode(
            "careless",
            "holders work on without looking at the deadline",
            "overlap",
            frozenset({"shorter on the server", "late loss"}),
            "they look",
        ),
    )
}


#: Faults against which there is no protection but their absence.
_LEFT_OUT = {
    "restart-empty": ("empty",),
    "empty-and-clock-back": ("empty-and-clock-back",),
    "server-clock-forward": ("clock forward",),
    "quorum-clock-forward": ("clock forward",),
}


@dataclass(frozen=True)
class Options:
    """The draw of one seed. Times in virtual seconds, rates per virtual second, probabilities per message."""

    seed: int
    mode: str
    processes: int = 3
    tasks: int = 1
    locks: int = 1
    nodes: int = 1
    replicas: int = 0
    #: Keys lie on the nodes by their slots.
    cluster: bool = False
    #: (replicas, timeout_ms) for WAIT, or None.
    sync: tuple[int, int] | None = None
    chaos_s: float = 120.0
    calm_s: float = 60.0
    latency_s: float = 0.001
    lag_s: float = 0.001
    drift: float = 0.0
    ttl_s: tuple[float, float] = (2.0, 20.0)
    work_s: float = 2.0
    think_s: float = 2.0
    #: How much longer all processes but one think.
    others_think: float = 1.0
    patient: float = 0.5
    claim_ms: int = 2000
    #: How long a process hands a lock on among its workers.
    tenure_ms: float = 0.0
    undisturbed_ms: float = 100.0
    #: How long a process keeps a lock after its release.
    keep_s: float = 0.0
    #: How many of the locks are released so soon after their holder has gone.
    crash_part: float = 0.0
    #: How long it takes on average until someone breaks a lease; 0: no one does.
    break_s: float = 0.0
    #: How long a client does without the fast path, once it was not granted a lock.
    contended_acquires: int = 1_000
    #: Leases that are due within this part of their ttl are renewed with others.
    renew_early_fraction: float = 1 / 60
    late_s: float = 0.0
    #: Events by kind, per second.
    rates: dict[str, float] = field(default_factory=dict)
    #: Message faults by kind, probability each.
    noise: dict[str, float] = field(default_factory=dict)
    lost_push: float = 0.0
    careless: bool = False
    #: With what the mode takes away: see `Mode.protection`.
    protected: bool = False
    not_promised: frozenset[str] = frozenset()

    @classmethod
    def draw(
        cls, seed: int, mode: str = "ordinary", without: frozenset[str] = frozenset(), protected: bool = False
    ) -> Options:
        """The options of a seed; faults in `without` are left out of what was drawn (to shorten a trace)."""
        rng = random.Random(f"options {mode} {seed}")
        ttl_low = rng.choice((0.5, 2.0, 5.0, 10.0))
        options = cls(
            seed=seed,
            mode=mode,
            processes=rng.choice((2, 2, 3, 3, 4, 6)),
            tasks=rng.choice((1, 1, 1, 2, 3)),
            locks=rng.choice((1, 1, 1, 2)),
            chaos_s=rng.choice((60.0, 120.0, 240.0)),
            calm_s=60.0,
            latency_s=rng.choice((0.0002, 0.001, 0.005, 0.02)),
            drift=rng.choice((0.0, 0.0001, 0.004)),
            ttl_s=(ttl_low, ttl_low * rng.choice((1, 3, 10))),
            work_s=rng.choice((0.05, 1.0, 3.0, 8.0)),
            think_s=rng.choice((0.5, 3.0, 8.0, 20.0)),
            patient=rng.choice((0.1, 0.5, 0.9)),
            claim_ms=rng.choice((500, 2000)),
            # Of its own, so that it moves no other draw of a seed.
            contended_acquires=random.Random(f"contended {mode} {seed}").choice((1, 1, 3, 1_000)),
            renew_early_fraction=random.Random(f"early {mode} {seed}").choice((1 / 60, 0.3)),
            protected=protected,
            not_promised=MODES[mode].not_even if protected else MODES[mode].not_promised,
        )
        rates = {
            kind: rate * rng.choice((0.0, 0.0, 1.0, 1.0, 4.0))
            for kind, rate in (
                ("pause", 0.03),
                ("crash", 0.01),
                ("cut", 0.02),
                ("server pause", 0.015),
                ("restart", 0.01),
                ("inbox broken", 0.03),
                ("inbox deaf", 0.02),
                ("memory", 0.01),
                ("slow", 0.01),
            )
        }
        rates["cancel"] = rng.choice((0.0, 0.05, 0.3))
        rates["close"] = 0.02 * random.Random(f"close {mode} {seed}").choice((0.0, 0.0, 1.0))
        scale = rng.choice((0.0, 1.0, 1.0, 5.0))
        noise = {
            kind: chance * scale * rng.choice((0.0, 1.0, 1.0))
            for kind, chance in (
                ("drop request", 0.01),
                ("drop reply", 0.01),
                ("duplicate", 0.005),
                ("late request", 0.005),
                ("late reply", 0.005),
                ("reset", 0.01),
            )
        }
        lost_push = rng.choice((0.0, 0.0, 0.05, 1.0))
        late_s = rng.choice((1.0, 10.0, 40.0))
        replicated = rng.random() < 0.15
        lag_s = rng.choice((0.0005, 0.005, 0.05))
        if mode.endswith("tenures"):
            draw = random.Random(f"tenures {mode} {seed}").choice
            options = replace(options, tasks=draw((2, 3, 4)), locks=1, tenure_ms=draw((1.0, 300.0, 3_000.0)))
            options = replace(options, think_s=draw((0.05, 0.5, 3.0)), work_s=draw((0.02, 0.2, 1.0)))
            if draw((True, False, False)):  # one process has it nearly to itself
                options = replace(options, tasks=4, think_s=0.05, work_s=0.05, others_think=draw((40.0, 400.0)))
                options = replace(options, tenure_ms=draw((1.0, 300.0)), undisturbed_ms=draw((100.0, 10_000.0)))
            replicated = False
        if mode.endswith("keeps"):
            draw = random.Random(f"keeps {mode} {seed}").choice
            options = replace(options, tasks=draw((1, 2, 3)), locks=1, tenure_ms=draw((0.0, 0.0, 300.0)))
            options = replace(options, think_s=draw((0.05, 0.5, 3.0)), work_s=draw((0.02, 0.2, 1.0)))
            options = replace(options, keep_s=draw((0.1, 1.0, 5.0)))
            replicated = False
        if mode == "crashes":
            draw = random.Random(f"crashes {mode} {seed}").choice
            options = replace(options, crash_part=draw((0.5, 0.9, 1.0)), ttl_s=draw(((2.0, 6.0), (5.0, 50.0))))
            options = replace(options, locks=1, think_s=draw((0.05, 0.5, 3.0)), work_s=draw((0.2, 2.0, 8.0)))
            for kind, rate in (("crash", 0.05), ("frozen", 0.2), ("inbox broken", 1.0), ("cut", 0.05)):
                rates[kind] = rates.get(kind, 0.0) + rate * draw((0.2, 1.0, 4.0))
        if mode.endswith("breaks"):
            draw = random.Random(f"breaks {mode} {seed}").choice
            options = replace(
                options,
                locks=draw((1, 2)),
                tasks=draw((1, 2, 3)),
                break_s=draw((1.0, 3.0, 10.0)),
                think_s=draw((0.05, 0.5, 3.0)),
            )
            replicated = False
        if mode.endswith("deadlocks"):
            draw = random.Random(f"deadlocks {mode} {seed}").choice
            options = replace(options, tasks=draw((1, 2, 3)), work_s=draw((0.05, 0.5, 2.0)))
            options = replace(options, think_s=draw((0.05, 0.5, 3.0)))
            rates["crash"] = rates.get("crash", 0.0) + 0.05
            replicated = False
        if mode.startswith("calm"):
            rates = {"cancel": rates["cancel"], "close": rates["close"]}
            noise = {}
            lost_push = 0.0
            options = replace(options, chaos_s=1.0, calm_s=120.0)
        elif mode in ("restart-empty", "empty", "empty-and-clock-back"):
            rates[mode if mode != "restart-empty" else "empty"] = 0.05
            rates["restart"] = 0.0
        elif mode.startswith("failover"):
            rates["failover"] = 0.04
            rates["link"] = 0.2
            lag_s = 0.05
        elif mode == "server-clock-forward":
            rates["clock forward"] = 0.05
        elif mode == "cluster":
            options = replace(options, nodes=3, cluster=True)
            for kind in ("cut", "server pause", "restart"):
                rates[kind] = rates.get(kind, 0.0) * 2 + 0.02
        elif mode.startswith("quorum"):
            low = rng.choice((0.5, 1.0, 2.0))
            options = replace(options, nodes=rng.choice((3, 3, 5)), ttl_s=(low, low * rng.choice((1, 3))))
            rates.pop("inbox broken", None)  # no one listens
            rates.pop("inbox deaf", None)
            # One at a time is little for this number of members: strike harder.
            for kind in ("cut", "server pause"):
                rates[kind] = rates.get(kind, 0.0) * 2 + 0.05
            if mode in ("quorum-empty", "quorum-instant-restart"):
                rates["empty"] = 0.1
                rates["restart"] = 0.0
            if mode == "quorum-instant-restart":
                # Held for long, by few, while members restart all the time: soon a majority has forgotten it.
                options = replace(options, nodes=3, processes=3, tasks=1, locks=1, ttl_s=(5.0, 10.0), work_s=8.0)
                rates["empty"] = 0.5
            elif mode == "quorum-clock-forward":
                rates["clock forward"] = 0.1
        elif mode == "careless":
            rates["pause"] = 0.1
            options = replace(options, careless=not protected)
        elif replicated:
            rates["failover"] = rng.choice((0.01, 0.04))
            rates["link"] = rng.choice((0.0, 0.02))
        if mode in ("ordinary", "crashes") and replicated:
            options = replace(options, nodes=3, replicas=2, sync=(2, 500), lag_s=lag_s)
        elif mode.startswith("failover"):
            unsafe = (1, 500) if mode == "failover-wait-1" else None
            options = replace(options, nodes=3, replicas=2, sync=(2, 500) if protected else unsafe, lag_s=lag_s)
        elif mode.endswith("drift"):
            options = replace(options, drift=0.0049 if protected else 0.05)
        if protected:
            for kind in _LEFT_OUT.get(mode, ()):
                rates.pop(kind, None)
        rates = {kind: rate for kind, rate in rates.items() if rate > 0 and kind not in without}
        noise = {kind: chance for kind, chance in noise.items() if chance > 0 and kind not in without}
        if not noise.keys() & {"duplicate", "late request", "late reply"}:
            late_s = 0.0
        return replace(
            options,
            rates=rates,
            noise=noise,
            lost_push=0.0 if "lost push" in without else lost_push,
            late_s=late_s,
        )

    def faults(self) -> list[str]:
        """The kinds that may strike."""
        return sorted({*self.rates, *self.noise, *(["lost push"] if self.lost_push else [])})

    def client_rate(self, rng: random.Random) -> float:
        return 1 + self.drift * rng.uniform(-1, 1)

    def server_rate(self, rng: random.Random) -> float:
        return 1 + self.drift * rng.uniform(-1, 1)

    def line_ttl_ms(self, renews: bool) -> int:
        """Return the ttl of locks whose waiters wait for each other."""
        return int(1000 * self.ttl_s[renews])

    def waiting_s(self) -> float:
        """Return how long things may take to go on after the last fault: late messages, leftovers, waiters."""
        workers = self.processes * self.tasks
        claims = workers * self.claim_ms / 1000
        patience = 2 * max(0.05, min(5.0, self.ttl_s[1] / 3))
        # What a slow network still carries: its slowest, as in network.SLOWEST_S.
        slow_s = min(5000 * self.latency_s, 15.0) if "slow" in self.rates else 0.0
        return slow_s + self.late_s + self.ttl_s[1] + claims + patience + 3.0

    def short_retry_s(self, *, redirected: bool = True) -> float:
        """Return how long a few messages take when nothing is wrong; `redirected`: a former master may be asked."""
        # With replicas: a WAIT or two; and who asks a former master is told so, and pauses before it asks the new one.
        replicated_s = 6 * self.lag_s + 0.15 * redirected if self.replicas else 0.0
        polling_s = 2.0 if self.mode.startswith("quorum") else 0.0  # waiters ask from time to time
        return 0.05 + 60 * self.latency_s + replicated_s + polling_s

    def drain_s(self) -> float:
        """Return how long all may take to come to an end."""
        return (
            2 * self.waiting_s()
            + self.processes * self.tasks * (self.work_s * 12 + 1.0)
            + 15 * self.think_s * self.others_think
            + 60.0
        )

    def settle_s(self) -> float:
        return self.waiting_s() + 1.0
