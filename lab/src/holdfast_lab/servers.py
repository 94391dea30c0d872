"""The private servers of a run, and what the lab sees and does beside the clients' wires."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import mmap
import shlex
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import hiredis

from holdfast import embedded
from holdfast_lab.resp import Frames, Refusal

__all__ = ["Clock", "ClockShop", "LabServer", "no_compiler"]

#: Type, value, ttl in ms or -1.
_Found: TypeAlias = tuple[str, str, int]
#: Servers count a key's time in whole milliseconds.
_ROUNDING_MS = 2.0
#: A ttl that is longer than it would be by itself, by that much, was set again.
_PROLONGED_MS = 50.0
#: How often a program that is still open for writing is tried, and the pause between, s.
_BUSY_TRIES, _BUSY_PAUSE_S = 100, 0.05
#: Commands that set a ttl and nothing else.
_PROLONGING = frozenset({"EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT", "GETEX", "EXEC"})

_LOOK = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  local value = kind
  if kind == 'string' then value = redis.call('GET', key)
  elseif kind == 'hash' then value = table.concat(redis.call('HGETALL', key), ' ')
  elseif kind == 'list' then value = table.concat(redis.call('LRANGE', key, 0, -1), ' ')
  elseif kind == 'set' then
    local members = redis.call('SMEMBERS', key)
    table.sort(members)
    value = table.concat(members, ' ')
  elseif kind == 'zset' then value = table.concat(redis.call('ZRANGE', key, 0, -1, 'WITHSCORES'), ' ')
  elseif kind == 'stream' then value = redis.sha1hex(redis.call('DUMP', key))
  end
  found[#found + 1] = {key, kind, value, redis.call('PTTL', key)}
end
return found
"""

_SHIM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* The wall clock runs ahead by as many seconds as the mapped file says, and faster by its second number, in ppm, since
   its third, in s; other clocks are left alone. */
static volatile long *offset;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("HOLDFAST_LAB_CLOCK");
    int fd = path ? open(path, O_RDONLY) : -1;
    if (fd >= 0) {
        void *at = mmap(0, 3 * sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
        if (at != MAP_FAILED) offset = at;
        close(fd);
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        long since_us = (now->tv_sec - offset[2]) * 1000000 + now->tv_nsec / 1000;
        long ahead_us = offset[1] ? since_us / 1000000 * offset[1] + since_us % 1000000 * offset[1] / 1000000 : 0;
        long nsec = now->tv_nsec + ahead_us % 1000000 * 1000;
        now->tv_sec += offset[0] + ahead_us / 1000000 + nsec / 1000000000;
        now->tv_nsec = nsec % 1000000000;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (where) *where = exact.tv_sec;
    return exact.tv_sec;
}
"""


def no_compiler() -> str | None:
    """Why server clocks cannot be made to jump here; None: they can."""
    if shutil.which("gcc") is None:
        return "making a server's clock jump needs gcc, which is not installed"
    return None


class ClockShop:
    """Has the shim built, once for several clocks."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-lab-"))
        self.made = 0
        try:
            source, self.shim = self.folder / "clock.c", self.folder / "clock.so"
            source.write_text(_SHIM)
            built = subprocess.run(
                ["gcc", "-shared", "-fPIC", "-O1", "-o", str(self.shim), str(source)],
                capture_output=True,
                text=True,
                check=False,
            )
            if built.returncode:
                raise RuntimeError(f"gcc could not build the clock shim: {built.stderr.strip()}")
        except BaseException:
            self.remove_files()
            raise

    def remove_files(self) -> None:
        """Once the servers run, they and we have everything in memory: nothing stays on disk, come what may."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Clock:
    """A wall clock that can be made to jump: a preloaded shim reads the offset from a mapped file.

    `program` starts a server with the shim in front of the C library. ``shop``: for several clocks in one run; without
    it the clock has one of its own.
    """

    def __init__(self, shop: ClockShop | None = None) -> None:
        self._shop = shop or ClockShop()
        self._shop.made += 1
        self.program = self._shop.folder / f"server-{self._shop.made}"
        self.offset = self.program.with_suffix(".offset")
        self.offset.write_bytes(bytes(24))
        self._file = self.offset.open("r+b")
        self._memory = mmap.mmap(self._file.fileno(), 24)
        quoted = [shlex.quote(str(path)) for path in (self.offset, self._shop.shim, embedded.valkey_executable())]
        self.program.write_text('#!/bin/sh\nHOLDFAST_LAB_CLOCK={} LD_PRELOAD={} exec {} "$@"\n'.format(*quoted))
        self.program.chmod(0o755)

    def remove_files(self) -> None:
        """See `ClockShop.remove_files`."""
        self._shop.remove_files()

    def jump(self, seconds: int) -> None:
        self._memory[:8] = struct.pack("l", seconds)

    def hurry(self, ppm: int) -> None:
        """From now on it is faster by that."""
        self._memory[16:24] = struct.pack("l", int(time.time()))
        self._memory[8:16] = struct.pack("l", ppm)

    def close(self) -> None:
        self._memory.close()
        self._file.close()
        self._shop.remove_files()


class LabServer:
    """One server of a run: its process, a connection of the lab's own, and what its keys were at the last look.

    Args:
        name: its lane.
        report: called with (kind, particulars) for each thing that happens to it.
        password: what its users have to know.
        clock: starts it on this clock.
        durable: it writes everything to disk before it answers.

    It listens on a Unix socket that only this user can open. Clients reach it through links on loopback, which
    every user of the machine can open: hence the password.
    """

    def __init__(
        self, name: str, report: Callable[..., None], password: str, clock: Clock | None = None, durable: bool = False
    ) -> None:
        self.name = name
        self.password = password
        self.turn = asyncio.Lock()
        self._report = report
        self._clock = clock
        self._durable = durable
        self._process: embedded.Server | None = None
        self._keys: dict[str, _Found] = {}
        self._looked_ns = (0, 0)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._frames = Frames()
        self._asking = asyncio.Lock()
        self.paused = False
        #: It was stopped or killed once.
        self.was_disturbed = False
        self._closed = False
        #: Its clock did: keys may be over before their time.
        self._jumped = False

    @property
    def ttls(self) -> dict[str, int]:
        """Of each key, at the last look."""
        return {key: found[2] for key, found in self._keys.items()}

    @property
    def process(self) -> embedded.Server:
        assert self._process is not None
        return self._process

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new connection, not yet authenticated. Raises OSError when the server is not there."""
        return await asyncio.open_unix_connection(self.process.unix_path)

    async def start(self) -> None:
        executable = self._clock.program if self._clock is not None else None
        config = {"repl-diskless-sync": "yes", "repl-diskless-sync-delay": "0", "enable-debug-command": "yes"}
        if self._durable:
            config |= {"appendonly": "yes", "appendfsync": "always"}
        for tries_left in reversed(range(_BUSY_TRIES)):
            try:
                self._process = await asyncio.to_thread(
                    embedded.server, password=self.password, executable=executable, config=config
                )
                return
            except embedded.ServerStartError as error:
                # A process that was forked while the program was written has it open until it runs its own.
                if not tries_left or getattr(error.__cause__, "errno", None) != errno.ETXTBSY:
                    raise
            await asyncio.sleep(_BUSY_PAUSE_S)

    async def close(self) -> None:
        self._closed = True
        self._disconnect()
        if self._process is not None:
            self._process.close()
        if self._clock is not None:
            self._clock.close()

    def _disconnect(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
            self._frames = Frames()

    # ---- asking ----

    async def ask(self, *words: str | int) -> Any:
        """A command of the lab's own. Raises OSError when the server is not there."""
        async with self._asking:
            if self._closed:
                raise OSError(f"{self.name} is closed")
            try:
                if self._streams is None:
                    self._streams = await self.connect()
                    await self._answer_to("AUTH", self.password)
                frame = await self._answer_to(*words)
            except BaseException:
                self._disconnect()  # an answer that comes later would be taken for that of the next question
                raise
        if isinstance(frame[1], Refusal):
            raise OSError(f"{self.name} said {frame[1]}")
        return frame[1]

    async def _answer_to(self, *words: Any) -> tuple[bytes, Any]:
        assert self._streams is not None
        reader, writer = self._streams
        writer.write(hiredis.pack_command(words))
        while (frame := self._frames.next()) is None:
            data = await reader.read(65536)
            if not data:
                raise ConnectionResetError(f"{self.name} closed the connection")
            self._frames.feed(data)
        return frame

    async def follow(self, port: int) -> None:
        """Become a replica of the server that this port of loopback leads to."""
        await self.ask("CONFIG", "SET", "masterauth", self.password)  # not in its arguments, which `ps` shows
        await self.ask("REPLICAOF", "127.0.0.1", port)

    async def keys(self) -> dict[str, _Found]:
        found = {}
        for key, kind, value, ttl_ms in await self.ask("EVAL", _LOOK, 0):
            found[_text(key)] = (_text(kind), _text(value), int(ttl_ms))
        return found

    async def look(self, by: str | None, verb: str = "") -> list[str]:
        """Report what changed since the last look: by that command of a client, or by expiry. Returns the keys."""
        if self.paused:
            return []  # it would not answer
        asked_ns = time.monotonic_ns()
        try:
            now = await self.keys()
        except OSError:
            return []  # it is down
        was, self._keys = self._keys, now
        (first_ns, last_ns), self._looked_ns = self._looked_ns, (asked_ns, time.monotonic_ns())
        #: Between the two moments at which the server looked: it was at some time between question and answer.
        least_ms = (asked_ns - last_ns) / 1e6
        most_ms = (self._looked_ns[1] - first_ns) / 1e6 + _ROUNDING_MS
        changed = []
        for key in [*was, *(key for key in now if key not in was)]:
            before, after = was.get(key), now.get(key)
            may_be_over = before is not None and 0 <= before[2] <= most_ms
            # The same value is no proof of the same key: many listings write one word for everyone. Where a ttl may
            # have been over, only a command that cannot write has prolonged it.
            same = before is not None and after is not None and before[:2] == after[:2]
            if same and may_be_over and by is not None and verb not in _PROLONGING:
                assert before is not None and after is not None
                same = 0 <= after[2] <= before[2]
            if same and before is not None and after is not None:
                if 0 <= before[2] < after[2] + least_ms - _PROLONGED_MS:
                    changed.append(key)
                    self._report("prolonged", key=key, by=by, ttl_ms=after[2], type=after[0])
                    continue
                if (before[2] < 0) == (after[2] < 0):
                    continue
            changed.append(key)
            if before is not None and may_be_over:
                # It ran out by itself since; whatever a client did, it did to a key that was free.
                self._say_key(key, "expiry", before, None, over_ns=last_ns + int(before[2] * 1e6))
                before = None
            if before is not None or after is not None:
                # What happened while nothing was looked at (a reply that was not delivered) is booked on none.
                expired = after is None and self._jumped
                self._say_key(key, by or ("expiry" if expired else "unseen"), before, after)
        return changed

    def _say_key(self, key: str, by: str, before: _Found | None, after: _Found | None, **more: Any) -> None:
        self._report(
            "key",
            key=key,
            by=by,
            was=before[1] if before else None,
            now=after[1] if after else None,
            type=(after or before or ("string",))[0],
            ttl_ms=after[2] if after else None,
            **more,
        )

    async def forget(self) -> None:
        """Take what lies there now as given."""
        with contextlib.suppress(OSError):
            asked_ns = time.monotonic_ns()
            self._keys = await self.keys()
            self._looked_ns = (asked_ns, time.monotonic_ns())

    # ---- what is done to it ----

    def pause(self) -> None:
        self.paused = self.was_disturbed = True
        self.process.pause()
        self._report("stopped")

    def resume(self) -> None:
        self.process.resume()
        self.paused = False
        self._report("continued")

    async def kill(self) -> None:
        self.was_disturbed = True
        self._report("killed")
        self._disconnect()
        await asyncio.to_thread(self.process.kill)

    async def start_again(self) -> None:
        await asyncio.to_thread(self.process.start)
        self._report("started", empty=not self._durable)
        await self.look(by="lab")

    def jump(self, seconds: int) -> None:
        assert self._clock is not None
        self._clock.jump(seconds)
        self._jumped = True
        self._report("clock", offset_s=seconds)


def _text(value: Any) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
