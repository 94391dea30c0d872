"""A password never gets into what is told: errors with all that hangs on them, reports, warnings, or the server.

Each URL is given to each way in. Most are wrong in some way: a wrong one is where a password strays into a message.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import pickle
import traceback
import types
import warnings
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
import redis.asyncio

import holdfast
import holdfast.asyncio
from holdfast.cli import main

SECRET = "s3cretPW"
#: No one listens there, and it is known at once.
PORT = 9
HERE = f"127.0.0.1:{PORT}"

URLS = [
    f"redis://:{SECRET}@{HERE}/0",
    f"redis://user:{SECRET}@{HERE}/0",
    f"redis://{SECRET}:x@{HERE}/0",
    f"redis://{SECRET}@{HERE}/0",
    f"rediss://user:{SECRET}@{HERE}/0",
    f"redis://user:{SECRET}@{HERE}/abc",
    f"redis://user:{SECRET}@{HERE}/0/1",
    f"redis://user:{SECRET}@{HERE}/-1",
    f"redis://user:{SECRET}@127.0.0.1:abc/0",
    f"redis://user:{SECRET}@127.0.0.1:99999/0",
    f"redis://user:{SECRET}@127.0.0.1:/0",
    f"redis://user:{SECRET}@[::1/0",
    f"redis://user:{SECRET}@[bad]:{PORT}/0",
    f"redis://:a/{SECRET}@{HERE}/0",
    f"redis://:{SECRET}/a@{HERE}/0",
    f"redis://:a?{SECRET}@{HERE}/0",
    f"redis://:{SECRET}?a@{HERE}/0",
    f"redis://:a#{SECRET}@{HERE}/0",
    f"redis://:{SECRET}#a@{HERE}/0",
    f"redis://user:a/{SECRET}@{HERE}/0",
    f"redis://user:{SECRET}/{SECRET}@{HERE}",
    f"redis://user:{SECRET}?{SECRET}@{HERE}",
    f"redis://user:{SECRET}#{SECRET}@{HERE}",
    f"redis://user:@{SECRET}@{HERE}/0",
    f"redis://user:{SECRET}@x@{HERE}/0",
    f"redis://user:%zz{SECRET}@{HERE}/0",
    f"redis://user:[{SECRET}@{HERE}/0",
    f"redis://user:]{SECRET}@{HERE}/0",
    f"redis://user:{SECRET} x@{HERE}/0",
    f"redis://:{SECRET}",
    f"redis://user:{SECRET}",
    f"redis://:{SECRET}/0",
    f"redis://{HERE}/0?password={SECRET}",
    f"redis://{HERE}/0?username={SECRET}",
    f"redis://{HERE}/0?username=u&password={SECRET}",
    f"redis://{HERE}/abc?password={SECRET}",
    f"redis://{HERE}/0?password={SECRET}&socket_timeout=abc",
    f"redis://{HERE}/0?socket_timeout={SECRET}",
    f"redis://{HERE}/0?db={SECRET}",
    f"redis://{HERE}/0?password={SECRET}&bogus=1",
    f"redis://127.0.0.1:abc/0?password={SECRET}",
    f"redis://{HERE}/0?password=a#{SECRET}@",
    f"unix://user:{SECRET}@/no/such/socket",
    f"unix:///no/such/socket?password={SECRET}",
    f"unix://:{SECRET}/x@/no/such/socket",
    f"unix://user:{SECRET}@host/no/such/socket",
    f"redis+sentinel://user:{SECRET}@{HERE}/service/0",
    f"redis+sentinel://{HERE}/service/0?sentinel_password={SECRET}",
    f"redis+sentinel://{HERE}/service/0?password={SECRET}",
    f"redis+sentinel://user:{SECRET}@{HERE}",
    f"redis+sentinel://user:{SECRET}@{HERE}/service/abc",
    f"redis+sentinel://user:{SECRET}@127.0.0.1:abc/service",
    f"redis+sentinel://user:{SECRET}/x@{HERE}/service",
    f"rediss+sentinel://user:{SECRET}@{HERE}/service",
    f"redis+cluster://user:{SECRET}@{HERE}",
    f"redis+cluster://user:{SECRET}@{HERE}/3",
    f"redis+cluster://{HERE}?password={SECRET}",
    f"redis+cluster://:a/{SECRET}@{HERE}",
    f"redis+cluster://user:{SECRET}@{HERE},:abc",
    f"redlock://user:{SECRET}@{HERE},127.0.0.1:1,127.0.0.1:2",
    f"redlock://user:{SECRET}@{HERE},{HERE},{HERE}",
    f"redlock://user:{SECRET}@{HERE},127.0.0.1:1",
    f"redlock://user:{SECRET}@{HERE}",
    f"redlock://user:{SECRET}@{HERE},127.0.0.1:1,127.0.0.1:2/x/y",
    f"redlock://user:{SECRET}@{HERE},127.0.0.1:1,127.0.0.1:2?restart_delay=abc",
    f"redlock://{HERE},127.0.0.1:1,127.0.0.1:2?password={SECRET}&restart_delay={SECRET}",
    f"redlock://:a?{SECRET}@{HERE},127.0.0.1:1,127.0.0.1:2",
    f"redis://redis://:{SECRET}@{HERE}",
    f"http://user:{SECRET}@{HERE}/0",
    f"//user:{SECRET}@{HERE}/0",
    f"user:{SECRET}@{HERE}",
    f":{SECRET}@{HERE}/0",
    f"redis:user:{SECRET}@{HERE}",
    f"redis:/user:{SECRET}@{HERE}",
    f" redis://user:{SECRET}@{HERE}/0",
    f"REDIS://user:{SECRET}@{HERE}/x",
    f"{SECRET}://user@{HERE}",
]


def chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    left = [error]
    while left:
        this = left.pop()
        if this is not None and this not in seen:
            seen.append(this)
            yield this
            left += [this.__cause__, this.__context__, *getattr(this, "exceptions", ())]


def told_by(error: BaseException) -> str:
    """All that an error and what hangs on it tell."""
    told = ["".join(traceback.format_exception(error))]
    for each in chain(error):
        told += [str(each), repr(each), repr(each.args), repr(vars(each)), *getattr(each, "__notes__", ())]
        with contextlib.suppress(Exception):
            told += [repr(pickle.dumps(each)), repr(pickle.loads(pickle.dumps(each)))]
    return "\n".join(told)


def check(told: str, where: str) -> None:
    # What the test itself passes on stands in its own lines of a traceback, where it is a name.
    assert SECRET not in told, f"{where} tells it:\n{told}"


def try_threads(make: Any, asking: bool) -> str:
    try:
        client = make()
    except Exception as error:
        return told_by(error)
    told = [repr(client)]
    lock = client.lock("a")
    told.append(repr(lock))
    try:
        if asking:
            lock.try_acquire()
    except Exception as error:
        told.append(told_by(error))
    client.close()
    return "\n".join(told)


async def try_asyncio(make: Any, asking: bool) -> str:
    try:
        client = make()
    except Exception as error:
        return told_by(error)
    told = [repr(client)]
    lock = client.lock("a")
    told.append(repr(lock))
    try:
        if asking:
            await lock.try_acquire()
    except Exception as error:
        told.append(told_by(error))
    await client.close()
    return "\n".join(told)


def asked(at: int) -> Any:
    """Some are asked for a lock in the thorough tier, a few of them always: that no one answers takes its time."""
    return at if at % 24 == 0 else pytest.param(at, marks=pytest.mark.thorough)


def every_third(at: int) -> Any:
    """The others, which differ in small things, in the thorough tier."""
    return at if at % 3 == 0 else pytest.param(at, marks=pytest.mark.thorough)


@pytest.mark.parametrize("at", [every_third(at) for at in range(len(URLS))])
def test_no_new_client_tells_it(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    go_through(URLS[at], False, monkeypatch)


@pytest.mark.parametrize("at", [asked(at) for at in range(0, len(URLS), 6)])
def test_no_client_tells_it(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    go_through(URLS[at], True, monkeypatch)


@dataclasses.dataclass(frozen=True)
class Dsn:
    """As the URL types of libraries for settings: not a str, and shown whole."""

    url: str


def given_as(url: str) -> Iterator[Any]:
    """Yield the other forms in which programs keep a URL or its parts."""
    yield Dsn(url)
    yield {url: 1}
    yield {"host": "db1", "port": 6379, "url": url}
    yield {url}
    yield [url] * 101
    with contextlib.suppress(ValueError):
        yield urlsplit(url)


def test_a_setting_that_is_no_url_is_not_shown() -> None:
    for module in (holdfast, holdfast.asyncio):
        api: Any = module
        for settings in ({"host": "db1", "password": SECRET}, types.SimpleNamespace(password=SECRET)):
            for make in (
                api.connect,
                api.Client,
                api.Client.quorum,
                lambda each, api=api: api.Client.quorum([each] * 3),
            ):
                with pytest.raises(holdfast.ConfigurationError) as refused:
                    make(settings)
                check(told_by(refused.value), f"{module.__name__}: {type(settings).__name__}")
                assert type(settings).__name__ in str(refused.value)


def go_through(url: str, asking: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    other = f"redis://{HERE.replace('127.0.0.1', 'localhost')}/0"
    more = [f"redis://user:{SECRET}@127.0.0.1:1/0", f"redis://user:{SECRET}@127.0.0.1:2/0"]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for module, play in ((holdfast, try_threads), (holdfast.asyncio, try_asyncio)):

            def told(make: Any, play: Any = play) -> str:
                found = play(make, asking)
                return found if isinstance(found, str) else asyncio.run(found)

            api: Any = module
            name = api.__name__
            check(told(lambda api=api: api.connect(url)), f"{name}.connect")
            check(told(lambda api=api: api.Client(url)), f"{name}.Client")
            check(told(lambda api=api: api.Client.quorum([url, other])), f"{name}.Client.quorum of two")
            check(told(lambda api=api: api.Client.quorum([url, url, other])), f"{name}.Client.quorum, one twice")
            check(told(lambda api=api: api.Client.quorum([url, *more])), f"{name}.Client.quorum")
            check(told(lambda api=api: api.connect(url.encode())), f"{name}.connect(bytes)")
            for given in given_as(url):
                what = type(given).__name__
                check(told(lambda api=api, given=given: api.connect(given)), f"{name}.connect({what})")
                check(told(lambda api=api, given=given: api.Client(given)), f"{name}.Client({what})")
                check(told(lambda api=api, given=given: api.Client.quorum(given)), f"{name}.Client.quorum({what})")
                check(
                    told(lambda api=api, given=given: api.Client.quorum([given] * 3)), f"{name}.Client.quorum of {what}"
                )
                check(told(lambda api=api, given=given: api.connect().lock(given)), f"{name}.Client.lock({what})")
            library: Any = redis if api is holdfast else redis.asyncio
            with contextlib.suppress(Exception):
                theirs = library.Redis.from_url(url)
                check(told(lambda api=api, theirs=theirs: api.Client(theirs)), f"{name}.Client(client)")
                wrong: Any = holdfast.asyncio if api is holdfast else holdfast
                try:
                    wrong.Client(theirs)
                except holdfast.ConfigurationError as error:
                    check(told_by(error), f"{wrong.__name__}.Client(client of the other kind)")
        with monkeypatch.context() as patched:
            patched.setenv("HOLDFAST_URL", url)
            check(try_threads(holdfast.connect, asking), "HOLDFAST_URL")
        gc.collect()
    check("\n".join(str(each.message) for each in warned), "a warning")


@pytest.mark.parametrize(("first", "step"), [(0, 25), pytest.param(1, 9, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("command", ["run", "elect", "status", "doctor"])
def test_no_command_tells_it(
    command: str, first: int, step: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {
        "run": ["run", "--no-wait", "a", "--", "true"],
        "elect": ["elect", "a", "--", "true"],
        "status": ["status", "a"],
        "doctor": ["doctor"],
    }[command]
    as_json = [arguments[0], "--json", *arguments[1:]] if command in ("status", "doctor") else arguments
    for url in URLS[first::step]:
        if command == "elect":  # a candidate goes on asking for a server that is not there
            with contextlib.suppress(holdfast.ConfigurationError):
                holdfast.connect(url).close()
                continue
        for words in (arguments, as_json):
            with contextlib.suppress(SystemExit):
                main([words[0], "--url", url, *words[1:]])
            with monkeypatch.context() as patched, contextlib.suppress(SystemExit):
                patched.setenv("HOLDFAST_URL", url)
                main(words)
        told = capfd.readouterr()
        check(told.out + told.err, f"holdfast {command} --url {url}")


def test_what_is_left_of_a_url() -> None:
    from holdfast.errors import redacted

    assert redacted("redis://u:p@db1.example.org:6379/3?x=y") == "redis://…@db1.example.org:6379/3?…"
    assert redacted("redis://db1:6379/3") == "redis://db1:6379/3"
    assert redacted("redlock://u:p@a:1,b:2,[::1]:3/0") == "redlock://…@a:1,b:2,[::1]:3/0"
    assert redacted("unix:///tmp/x.sock?db=1") == "unix:///tmp/x.sock?…"
    for url in ("redis://:a/b@h/0", "redis://:a?b@h", "redis://:a#b@h", "redis://u:abc", "redis://redis://:p@h"):
        assert redacted(url) == "redis://…"


def test_a_client_says_its_programs_name_and_no_more(
    locks: Any, raw: Any, monkeypatch: pytest.MonkeyPatch, unique_name: str
) -> None:
    from holdfast._api.client_info import introduction

    monkeypatch.delenv("HOLDFAST_PROGRAM", raising=False)
    for argv, name in (
        (["/usr/bin/worker.py", "--password", SECRET], "worker.py"),
        (["/x/y/package/__main__.py", SECRET], "package"),
        (["-c", SECRET], "python"),
        ([""], "python"),
        ([], "python"),
    ):
        monkeypatch.setattr("sys.argv", argv)
        assert json.loads(introduction(1.0))["program"] == name
    monkeypatch.setenv("HOLDFAST_PROGRAM", "mail worker 3")
    assert json.loads(introduction(1.0))["program"] == "mail worker 3"
