"""The site as `make docs` builds it, which runs this: `BUILT_SITE=site`."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(os.environ.get("BUILT_SITE", ROOT / "not built"))
pytestmark = pytest.mark.skipif(not SITE.exists(), reason="`make docs` builds the site and runs this")

MOST_PAGES = 90
MOST_ENGLISH_WORDS = 55_000
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
_INLINE = {"a", "code", "em", "span", "strong"}
#: Between two paragraphs, cells or items.
_APART = " \0 "
_HAN = r"[\u4e00-\u9fff\u3001\u3002\uff0c\uff1a\uff1b]"


class Page(HTMLParser):
    """Anchors and links of a page, and the text of its article: paragraphs, and code."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors = set[str]()
        self.links: list[str] = []
        self.text: list[str] = []
        self.code: list[str] = []
        self._open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {given["id"] or ""} if "id" in given else set()
        self.links += [given[name] or "" for name in ("href", "src") if name in given]
        if tag not in _VOID:
            self._open.append(tag)

        self._apart(tag)

    def handle_endtag(self, tag: str) -> None:
        self._apart(tag)
        while tag in self._open and self._open.pop() != tag:
            pass

    def _apart(self, tag: str) -> None:
        if tag not in _INLINE:
            self.text.append(_APART)

    def handle_data(self, data: str) -> None:
        if "article" in self._open:
            (self.code if {"pre", "svg", "style"} & {*self._open} else self.text).append(data)


@functools.cache
def pages() -> dict[str, Page]:
    return {path.relative_to(SITE).as_posix(): Page(path) for path in sorted(SITE.rglob("*.html"))}


def test_the_site_is_not_too_large() -> None:
    """By the words of all articles in English, code and reference included."""
    english = [page for name, page in pages().items() if not name.startswith("zh/")]
    words = sum(len("".join(page.text + page.code).replace(_APART, " ").split()) for page in english)
    assert len(english) > 40 and words > 30_000, "is this the site?"
    assert len(pages()) <= MOST_PAGES
    assert words <= MOST_ENGLISH_WORDS


def test_every_link_leads_somewhere() -> None:
    dead, seen = [], 0
    for name, page in pages().items():
        for link in page.links:
            target, _, anchor = unquote(link).partition("#")
            if re.match(r"https?:|mailto:|data:", link) or name == "404.html":
                continue
            seen += 1
            there = os.path.normpath(os.path.join(os.path.dirname(name), target)) if target else name
            if not (SITE / there).exists() or (anchor and there in pages() and anchor not in pages()[there].anchors):
                dead.append(f"{name} → {link}")
    assert seen > 1_000
    assert sorted(set(dead)) == []


def test_each_page_leads_to_the_same_page_in_the_other_language() -> None:
    for name in pages():
        if name == "404.html":
            continue
        other = name.removeprefix("zh/") if name.startswith("zh/") else f"zh/{name}"
        expected = other if other in pages() else "zh/index.html"
        assert os.path.relpath(expected, os.path.dirname(name) or ".") in pages()[name].links, name


def test_the_colours_follow_the_system_until_a_reader_chooses() -> None:
    for name, title in (("index.html", "Like the system"), ("zh/index.html", "跟随系统")):
        html = (SITE / name).read_text(encoding="utf-8")
        first = re.search(r'data-md-color-media="([^"]*)"', html)
        assert first is not None and first[1] == "(prefers-color-scheme)", "the scheme of the first visit would stay"
        assert title in html


def test_chinese_has_no_blanks_at_line_breaks() -> None:
    chinese = {name: "".join(page.text) for name, page in pages().items() if name.startswith("zh/")}
    assert len(chinese) > 30
    found = {name: re.findall(rf".?{_HAN} *\n *{_HAN}.?", text) for name, text in chinese.items()}
    assert {name: breaks for name, breaks in found.items() if breaks} == {}


def index(language: str) -> list[dict[str, str]]:
    found = json.loads((SITE / language / "search" / "search_index.json").read_text(encoding="utf-8"))
    docs: list[dict[str, str]] = found["docs"]
    return docs


def is_chinese(text: str) -> bool:
    """True if a fifth of its letters are Chinese; a page in English may quote a Chinese title."""
    text = re.sub(r"<pre>.*?</pre>|<[^>]*>", "", text, flags=re.DOTALL)
    return 5 * len(re.findall(r"[\u4e00-\u9fff]", text)) > len(re.findall(r"[^\W\d_]", text)) > 0


def test_each_language_has_an_index_of_its_own_pages() -> None:
    english, chinese = index(""), index("zh")
    assert len(english) > 200 and len(chinese) > 150
    assert [each["location"] for each in english if is_chinese(each["title"] + each["text"])] == []
    assert len([each for each in chinese if is_chinese(each["title"] + each["text"])]) > 0.9 * len(chinese)
    locations = {each["location"].partition("#")[0] for each in english + chinese}
    assert not [name for name in locations if re.match(r"design|evidence|faults|mutants|simulation|torture", name)]
    assert any("\u200b" in each["text"] for each in chinese), "words of Chinese are not cut: is jieba installed?"


#: The pages that come first, by what a reader types.
ENGLISH = {
    "ttl": "concepts",
    "renew": "primitives/lock",
    "watchdog": "primitives/lock",
    "reentrant": "primitives/lock",
    "redlock": "topologies",
    "sentinel": "topologies",
    "cluster": "topologies",
    "failover": "topologies",
    "fencing token": "fencing",
    "semaphore": "primitives/semaphore",
    "rwlock": "primitives/rwlock",
    "barrier": "primitives/barrier",
    "latch": "primitives/latch",
    "condition": "primitives/condition",
    "leader election": "primitives/election",
    "deadlock": "deadlocks",
    "idempotent": "primitives/once",
    "setnx": "ladder",
    "prometheus": "operations",
    "benchmark": "benchmarks",
    "celery": "frameworks/queues",
    "fastapi": "frameworks/web",
    "django": "frameworks/databases",
    "cron": "frameworks/schedulers",
    "LeaseOptions": "reference/threads",
}
CHINESE = {
    "看门狗": "primitives/lock",
    "续期": "primitives/lock",
    "可重入锁": "primitives/lock",
    "公平锁": "primitives/lock",
    "互斥锁": "primitives/lock",
    "红锁": "topologies",
    "哨兵": "topologies",
    "集群": "topologies",
    "主从切换": "topologies",
    "锁过期": "concepts",
    "防护令牌": "fencing",
    "读写锁": "primitives/rwlock",
    "信号量": "primitives/semaphore",
    "屏障": "primitives/barrier",
    "门闩": "primitives/latch",
    "条件变量": "primitives/condition",
    "选举": "primitives/election",
    "乐观锁": "primitives/optimistic",
    "幂等": "primitives/once",
    "死锁": "deadlocks",
    "定时任务": "frameworks/schedulers",
    "缓存击穿": "questions/index",
    "命令行": "cli",
    "误删": "ladder",
    "监控": "operations",
    "基准测试": "benchmarks",
}


@pytest.mark.skipif(shutil.which("node") is None, reason="runs the search of the pages in node, which is not installed")
@pytest.mark.parametrize(("language", "expected"), [("", ENGLISH), ("zh", CHINESE)], ids=["English", "Chinese"])
def test_words_find_the_page_that_explains_them(language: str, expected: dict[str, str]) -> None:
    command = ["node", str(Path(__file__).with_name("search.mjs")), str(SITE / language), *expected]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
    first = {word: (locations or ["nothing"])[0].removesuffix(".html") for word, locations in found.items()}
    assert first == expected
