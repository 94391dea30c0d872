"""The limits and rhythms of the protocols, each with its unit and its reason.

One frozen record instead of constants, so that tests and the simulator can shrink a world without patching. Not a
dataclass: importing those takes a tenth of the time that `holdfast run` needs to start.
"""

from __future__ import annotations

from typing import NamedTuple


class Settings(NamedTuple):
    """Times in the unit their name ends with."""

    #: How long the last fencing token is remembered; after that the server's time alone keeps the order.
    fence_ms: int = 86_400_000
    #: How long a pushed grant waits for its waiter to take it. Above a slow network's round trip, below what
    #: others would mind: a half-open waiter costs the queue this much.
    claim_ms: int = 2_000
    #: How long a client hands a lock on among its own before it goes through the server again; 0: not at all.
    tenure_ms: float = 2.0
    #: The same while it would hear that another client waits, and none does: others lose no more by a lost message.
    undisturbed_ms: float = 100.0
    #: A waiter of longer than this that holds what its client hands on says so, for those that look for deadlocks, s.
    note_s: float = 1.0
    #: How long a token that was given back is refused: far longer than a request can be under way.
    tombstone_ms: int = 60_000
    #: A request without an answer is given up after this; also at most a third of the ttl.
    request_timeout_s: float = 5.0
    #: How long `acquire` without a timeout tolerates an unavailable server before it raises.
    retry_limit_s: float = 30.0
    #: How long a short call (a release, a look) does the same: one fresh connection, not an outage.
    short_retry_s: float = 1.0
    #: How long `try_acquire` does, where the user's client has no `socket_timeout`.
    try_limit_s: float = 1.0
    #: Pauses between tries at a server in trouble grow from the first to the second.
    trouble_pause_s: float = 0.05
    trouble_pause_max_s: float = 1.0
    #: A waiter looks for itself this much after the holder's time is over: server's rounding, and some air.
    recheck_late_s: float = 0.05
    #: A holder that is not ours sends no wake-up: ask this often, growing, with jitter.
    foreign_poll_s: float = 0.05
    foreign_poll_max_s: float = 0.25
    #: A waiter for a signal (a condition, an event, …) looks for itself this often, should the message be lost.
    signal_recheck_ms: int = 5_000
    #: No waiter sleeps longer than this between two looks, whatever the holder's ttl.
    recheck_max_s: float = 60.0
    #: After an acquire that found a lock taken, this many acquires of it start with the protocol, not by the fast path:
    #: rare enough to cost nothing when contention is over.
    contended_acquires: int = 1_000
    #: What does not wait waits for this long all the same where a client keeps the lease: if it is idle, that lets go.
    kept_try_s: float = 0.05
    #: Renew when this part of the ttl has passed, earlier by up to the jitter's part of it.
    renew_fraction: float = 1 / 3
    renew_jitter: float = 0.1
    #: A lease that began with what was left of its claim is stretched to its ttl after this: a section that is over by
    #: then costs no renewal, and hardly any is long enough to lose what little it began with.
    stretch_s: float = 0.02
    #: When any lease is renewed, others that are due within this part of their ttl are renewed with it, in one request.
    renew_early_fraction: float = 1 / 60
    #: A renewal that failed is repeated after this part of the ttl.
    renew_again_fraction: float = 1 / 12
    #: A member of a quorum is waited for as long as a twentieth of the ttl, within these bounds.
    member_patience_s: float = 1.0
    member_patience_min_s: float = 0.05
    #: Contenders that split the vote pause for a random part of this, growing up to the second.
    split_pause_s: float = 0.01
    split_pause_max_s: float = 0.2


DEFAULT = Settings()
