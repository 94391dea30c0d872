"""Servers, clients and wires for all tests.

Each test process starts one server of a kind when a test first asks for it, and shares it from then on: such
tests use names of their own (``unique_name``) and flush nothing. A test that hurts its server asks for
``private_server``.
"""

from __future__ import annotations

import functools
import gc
import os
import re
import shutil
import signal
import subprocess
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import redis
import redis.utils

from holdfast import embedded
from testbed import leaks, servers
from testbed.proxy import Proxy
from testbed.servers import KINDS, MORE_KINDS, Kind
from testbed.waiting import eventually
from tests.support.apis import APIS, MORE_APIS, Api, warm
from tests.support.scripts import Scripts

# A process that a shell, or nohup, has started in the background inherits that some signals are ignored, and would pass
# that on to the programs under test. These must begin with the default, as from a terminal.
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

# Programs under test write as they do where this is not set.
os.environ.pop("PYTHONUNBUFFERED", None)

# The same examples in every run, so that what lands was tested; HYPOTHESIS_RANDOM=1 looks for new ones.
# No example has to be quick: on a busy machine any may take long.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("random", deadline=None)
hypothesis.settings.load_profile("random" if os.environ.get("HYPOTHESIS_RANDOM") else "same")

# redis-py reads its version from its metadata for each connection: most of what making one takes.
redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)

gc.disable()  # until all is collected: hardly any of it is garbage


def pytest_collection_finish() -> None:
    """Freeze what was collected, so that no garbage collection has to go through it again (tests ask for many)."""
    gc.enable()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_servers() -> Iterator[Callable[[Kind], embedded.Server]]:
    """``shared_servers(kind)``: this process's server of that kind, started at first need."""
    started: dict[Kind, embedded.Server] = {}

    def get(kind: Kind) -> embedded.Server:
        if kind not in started:
            started[kind] = servers.start(kind, config=servers.QUIET)
        return started[kind]

    yield get
    for server in started.values():
        server.close()


@pytest.fixture
def server_kind(request: pytest.FixtureRequest) -> Kind:
    """Runs the test once for every kind of server; what a machine lacks is skipped."""
    kind: Kind = request.param
    program = servers.executable(kind)
    if isinstance(program, str):
        pytest.skip(program)
    return kind


@pytest.fixture
def server(server_kind: Kind, shared_servers: Callable[[Kind], embedded.Server]) -> embedded.Server:
    """The shared server of each kind in turn."""
    return shared_servers(server_kind)


@pytest.fixture
def valkey_server(shared_servers: Callable[[Kind], embedded.Server]) -> embedded.Server:
    """The shared Valkey, for tests that gain nothing from other kinds."""
    return shared_servers("valkey")


@pytest.fixture
def url(server: embedded.Server) -> str:
    """URL of the shared server of each kind in turn."""
    return server.url


@pytest.fixture
def private_server() -> Iterator[Callable[..., embedded.Server]]:
    """``private_server(kind="valkey", **options)``: a server to be hurt; ended after the test."""
    started: list[embedded.Server] = []

    def start(kind: Kind = "valkey", **options: Any) -> embedded.Server:
        server = servers.start(kind, **options)
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()


@pytest.fixture
def nothing_left(valkey_server: embedded.Server, unique_name: str) -> Iterator[None]:
    """Afterwards this process has no thread and no descriptor more, and no key of the test's stays forever.

    For long tests, storms and whatever kills: `pytestmark = pytest.mark.usefixtures("nothing_left")`. It comes before
    the fixtures that a test asks for, so that it is finished after them.
    """
    before = leaks.take(objects=False)
    yield
    with redis.Redis.from_url(valkey_server.url, decode_responses=True) as look:
        found = leaks.wrong_keys(look, f"*{unique_name}*", gone_max=10_000)
    assert [each for each in found if not each.startswith("left: ")] == []
    leaks.check(before, objects=False)


@pytest.fixture
def torn_handshakes() -> Iterator[None]:
    """Let go of what CPython leaves open where a peer has gone before a TLS handshake begins (`SSLSocket._create`).

    As `nothing_left`: with `usefixtures`, so that it comes last. The warning comes when that is collected, which may be
    in the test as well.
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        connecting = [each for each in threading.enumerate() if each.name == "holdfast-connect"]
        eventually(lambda: not any(each.is_alive() for each in connecting), "no handshake is under way")
        gc.collect()


@pytest.fixture
def unique_name(request: pytest.FixtureRequest) -> str:
    """A lock name of the test's own, readable in MONITOR."""
    return servers.unique(re.sub(r"[^a-zA-Z0-9_]+", "-", request.node.name).strip("-"))


# ---------------------------------------------------------------- clients

#: Files of the contract that also run on trio, at length.
_ON_TRIO = {f"test_{name}.py" for name in ("lock", "semaphore", "rwlock", "condition", "multilock", "gates")}
#: Profiles on which the contract runs with both APIs: waiters ask there. On the others, with threads alone.
_ON_BOTH = ("no pub/sub", "subscribers unknown")
#: Servers between the oldest, Redis 6.2, and the newest, Valkey: what both APIs show on these two is repeated with one.
_BETWEEN: dict[Kind | None, str] = {"redis70": "threads", **dict.fromkeys(MORE_KINDS, "asyncio")}
#: What runs on each kind of server, and on Valkey with both APIs, without being thorough: a handoff of each primitive.
_ON_EACH = {
    *("test_first_come_first_served", "test_so_many_permits_and_no_more", "test_readers_together_and_writers_alone"),
    *("test_wait_lets_go_and_notify_brings_back", "test_release_hands_each_over", "test_a_latch_opens_after_so_many"),
    *("test_an_event", "test_a_barrier_again_and_again", "test_who_comes_while_a_job_runs_waits_for_its_result"),
    *("test_a_missing_value_is_made_once_and_kept", "test_a_waiter_is_handed_the_lock_by_who_has_adopted_it"),
    *("test_the_holder_hears_and_the_next_waiter_gets_it", "test_an_election", "test_another_client_gets_it_at_once"),
}

#: Where connections, replies and servers are at stake: the engine's business, which is one for all APIs. Each case has
#: one of them in its turn, the other one is thorough.
_IN_TURN = (
    "tests/topologies/",
    *(
        f"tests/contract/test_{name}.py"
        for name in ("closed_connections", "nonsense", "odd_keys", "piles", "rights", "wrong_servers")
    ),
)

#: Tests that take long, wait, and start many processes.
_LONG = (
    *("lab/", "tests/compat/test_peers_suites.py", "tests/rig/test_real_mutants.py", "tests/docs/test_start.py"),
    *("tests/process/test_handlers_at_every_bytecode.py", "tests/process/test_trio.py"),
)
#: Folders whose tests take one to three seconds each; all others are quick.
_SLOW = tuple(
    f"tests/{name}/"
    for name in ("bench", "cli", "differential", "faults", "process", "rig", "simulation", "topologies", "web")
)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    items[:] = _wanted(items)
    yield
    items[:] = _spread(items, getattr(config, "workerinput", {}).get("workercount", 1))


def _spread(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Have each worker begin with its share of the slow tests, and some of the long ones between them.

    At the end of the run, where long ones would come by themselves, they would compete with each other, and end alone.
    What a worker has left over is taken by others, from its end: quick tests, which need no Cluster of their own.
    """
    long = [item for item in items if item.nodeid.startswith(_LONG)]
    others = [item for item in items if not item.nodeid.startswith(_LONG)]
    slow = [item for item in others if item.nodeid.startswith(_SLOW)]
    quick = [item for item in others if not item.nodeid.startswith(_SLOW)]
    found: list[pytest.Item] = []
    for worker in range(workers):
        first, then = long[worker::workers], _share(slow, worker, workers)
        for at, item in enumerate(first):
            found += [item, *_share(then, at, len(first))]
        found += [*(() if first else then), *_share(quick, worker, workers)]
    return found


def _share(items: list[pytest.Item], at: int, of: int) -> list[pytest.Item]:
    return items[at * len(items) // of : (at + 1) * len(items) // of]


def _wanted(items: list[pytest.Item]) -> list[pytest.Item]:
    """Leave asyncio out on profiles on which threads are enough; and mark those that another API has in its turn."""
    kept = []
    for item in items:
        if "torn_handshakes" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning"))
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            params = item.callspec.params
            if params.get("api") == "asyncio" and params.get("profile_url", "no pub/sub") not in _ON_BOTH:
                continue
            if item.nodeid.startswith(_IN_TURN) and "server_kind" not in params:
                api = str(params.get("api"))
                if api in APIS and api != _turn(item.nodeid.replace(api, "")):
                    item.add_marker(pytest.mark.thorough)
        kept.append(item)
    return kept


def _turn(name: str) -> str:
    """Return the API that has what is called so in its turn: always the same one, and each about as often."""
    return sorted(APIS)[zlib.crc32(name.encode()) % len(APIS)]


def _runs(test: str, kind: Kind, api: str) -> bool:
    """True if a test that has both runs so in `make test`: one API on Valkey, the other one on the oldest server.

    Where servers differ is the engine's business, which is one for all APIs.
    """
    if test in _ON_EACH:
        return kind != "redis62" or api == "asyncio"
    return kind not in _BETWEEN and (api == _turn(test)) == (kind == "valkey")


def _leaves_out_long_forms(config: pytest.Config) -> bool:
    """True for `make test`: what it leaves out is not even made, by any of its workers."""
    return bool(config.option.markexpr == "not thorough")


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> list[pytest.Item] | None:
    if name.startswith("test") and _leaves_out_long_forms(collector.config):
        marks = [*collector.iter_markers(), *getattr(obj, "pytestmark", ())]
        if any(mark.name == "thorough" for mark in marks):
            return []
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the servers and APIs of a test: all servers that the machine has, asyncio and threads.

    Only some files of the contract are tested on trio, with Valkey alone, and servers between the newest and the oldest
    meet one API: most of that is thorough. A test that has both servers and APIs runs with each API, and on each of the
    newest and the oldest server, once.
    """
    marked = {name for mark in metafunc.definition.iter_markers("parametrize") for name in _names_of(mark)}
    names = [name for name in ("server_kind", "api") if name in metafunc.fixturenames and name not in marked]
    if not names:
        return
    file = metafunc.definition.path
    kinds: list[Kind | None] = [*KINDS, *(MORE_KINDS if file.parent.name == "contract" else ())]
    apis: list[str | None] = [*sorted(APIS), *(MORE_APIS if file.name in _ON_TRIO else ())]
    cases = []
    for kind in kinds if "server_kind" in names else [None]:
        for api in apis if "api" in names else [None]:
            if api not in (None, _BETWEEN.get(kind, api)) or (api in MORE_APIS and kind == "redis62"):
                continue
            test = metafunc.function.__name__
            if kind is None or api is None or kind in MORE_KINDS:
                thorough = api in MORE_APIS or (kind in _BETWEEN and test not in _ON_EACH)
            else:
                thorough = api in MORE_APIS or not _runs(test, kind, api)
            if not (thorough and _leaves_out_long_forms(metafunc.config)):
                values = [value for value in (kind, api) if value is not None]
                marks = [pytest.mark.thorough] if thorough else []
                cases.append(pytest.param(*values, id="-".join(values), marks=marks))
    metafunc.parametrize(names, cases, indirect=True)


def _names_of(parametrize: pytest.Mark) -> list[str]:
    names = parametrize.args[0]
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]


@pytest.fixture
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    """Asyncio, then threads; and what is in `MORE_APIS`."""
    api = {**APIS, **MORE_APIS}[request.param]()
    yield api
    api.close()


@pytest.fixture
def wire(valkey_server: embedded.Server) -> Iterator[Proxy]:
    """A wire to the shared Valkey."""
    with Proxy(valkey_server.host, valkey_server.port) as proxy:
        yield proxy


@pytest.fixture
def near(api: Api, wire: Proxy) -> Any:
    """A client on that wire, connected, with the lock's scripts known to the server."""
    locks = api.connect(wire.url)
    warm(locks)
    return locks


@pytest.fixture
def far(api: Api, valkey_server: embedded.Server) -> Any:
    """Another client of that server, with nothing in its way."""
    return api.connect(valkey_server.url)


@pytest.fixture
def look(valkey_server: embedded.Server) -> Iterator[Any]:
    """redis-py, to look at the shared Valkey."""
    client = redis.Redis.from_url(valkey_server.url, decode_responses=True)
    yield client
    client.close()


@pytest.fixture
def look_bytes(valkey_server: embedded.Server) -> Iterator[Any]:
    """The same, with values as they are."""
    client = redis.Redis.from_url(valkey_server.url)
    yield client
    client.close()


@pytest.fixture
def looking_at() -> Iterator[Callable[[embedded.Server], Any]]:
    """redis-py for a private server."""
    made = []

    def make(server: embedded.Server) -> Any:
        client = redis.Redis.from_url(server.url, decode_responses=True)
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture
def scripts(valkey_server: embedded.Server) -> Iterator[Scripts]:
    """The scripts on the shared Valkey, one by one."""
    scripts = Scripts(valkey_server.url)
    yield scripts
    scripts.close()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(key, certificate) of "localhost", signed by itself."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl on PATH to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    command = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return key, certificate
