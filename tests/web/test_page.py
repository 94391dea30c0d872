"""The page in a real browser: it follows the locks, by keyboard too, and stays small however many there are."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
import redis

import holdfast as library
from holdfast import embedded
from tests.support.browser import Browser, Unusable, chromium
from tests.web.conftest import get

ROWS = "[...document.querySelectorAll('#body [role=row]:not([hidden])')]"
NAMES = f"{ROWS}.map(row => row.querySelector('.name').textContent)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    try:
        browser = Browser()
    except Unusable as error:
        pytest.skip(str(error))
    with browser:
        yield browser


@pytest.fixture
def browse(browser: Browser) -> Callable[[str], Browser]:
    """`browse(address)`: the browser with that page, and no other."""

    def start(address: str) -> Browser:
        browser.open(address)
        browser.until("document.getElementById('state')?.dataset.state === 'live'")
        return browser

    return start


def test_it_follows_a_lock(
    browse: Callable[[str], Browser], serve: Callable[..., str], valkey_server: embedded.Server, unique_name: str
) -> None:
    name = f"{unique_name}<b>x</b>\u202e\"'&"
    browser = browse(serve(f"{unique_name}*"))
    browser.until("!document.getElementById('empty').hidden")
    with library.connect(valkey_server.url) as client:
        lease = client.lock(name).acquire()
        browser.until(f"{ROWS}.length === 1")
        assert browser.evaluate(NAMES) == [f"{unique_name}<b>x</b>\\u{{202e}}\"'&"]
        assert browser.evaluate("document.querySelectorAll('#body b, #about b').length") == 0
        # By keyboard: to the table, into the details, and out again.
        assert browser.evaluate("document.activeElement === document.body")
        browser.press("ArrowDown")
        browser.press("Enter")
        browser.until("document.getElementById('detail').open")
        browser.until(f"document.getElementById('about').textContent.includes('{lease.token}')")
        browser.until("document.querySelectorAll('#about svg rect, #about .chip').length >= 2")
        assert "<b>x</b>" in browser.evaluate("document.getElementById('title').textContent")
        browser.press("Escape")
        browser.until("!document.getElementById('detail').open && document.activeElement.id === 'grid'")
        lease.release()
        browser.until(f"{ROWS}.length === 0")
    assert browser.evaluate("document.querySelectorAll('script:not([src]), style, [style*=expression]').length") == 0


def test_a_note_is_text(
    browse: Callable[[str], Browser], serve: Callable[..., str], valkey_server: embedded.Server, unique_name: str
) -> None:
    browser = browse(serve(f"{unique_name}*"))
    note = '<b>deploy</b> by Ana & "Bo"'
    with library.connect(valkey_server.url) as client, client.lock(unique_name, note=note):
        cells = "document.querySelector('#body .who')"
        browser.until(f"({cells}?.textContent ?? '').startsWith('“<b>deploy</b> by Ana & \"Bo\"” ')")
        browser.press("ArrowDown")
        browser.press("Enter")
        browser.until("document.getElementById('about').textContent.includes('“<b>deploy</b>')")
        assert browser.evaluate("document.querySelectorAll('#body b, #about b').length") == 0
        browser.press("Escape")


def test_holders_of_several_permits_are_not_taken_for_one_each(
    browse: Callable[[str], Browser], serve: Callable[..., str], valkey_server: embedded.Server, unique_name: str
) -> None:
    """How many permits a semaphore has is said, and how many hold some of them."""
    browser = browse(serve(f"{unique_name}*"))
    with library.connect(valkey_server.url) as client:
        leases = [client.semaphore(unique_name, 5).acquire(permits=each) for each in (3, 1)]
        browser.until(f"{ROWS}.length === 1 && {ROWS}[0].textContent.includes(' and 1 more')")
        said = browser.evaluate(f"{ROWS}[0].textContent")
        assert "5 permits in all: " in said and "2 of 5" not in said
        for lease in leases:
            lease.release()


def test_a_renewal_is_no_change(
    browse: Callable[[str], Browser], serve: Callable[..., str], valkey_server: embedded.Server, unique_name: str
) -> None:
    browser = browse(serve(f"{unique_name}*"))
    with library.connect(valkey_server.url) as client:
        lease = client.lock(unique_name).acquire()
        browser.until(f"{ROWS}.length === 1 && {ROWS}[0].classList.contains('changed')")
        browser.until(f"!{ROWS}[0].classList.contains('changed')")
        browser.evaluate(
            f"window.flashes = 0; new MutationObserver(() => flashes += {ROWS}[0].classList.contains('changed'))"
            ".observe(document.getElementById('body'), {subtree: true, attributes: true, attributeFilter: ['class']})"
        )
        was = browser.evaluate("[...rows.values()][0].until")
        lease.extend(300)
        browser.until(f"[...rows.values()][0].until > {was} + 100000")
        assert browser.evaluate("flashes") == 0
        lease.release()
        browser.until(f"{ROWS}.length === 0")


def test_a_deadlock_is_shown(
    browse: Callable[[str], Browser], serve: Callable[..., str], valkey_server: embedded.Server, unique_name: str
) -> None:
    address = serve(f"{unique_name}*")
    browser = browse(address)
    cancel = library.Cancel()

    def wait_for_itself() -> None:
        with library.connect(valkey_server.url) as client, client.semaphore(unique_name, 1) as _:
            with contextlib.suppress(library.AcquireCancelled):
                client.semaphore(unique_name, 1).acquire(cancel=cancel)

    thread = threading.Thread(target=wait_for_itself)
    thread.start()
    try:
        shown = f"document.getElementById('trouble').textContent.includes('{unique_name}')"
        browser.until(f"!document.getElementById('trouble').hidden && {shown}")
        ((party,),) = get(address, "api/locks")["deadlocks"]
        assert (party["kind"], party["name"], party["held_name"]) == ("semaphore", unique_name, unique_name)
        assert "and waits for semaphore" in browser.evaluate("document.getElementById('trouble').textContent")
        browser = browse(address + "?lang=zh")
        browser.until(shown)
        assert f"持有信号量 '{unique_name}'" in browser.evaluate("document.getElementById('trouble').textContent")
    finally:
        cancel.set()
        thread.join()
    browser.until("document.getElementById('trouble').hidden")


def test_a_holder_that_has_gone_is_said(
    browse: Callable[[str], Browser], serve: Callable[..., str], valkey_server: embedded.Server, unique_name: str
) -> None:
    """As those of `crash_release` are, whose client was seen to be gone."""
    browser = browse(serve(f"{unique_name}*"))
    with library.connect(valkey_server.url) as client, client.lock(unique_name):
        browser.until(f"{ROWS}.length === 1")
        browser.evaluate("for (const row of rows.values()) row.gone = true; refresh()")
        who = f"{ROWS}[0].querySelector('.who').textContent"
        browser.until(f"{who}.startsWith('its client has gone: ')")


def test_many_locks_take_few_rows(
    browse: Callable[[str], Browser], serve: Callable[..., str], private_server: Callable[..., embedded.Server]
) -> None:
    server = private_server()
    with redis.Redis.from_url(server.url) as raw, raw.pipeline(transaction=False) as pipe:
        for number in range(5_000):
            pipe.set(f"holdfast:{{n:{number:04}}}", f"{number:024x}:1:1", px=3_600_000)
        pipe.zadd("holdfast:{n:2500}:queue", {f"{1:024x}:1:2": 1})
        pipe.pexpire("holdfast:{n:2500}:queue", 3_600_000)
        pipe.execute()
        browser = browse(serve(url=server.url))
        browser.until("document.getElementById('grid').getAttribute('aria-rowcount') === '5001'")
        assert browser.evaluate(NAMES)[0] == "n:2500", "that with most waiters comes first"
        assert browser.evaluate("document.querySelectorAll('#body [role=row]').length") < 60
        browser.evaluate("document.getElementById('grid').focus()")
        browser.evaluate(
            "document.getElementById('grid').dispatchEvent(new KeyboardEvent('keydown', {key: 'End', bubbles: true}))"
        )
        browser.until(f"{NAMES}.includes('n:4999')")
        active = "document.getElementById(document.getElementById('grid').getAttribute('aria-activedescendant'))"
        assert browser.evaluate(f"{active}.querySelector('.name').textContent") == "n:4999"
        assert browser.evaluate("document.querySelectorAll('#body [role=row]').length") < 60
        # Only what fits.
        browser.evaluate("document.getElementById('filter').value = 'n:012'")
        browser.evaluate("document.getElementById('filter').dispatchEvent(new Event('input'))")
        browser.until(f"{ROWS}.length === 10")
        browser.evaluate("document.getElementById('waiting').click()")
        browser.until("!document.getElementById('empty').hidden")


def test_languages_schemes_and_phones(
    browse: Callable[[str], Browser], serve: Callable[..., str], valkey_server: embedded.Server, unique_name: str
) -> None:
    address = serve(f"{unique_name}*")
    with library.connect(valkey_server.url) as client, client.lock(unique_name):
        browser = browse(address + "?lang=zh")
        browser.until(f"{ROWS}.length === 1")
        assert browser.evaluate("document.documentElement.lang") == "zh-CN"
        assert browser.evaluate("document.querySelector('#head').textContent").startswith("类型名称持有者")
        grounds = []
        for scheme in ("light", "dark"):
            browser.prefer(scheme)
            grounds.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert grounds[0] != grounds[1]
        browser.resize(390, 800)
        browser.until(f"{ROWS}[0].offsetHeight === 76")
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        browser.evaluate(f"{ROWS}[0].click()")
        browser.until("document.querySelectorAll('#about svg').length === 1")
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_server_that_is_gone_is_said(
    browse: Callable[[str], Browser], serve: Callable[..., str], private_server: Callable[..., embedded.Server]
) -> None:
    server = private_server()
    browser = browse(serve(url=server.url))
    server.close()
    browser.until("!document.getElementById('trouble').hidden")
    assert browser.evaluate("document.getElementById('state').dataset.state") == "bad"
    private_server(port=server.port)
    browser.until("document.getElementById('trouble').hidden")
    browser.until("document.getElementById('state').dataset.state === 'live'")
