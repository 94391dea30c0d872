"""A lock whose lease ends soon after its client has gone, though its ttl is long (`crash_release`).

Laws: such a lease is trusted for `crash_ms` from before a request was sent whose script saw its client's inbox
subscribed, and noted that; nothing else counts. Others get in only where a script that finds no subscriber can tell
from that note that there was one in this run of the server, and another script, `crash_ms` and what clocks may differ
later, still finds none, and the same note.

Theory: what the holder trusts was sent before its script ran, and that script took back whatever others had noted until
then; they count from when they noted it again. A renewal is that request, so that such leases are renewed three times
in `crash_ms`. A holder that was stopped, or cut off, trusts its lease no more until a renewal was answered, and has it
still unless others got in.
"""

from __future__ import annotations

from holdfast._core.effects import Call, Listen, driver
from holdfast._core.kinds import LOCK
from holdfast._core.mutex import LockAcquisition
from holdfast._core.record import RENEWAL, Order
from holdfast._core.tokens import crash_ms_of
from holdfast._core.waiting import UNHEARD, UNKNOWN, request_timeout_for
from holdfast.errors import ConfigurationError


class CrashAcquisition(LockAcquisition):
    """The turn to hold such a lock."""

    __slots__ = ()

    crash_ms = property(lambda self: crash_ms_of(self.token))
    kind = LOCK._replace(ask="crash_acquire", extend="crash_renew", beside=("fence:crash",))

    def extend(self, ttl_ms: int, request_timeout_s: float, order: Order = RENEWAL) -> Call:
        call = super().extend(ttl_ms, request_timeout_s, order)
        call.keys, call.args = (*call.keys, self.all_keys[-1]), (*call.args, self.keys.inboxes)
        return call

    def lengthen(self, ttl_ms: int, request_timeout_s: float) -> Call | None:
        call = super().lengthen(ttl_ms, request_timeout_s)
        assert call is not None
        call.args = (*call.args, self.keys.inboxes)
        return call

    async def renew(self, ttl_ms: int, order: Order = RENEWAL) -> int:
        self.short_ms = 2 * self.crash_ms  # so long the answer is waited for that it can be asked for again
        held = await super().renew(ttl_ms, order)
        if held != UNHEARD:
            return held
        token = f"{self.token} proves"  # no token, as that of `HolderNotices`
        try:
            await Listen(token, self.key, request_timeout_for(self.crash_ms, self.settings), deaf_at=driver.get().now())
        finally:
            driver.get().unlisten(token)
        self.short_ms = 2 * self.crash_ms
        return await super().renew(ttl_ms, order)

    def refused(self, code: int, stored: int = 0) -> Exception:
        if code != UNKNOWN:
            return super().refused(code)
        allowed = "0, or None: this server does not tell scripts which clients are there, and in which run of it"
        return ConfigurationError("crash_release", self.crash_ms / 1000, allowed)
