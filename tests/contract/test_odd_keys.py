"""Keys that hold what holdfast does not write: the lock is shown as odd, and all others as ever."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import cli
from holdfast._core.describe import note_parts
from holdfast.web import view
from holdfast.web.rates import Rate
from tests.contract.test_list import all_of
from tests.support.apis import Api

SHARED = "0" * 24 + ":shared:0"
TOKEN = "0123456789abcdef01234567:1:1"
#: What is done to the keys that begin with `base`, and the end of the key that is odd then.
ODD: dict[str, tuple[Callable[[Any, str], Any], str]] = {
    "score inf": (lambda raw, base: raw.zadd(f"{base}:queue", {TOKEN: float("inf")}), ":queue"),
    "score -inf": (lambda raw, base: raw.zadd(f"{base}:queue", {TOKEN: float("-inf")}), ":queue"),
    "score 1.5": (lambda raw, base: raw.zadd(f"{base}:queue", {TOKEN: 1.5}), ":queue"),
    "score 1e300": (lambda raw, base: raw.zadd(f"{base}:queue", {TOKEN: 1e300}), ":queue"),
    "a list": (lambda raw, base: raw.rpush(base, "x"), ""),
    "a hash": (lambda raw, base: raw.hset(base, "no", "lock"), ""),
    "a set for a queue": (lambda raw, base: (raw.sadd(f"{base}:queue", "x"), raw.set(base, TOKEN)), ":queue"),
    "a fence of words": (lambda raw, base: (raw.set(f"{base}:fence", "12 words"), raw.set(base, TOKEN)), ":fence"),
    "a fence too long": (lambda raw, base: (raw.set(f"{base}:fence", "9" * 40), raw.set(base, TOKEN)), ":fence"),
    "a fence in a hash": (lambda raw, base: (raw.hset(f"{base}:fence", "a", 1), raw.set(base, TOKEN)), ":fence"),
    "a reader's inf": (
        lambda raw, base: (raw.set(base, SHARED), raw.zadd(f"{base}:readers", {TOKEN: float("inf")})),
        ":readers",
    ),
    "a limit of words": (lambda raw, base: raw.set(f"{base}:sem", "many"), ":sem"),
    "a limit too long": (lambda raw, base: raw.set(f"{base}:sem", "9" * 30 + " 1"), ":sem"),
    "a permit's inf": (
        lambda raw, base: (raw.set(f"{base}:sem", "2 2"), raw.zadd(f"{base}:sem:holders", {TOKEN: float("inf")})),
        ":sem:holders",
    ),
}
#: These are no keys of ours, and yet nothing is wrong with them.
FOREIGN: dict[str, Callable[[Any, str], Any]] = {
    "no UTF-8": lambda raw, base: (raw.set(base, b"\xff\xfe"), raw.zadd(f"{base}:queue", {b"\xff": 5})),
    "a ttl without end": lambda raw, base: raw.set(base, TOKEN, px=9_000_000_000_000_000_000),
}


def looked(url: str, *words: str) -> dict[str, Any]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert cli.main([*words, "--json", "--url", url]) in (0, 1), out.getvalue()

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    told: dict[str, Any] = json.loads(out.getvalue(), parse_constant=refuse)
    return told


@pytest.mark.parametrize("what", [*ODD, *FOREIGN])
def test_one_odd_key_hides_no_other_lock(api: Api, locks: Any, raw: Any, url: str, unique_name: str, what: str) -> None:
    base = f"holdfast:{{{unique_name}-odd}}"
    do, part = ODD[what] if what in ODD else (FOREIGN[what], None)
    do(raw, base)
    lease = locks.lock(f"{unique_name}-sound", ttl=600).acquire()
    found = {each.name: each for each in all_of(api, locks, f"{unique_name}-*")}
    assert found[f"{unique_name}-sound"].odd is None
    odd = found[f"{unique_name}-odd"]
    assert odd.odd == (None if part is None else base + part)
    json.dumps(view.detail_of(odd, Rate(0.0, False), []), allow_nan=False)
    for command in ("list", "top"):
        told = {each["name"]: each for each in looked(url, command, f"{unique_name}-*", *_once(command))["locks"]}
        assert told[odd.name]["odd"] == odd.odd and told[lease.name]["odd"] is None
    looked(url, "deadlocks")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert cli.main(["list", f"{unique_name}-*", "--url", url]) == 0
    assert (f"odd key {odd.odd}: " in out.getvalue()) is (part is not None), out.getvalue()
    lease.release()
    raw.delete(*raw.keys(f"{base.replace('{', '?')}*"))


def _once(command: str) -> list[str]:
    return ["--once"] if command == "top" else []


@pytest.mark.parametrize("timeout", ["inf", "nan", "1e999", "-1.000", "1_0.000", "x"])
def test_a_waiters_note_has_a_finite_timeout_or_none(timeout: str) -> None:
    assert note_parts(f"{timeout}\ntoken\nhere".encode()) == (None, ["token"], "here")
