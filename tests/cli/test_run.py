"""`holdfast run`: real processes on a real server."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast as library
from holdfast import embedded
from holdfast._runtime.clock import clock
from testbed.waiting import stop
from tests.support.commands import PATIENCE_S, alive, holdfast, started, wait_for

PYTHON = sys.executable
Private = Callable[..., embedded.Server]


@pytest.fixture
def url(valkey_server: embedded.Server) -> str:
    return valkey_server.url


def free(url: str, name: str) -> bool:
    with library.connect(url) as client:
        return not client.lock(name).locked()


# ---- exit statuses ----

STATUSES = {
    "success": (["true"], 0),
    "its own status": (["sh", "-c", "exit 3"], 3),
    "one of ours": (["sh", "-c", "exit 75"], 75),
    "SIGTERM": (["sh", "-c", "kill -TERM $$"], 128 + 15),
    "SIGKILL": (["sh", "-c", "kill -KILL $$"], 128 + 9),
    "SIGSEGV": (["sh", "-c", "kill -SEGV $$"], 128 + 11),
    "not there": (["holdfast-no-such-command"], 127),
    "not there, as a path": (["/no/such/command"], 127),
    "an empty word": ([""], 127),
    "not executable": (["/etc/passwd"], 126),
    "a directory": (["/"], 126),
}


@pytest.mark.parametrize("command, status", STATUSES.values(), ids=STATUSES.keys())
def test_exit_status(url: str, unique_name: str, command: list[str], status: int) -> None:
    done = holdfast("run", unique_name, "--", *command, url=url)
    assert done.returncode == status
    assert free(url, unique_name)
    if status in (126, 127):
        assert done.stderr.startswith(b"holdfast: ") and done.stderr.count(b"\n") == 1
    else:
        assert done.stderr == b""


def test_held_by_somebody_else_is_75_and_says_who(url: str, unique_name: str) -> None:
    with library.connect(url) as client, client.lock(unique_name):
        client_is_known(client, unique_name)
        done = holdfast("run", "--no-wait", unique_name, "--", "echo", "ran", url=url)
        waited = holdfast("run", "--wait", "200ms", unique_name, "--", "echo", "ran", url=url)
    for ended in (done, waited):
        assert (ended.returncode, ended.stdout) == (75, b"")
        # On a busy machine it may say before that the server does not answer.
        (said,) = [line for line in ended.stderr.decode().splitlines() if ": waiting for lock " not in line]
        assert said.startswith(f"holdfast: lock '{unique_name}' is held by {socket.gethostname()}, pid {os.getpid()} ")
        assert " since 20" in said
    assert "waited 0." in waited.stderr.decode()


def client_is_known(client: library.Client, name: str) -> None:
    def known() -> bool:
        holder = client.lock(name).holder()
        return holder is not None and holder.host is not None

    wait_for(known, "the holder's description is on the server")


def test_an_unreachable_server_is_69() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        port = closed.getsockname()[1]
        done = holdfast("run", "--no-wait", "x", "--", "echo", "ran", url=f"redis://:geheim@127.0.0.1:{port}")
    assert (done.returncode, done.stdout) == (69, b"")
    assert done.stderr.startswith(f"holdfast: lock 'x': server 127.0.0.1:{port} cannot be reached".encode())
    assert b"geheim" not in done.stderr and done.stderr.count(b"\n") == 1


def test_a_wrong_password_is_77(private_server: Private) -> None:
    server = private_server(password="right")
    wrong = server.url.replace("right", "wrong")
    for words in (["run", "x", "--", "echo", "ran"], ["status", "x"], ["doctor"]):
        done = holdfast(*words, url=wrong)
        assert (done.returncode, done.stdout) == (77, b"")
        assert b"wrong" not in done.stderr.lower().replace(b"wrongpass", b"") and done.stderr.count(b"\n") == 1
    assert holdfast("run", "x", "--", "true", url=server.url).returncode == 0


# ---- what the command gets, and what others get of it ----


def test_the_command_knows_lock_and_fencing_token(url: str, unique_name: str) -> None:
    script = 'echo "$HOLDFAST_NAME" "$HOLDFAST_FENCING_TOKEN"'
    tokens = []
    for _ in range(2):
        name, token = holdfast("run", unique_name, "--", "sh", "-c", script, url=url).stdout.split()
        assert name.decode() == unique_name
        tokens.append(int(token))
    assert tokens[0] < tokens[1]


def test_arguments_input_and_output_are_untouched(url: str, unique_name: str) -> None:
    noise = bytes(range(256)) * 4096
    script = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()); sys.stderr.write(repr(sys.argv[1:]))"
    words = ["a b", "*", "$HOME", "", "--ttl", "ü"]
    done = holdfast("run", unique_name, "--", PYTHON, "-c", script, *words, url=url, input=noise)
    assert done.returncode == 0
    assert done.stdout == noise
    assert done.stderr.decode() == repr(words)


def test_other_open_files_are_passed_on(url: str, unique_name: str) -> None:
    reads, writes = os.pipe()
    with os.fdopen(reads, "rb") as there:
        try:
            script = f"import os; os.write({writes}, b'hi')"
            holdfast("run", unique_name, "--", PYTHON, "-c", script, url=url, pass_fds=[writes])
        finally:
            os.close(writes)
        assert there.read() == b"hi"  # and no one of ours keeps it open


def test_without_input_and_output(url: str, unique_name: str) -> None:
    words = [PYTHON, "-m", "holdfast", "run", "--url", url, unique_name, "--", "sh", "-c", "exit 6"]
    closing = 'exec "$@" <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", closing, "sh", *words], check=False, timeout=PATIENCE_S).returncode == 6
    assert free(url, unique_name)


def _signals(said: bytes) -> dict[str, int]:
    """Without 32 and 33, which are the C library's: how it starts a process says whether they are blocked."""
    lines = [line.split(":") for line in said.decode().splitlines()]
    return {name: int(mask, 16) & ~(0b11 << 31) for name, mask in lines}


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux's /proc")
def test_signals_are_as_a_shell_would_leave_them(url: str, unique_name: str) -> None:
    grep = shutil.which("grep")
    assert grep is not None  # a path, so that Python starts both in the same way
    command = [grep, "-E", "^Sig(Blk|Ign)", "/proc/self/status"]
    plain = _signals(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert _signals(holdfast("run", unique_name, "--", *command, url=url).stdout) == plain
    # As under nohup: what was ignored when we came stays ignored.
    script = 'trap "" HUP INT; exec "$@"'
    shell = ["sh", "-c", script, "sh"]
    ignoring = _signals(subprocess.run([*shell, *command], stdout=subprocess.PIPE, check=True).stdout)
    assert ignoring != plain
    ours = [PYTHON, "-m", "holdfast", "run", "--url", url, unique_name, "--", *command]
    assert _signals(subprocess.run([*shell, *ours], stdout=subprocess.PIPE, check=True).stdout) == ignoring


def test_secrets_in_arguments_do_not_go_to_the_server(url: str, unique_name: str) -> None:
    with started("run", unique_name, "--", "sleep", "600.125", url=url), library.connect(url) as client:
        client_is_known_by(client, unique_name)
        holder = client.lock(unique_name).holder()
    assert holder is not None
    assert holder.program == f"holdfast run {unique_name} -- sleep"


def client_is_known_by(client: library.Client, name: str) -> None:
    def known() -> bool:
        holder = client.lock(name).holder()
        return holder is not None and holder.program is not None

    wait_for(known, "the holder has said who it is")


# ---- one at a time ----


def test_two_at_once_take_turns(url: str, unique_name: str, tmp_path: Path) -> None:
    book = tmp_path / "book"
    script = f"echo in $$ >>{book}; sleep 0.2; echo out $$ >>{book}"
    with (
        started("run", unique_name, "--", "sh", "-c", script, url=url) as one,
        started("run", unique_name, "--", "sh", "-c", script, url=url) as two,
        started("run", unique_name, "--", "sh", "-c", script, url=url) as three,
    ):
        assert [process.wait(PATIENCE_S) for process in (one, two, three)] == [0, 0, 0]
    lines = book.read_text().split("\n")[:-1]
    assert len(lines) == 6
    for entry, leaving in zip(lines[::2], lines[1::2], strict=True):
        assert entry.startswith("in ") and leaving == entry.replace("in", "out")


def test_shared_runs_beside_shared_and_not_beside_alone(url: str, unique_name: str) -> None:
    with started(
        "run", "--shared", unique_name, "--", "sh", "-c", "echo in; read x", url=url, stdin=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"in\n"
        assert holdfast("run", "--shared", "--no-wait", unique_name, "--", "echo", "ran", url=url).stdout == b"ran\n"
        alone = holdfast("run", "--no-wait", unique_name, "--", "echo", "ran", url=url)
        assert (alone.returncode, alone.stdout) == (75, b"")
        assert b"held by 1 client that shares it" in alone.stderr
        reader.communicate(b"\n", PATIENCE_S)
    with library.connect(url) as client, client.lock(unique_name):
        assert holdfast("run", "--shared", "--no-wait", unique_name, "--", "true", url=url).returncode == 75


def test_slots_let_in_so_many(url: str, unique_name: str) -> None:
    with library.connect(url) as client:
        semaphore = client.semaphore(unique_name, 2)
        with semaphore:
            assert holdfast("run", "--slots", "2", "--no-wait", unique_name, "--", "true", url=url).returncode == 0
            with semaphore:
                full = holdfast("run", "--slots", "2", "--no-wait", unique_name, "--", "echo", "ran", url=url)
                assert (full.returncode, full.stdout) == (75, b"")
                assert full.stderr == f"holdfast: all 2 slots of '{unique_name}' are taken\n".encode()
    other = holdfast("run", "--slots", "3", "--no-wait", unique_name, "--", "true", url=url)
    assert other.stderr == f"holdfast: '{unique_name}' has 2 slots, not 3: use the same --slots everywhere\n".encode()
    assert other.returncode == 64 and other.stderr.count(b"\n") == 1


@pytest.mark.parametrize("kind", [(), ("--slots", "1")])
def test_one_runs_one_waits_and_the_rest_is_turned_away(kind: tuple[str, ...], url: str, unique_name: str) -> None:
    with library.connect(url) as client:
        held = client.semaphore(unique_name, 1) if kind else client.lock(unique_name)
        lease = held.acquire()
        one = ("run", *kind, "--queue-limit", "1", unique_name, "--", "echo", "ran")
        with started(*one, url=url) as second:
            wait_for(lambda: held.status().waiters == 1, "one waits")
            third = holdfast(*one, url=url)
            assert (third.returncode, third.stdout) == (75, b"")
            # On a busy machine it may say before what it waits for.
            (said,) = [line for line in third.stderr.splitlines() if b": waiting for " not in line]
            assert said.endswith(b", and others wait for it already (--queue-limit 1)")
            lease.release()
            assert second.communicate(timeout=PATIENCE_S)[0] == b"ran\n"
    wrong = holdfast("run", "--queue-limit", "0", unique_name, "--", "true", url=url)
    assert wrong.returncode == 64 and b"queue limit" in wrong.stderr


def test_a_killed_run_is_followed_long_before_its_ttl(url: str, unique_name: str) -> None:
    words = ("run", "--crash-release", "1s", "--ttl", "10m", unique_name, "--")
    with started(*words, "sleep", "600.375", url=url) as doomed, library.connect(url) as client:
        wait_for(client.lock(unique_name).locked, "it holds")
        with started(*words, "echo", "in", url=url) as other:
            wait_for(lambda: client.lock(unique_name).waiters() == 1, "the other one waits")
            doomed.kill()
            assert other.communicate(timeout=PATIENCE_S)[0] == b"in\n"
            assert other.returncode == 0


def test_a_run_outlasts_its_crash_release(url: str, unique_name: str) -> None:
    """Renewed in time, and not told to end by what is left of so short a time."""
    done = holdfast("run", "--crash-release", "1s", unique_name, "--", "sleep", "3", url=url)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    "options", [["0.5s"], ["16s"], ["1s", "--at-least", "5s"], ["1s", "--slots", "2"], ["1s", "--shared"]]
)
def test_a_crash_release_that_makes_no_sense_is_refused(url: str, unique_name: str, options: list[str]) -> None:
    done = holdfast("run", "--crash-release", *options, unique_name, "--", "true", url=url)
    assert done.returncode == 64 and b"--crash-release" in done.stderr


def test_a_command_is_gone_before_others_may_be_in(private_server: Private, unique_name: str) -> None:
    """A server that hangs renews nothing: what could be let in by others, had it only lost us, has to be alone."""
    server = private_server()
    words = ("run", "--crash-release", "1s", unique_name, "--", "sh", "-c", "echo $$; exec sleep 600")
    with started(*words, url=server.url) as run:
        assert run.stdout is not None
        command = int(run.stdout.readline())
        server.pause()
        try:
            assert run.wait(PATIENCE_S) == 76
        finally:
            server.resume()
    assert not alive(command)


def test_at_least_keeps_the_lock_beyond_the_command(url: str, unique_name: str) -> None:
    done = holdfast("run", "--at-least", "600s", unique_name, "--", "sh", "-c", "exit 7", url=url)
    assert (done.returncode, done.stderr) == (7, b"")
    with library.connect(url) as client:
        holder = client.lock(unique_name).holder()
    assert holder is not None and holder.remaining_s is not None
    assert 30 < holder.remaining_s <= 600  # more than the ttl
    assert holdfast("run", "--no-wait", unique_name, "--", "true", url=url).returncode == 75


def test_at_least_ends_by_itself(url: str, unique_name: str) -> None:
    assert holdfast("run", "--at-least", "1s", unique_name, "--", "true", url=url).returncode == 0
    done = holdfast("run", "--wait", "60s", unique_name, "--", "echo", "ran", url=url)
    assert (done.returncode, done.stdout) == (0, b"ran\n")


def test_at_least_is_over_when_the_command_took_longer(url: str, unique_name: str) -> None:
    assert holdfast("run", "--at-least", "10ms", unique_name, "--", "sleep", "0.2", url=url).returncode == 0
    assert free(url, unique_name)


def test_at_least_is_not_for_commands_that_never_ran(url: str, unique_name: str) -> None:
    assert holdfast("run", "--at-least", "600s", unique_name, "--", "/no/such/command", url=url).returncode == 127
    assert free(url, unique_name)


def test_embedded_needs_no_server() -> None:
    script = f'{PYTHON} -m holdfast status --json "$HOLDFAST_NAME"'
    done = holdfast("run", "--embedded", "demo", "--", "sh", "-c", script, url="redis://127.0.0.1:1")
    assert done.returncode == 0, done.stderr
    assert b'"held": true' in done.stdout


# ---- signals ----

LISTENER = """
import os, signal, sys, time
def note(number, frame):
    os.write(1, b"%d\\n" % number)
    if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        os._exit(40 + number)
for number in map(int, sys.argv[1:]):
    signal.signal(number, note)
os.write(1, b"ready\\n")
while True:
    time.sleep(0.1)  # a signal that comes right before it sleeps does not end the sleep
"""
PASSED_ON = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGCONT]
ENDING = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]


@pytest.mark.parametrize("last", ENDING, ids=lambda number: number.name)
def test_signals_are_passed_on(url: str, unique_name: str, last: signal.Signals) -> None:
    numbers = [str(int(number)) for number in (*PASSED_ON, *ENDING)]
    with started("run", unique_name, "--", PYTHON, "-c", LISTENER, *numbers, url=url) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        for number in PASSED_ON:
            process.send_signal(number)
            assert int(process.stdout.readline()) == number
        process.send_signal(last)
        assert int(process.stdout.readline()) == last
        assert process.wait(PATIENCE_S) == 40 + last
    assert free(url, unique_name)


def test_signals_reach_the_whole_group(url: str, unique_name: str) -> None:
    script = f'"{PYTHON}" -c "$1" {int(signal.SIGUSR1)} & "{PYTHON}" -c "$1" {int(signal.SIGUSR1)}'
    script = f"trap : USR1; {script}"
    with started("run", unique_name, "--", "sh", "-c", script, "sh", LISTENER, url=url) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
        process.send_signal(signal.SIGUSR1)
        assert [int(process.stdout.readline()) for _ in range(2)] == [signal.SIGUSR1] * 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 128 + 15


@pytest.mark.parametrize("number", ENDING, ids=lambda number: number.name)
def test_a_signal_ends_the_waiting_and_leaves_nothing_queued(
    url: str, unique_name: str, number: signal.Signals
) -> None:
    with library.connect(url) as client, client.lock(unique_name):
        lock = client.lock(unique_name)
        with started("run", unique_name, "--", "echo", "ran", url=url) as process:
            wait_for(lambda: lock.waiters() == 1, "it waits")
            process.send_signal(number)
            out, said = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 128 + number
        assert out == b""
        assert said == f"holdfast: interrupted while waiting for lock '{unique_name}'\n".encode()
        wait_for(lambda: lock.waiters() == 0, "its place in the queue is given up")


# ---- a terminal ----

ON_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_the_command_has_the_terminal(url: str, unique_name: str) -> None:
    master, slave = os.openpty()
    words = [PYTHON, "-c", ON_TERMINAL, PYTHON, "-m", "holdfast", "run", "--url", url, unique_name, "--"]
    command = [*words, "sh", "-c", "echo pid $$; read line; exec sleep 600"]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    try:
        with os.fdopen(master, "r+b", buffering=0) as screen:
            said = b""
            while b"\n" not in said:
                said += screen.read(1024)
            pid = int(said.split()[1])
            wait_for(lambda: os.tcgetpgrp(screen.fileno()) == pid, "the command's group is in the foreground")
            screen.write(b"a line\n")  # it can read: the terminal does not stop it
            wait_for(lambda: b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes(), "the command has read it")
            screen.write(b"\x03")  # Ctrl-C
            assert process.wait(PATIENCE_S) == 128 + signal.SIGINT
    finally:
        process.kill()
        process.wait(PATIENCE_S)
    assert free(url, unique_name)


def test_ctrl_c_ends_a_command_in_a_pipe_as_well(url: str, unique_name: str) -> None:
    master, slave = os.openpty()
    words = [PYTHON, "-c", ON_TERMINAL, PYTHON, "-m", "holdfast", "run", "--url", url, unique_name, "--"]
    process = subprocess.Popen(
        [*words, "sh", "-c", "echo ready; exec sleep 600"], stdin=slave, stdout=subprocess.PIPE, stderr=slave
    )
    os.close(slave)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.write(master, b"\x03")  # comes to us, since the pipe's other end may need the terminal
        assert process.wait(PATIENCE_S) == 128 + signal.SIGINT
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        os.close(master)
        if process.stdout is not None:
            process.stdout.close()


# ---- the worst ----

#: Writes the server's time to a key, again and again, with no client library; `deaf` ignores SIGTERM.
BEATS = r"""
import os, signal, socket, sys, time
host, port, key, deaf = sys.argv[1:]
if deaf == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork():  # the one who beats is a grandchild, which must not survive either
    os.write(1, b"1 %d\n" % os.getpid())
    while True:
        time.sleep(600)
os.write(1, b"2 %d\n" % os.getpid())
body = "local t=redis.call('TIME') return redis.call('SET',KEYS[1],string.format('%.0f',t[1]*1000000+t[2]))"
words = ["EVAL", body, "1", key]
request = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
with socket.create_connection((host, int(port))) as server:
    while True:
        server.sendall(request.encode())
        server.recv(100)
        time.sleep(0.002)
"""


def beating(server: embedded.Server, key: str, *, deaf: bool = False) -> list[str]:
    return [PYTHON, "-c", BEATS, server.host, str(server.port), key, "deaf" if deaf else "hearing"]


def last_beat(url: str, key: str) -> int:
    import redis

    with redis.Redis.from_url(url) as client:
        return int(client.get(key) or 0)


def server_time(url: str) -> int:
    import redis

    with redis.Redis.from_url(url) as client:
        seconds, us = client.time()
        return int(seconds) * 1_000_000 + int(us)


def two_pids(process: subprocess.Popen[bytes]) -> list[int]:
    """Of the command, and of its own child that beats."""
    assert process.stdout is not None
    lines = sorted([process.stdout.readline(), process.stdout.readline()])
    return [int(line.split()[1]) for line in lines]


def next_grant(url: str, name: str) -> int:
    """Wait for the lock; when it was granted, by the server's clock (that is what fencing tokens are made of)."""
    with library.connect(url) as client:
        lease = client.lock(name).acquire(timeout=PATIENCE_S)
        try:
            return lease.fencing_token
        finally:
            lease.release()


@pytest.mark.parametrize("victims", ["holdfast", "holdfast and guard"])
def test_killed_with_kill_9_it_leaves_nothing_running(
    valkey_server: embedded.Server, unique_name: str, victims: str
) -> None:
    url = valkey_server.url
    words = ["run", "--ttl", "5s", unique_name, "--", *beating(valkey_server, f"beat:{unique_name}")]
    with started(*words, url=url) as process:
        child, grandchild = two_pids(process)
        wait_for(lambda: last_beat(url, f"beat:{unique_name}"), "it beats")
        if victims == "holdfast":
            process.kill()
            wait_for(lambda: not alive(child) and not alive(grandchild), "the whole group has gone")
            granted_at = next_grant(url, unique_name)
            assert last_beat(url, f"beat:{unique_name}") < granted_at
        else:
            if not sys.platform.startswith("linux"):
                pytest.skip("only Linux tells a process of its parent's death")
            guard = guard_of(process.pid, child)
            stop(process.pid)
            os.kill(guard, signal.SIGKILL)
            process.kill()
            wait_for(lambda: not alive(child), "the command has gone")
            os.kill(grandchild, signal.SIGKILL)  # what only the guard would have found
            next_grant(url, unique_name)


def guard_of(pid: int, child: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (guard,) = [int(found) for found in children if int(found) != child]
    return guard


def test_stopped_beyond_its_lease_its_command_is_gone_before_the_next_holder(
    valkey_server: embedded.Server, unique_name: str
) -> None:
    # The kill comes 0.8 s before the local deadline, which is 0.16 s before the server's: so slow a machine may be.
    url, key = valkey_server.url, f"beat:{unique_name}"
    with started("run", "--ttl", "16s", unique_name, "--", *beating(valkey_server, key, deaf=True), url=url) as process:
        pids = two_pids(process)
        wait_for(lambda: last_beat(url, key), "it beats")
        stop(process.pid)
        granted_at = next_grant(url, unique_name)
        assert 0 < last_beat(url, key) < granted_at
        wait_for(lambda: not any(map(alive, pids)), "the whole group has gone")
        process.send_signal(signal.SIGCONT)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 76
        assert b"is lost" in said


@pytest.mark.parametrize("deaf", [False, True], ids=["ends when told", "has to be killed"])
def test_with_a_frozen_server_the_command_is_gone_before_the_deadline(
    private_server: Private, unique_name: str, deaf: bool
) -> None:
    server = private_server()
    key = f"beat:{unique_name}"
    command = beating(server, key, deaf=deaf)
    with started("run", "--ttl", "8s", unique_name, "--", *command, url=server.url) as process:
        pids = two_pids(process)
        wait_for(lambda: last_beat(server.url, key), "it beats")
        server.pause()
        paused_at = clock()
        wait_for(lambda: not any(map(alive, pids)), "the whole group has gone")
        took_s = clock() - paused_at
        _, said = process.communicate(timeout=PATIENCE_S)  # the server is frozen still: no one else can have it
        assert process.returncode == 76
        assert b"could not be renewed" in said and b"told to end" in said
        if not deaf:
            # Told with 2 s left, of which no machine needs all; that the kill comes in time is test_supervise's.
            assert took_s < 8.0
        server.resume()
        next_grant(server.url, unique_name)


def test_a_lease_taken_away_ends_the_command(valkey_server: embedded.Server, unique_name: str) -> None:
    import redis

    url, key = valkey_server.url, f"beat:{unique_name}"
    with (
        started("run", "--ttl", "6s", unique_name, "--", *beating(valkey_server, key, deaf=True), url=url) as process,
        redis.Redis.from_url(url) as client,
    ):
        pids = two_pids(process)
        wait_for(lambda: last_beat(url, key), "it beats")
        assert client.delete(f"holdfast:{{{unique_name}}}") == 1
        taken_at = server_time(url)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 76
        assert b"the lease is lost (taken)" in said
        wait_for(lambda: not any(map(alive, pids)), "the whole group has gone")
        assert last_beat(url, key) - taken_at < 6_000_000  # not later than it would have ended anyway


def test_max_hold_ends_a_command_that_takes_too_long(url: str, unique_name: str) -> None:
    done = holdfast("run", "--max-hold", "2s", unique_name, "--", "sleep", "600", url=url)
    assert done.returncode == 76
    assert b"--max-hold ends" in done.stderr


def test_a_command_survives_an_outage_shorter_than_its_lease(private_server: Private, unique_name: str) -> None:
    server = private_server()
    with started(
        "run",
        "--ttl",
        "30s",
        unique_name,
        "--",
        "sh",
        "-c",
        "echo ready; read line; exit 9",
        url=server.url,
        stdin=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        server.pause()
        server.resume()
        out, said = process.communicate(b"go\n", timeout=PATIENCE_S)
        assert (process.returncode, out, said) == (9, b"", b"")


def test_it_starts_with_what_it_needs_and_no_more(url: str, unique_name: str) -> None:
    done = holdfast("run", unique_name, "--", "true", url=url, env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0
    imported = {line.rpartition(b"|")[2].strip().decode() for line in done.stderr.splitlines()}
    assert "holdfast.cli.supervise" in imported
    slow = {"redis", "asyncio", "inspect", "rich", "subprocess", "shutil", "importlib.resources", "ssl"}
    assert not slow & imported
    assert not {name for name in imported if name.startswith(("holdfast_lab", "holdfast.cli.doctor"))}
