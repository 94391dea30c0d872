"""What a run found, as pages: one for users, in English and Chinese, with pictures; one for developers.

Law: both languages and the pictures are made of the same figures; what was not measured is shown as "–".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from bench.peers import FIFO, FLOOR, IDIOM, OURS, STRICT, UNCONFIRMED
from bench.tables import Table, number

__all__ = ["bars", "write"]

_THEIRS = ("redis-py Lock", "python-redis-lock")
_QUEUE = "BLPOP floor"

_COMMANDS = {name: f"`{name}`" for name in ("true", "python -c pass", "holdfast run NAME -- true")}
#: What the parties of rows are called on the page for users; others keep their names.
_ENGLISH = {
    FLOOR: "bare `SET NX`, compare-and-delete",
    _QUEUE: "bare BLPOP, LPUSH",
    FIFO: "a lock for this process only",
    OURS: "**holdfast**",
    IDIOM: "**holdfast**, a new object each time",
    UNCONFIRMED: "**holdfast**, release not waited for",
    STRICT: "**holdfast**, `tenure=0`",
    "holdfast, asyncio": "**holdfast**, asyncio",
    **_COMMANDS,
}
_CHINESE = {
    FLOOR: "裸 `SET NX` 加比较后删除",
    _QUEUE: "裸 BLPOP 加 LPUSH",
    FIFO: "仅限本进程的锁",
    OURS: "**holdfast**",
    IDIOM: "**holdfast**，每次新建对象",
    UNCONFIRMED: "**holdfast**，不等待释放的答复",
    STRICT: "**holdfast**，`tenure=0`",
    "holdfast, asyncio": "**holdfast**，asyncio",
    **_COMMANDS,
}


@dataclass(frozen=True, slots=True)
class _Section:
    """One question of a user: the row that answers it, in both languages.

    `columns`: (English, Chinese, figure, how to show it). `picture`: the figure that is drawn.
    """

    row: str
    title: tuple[str, str]
    says: tuple[str, str]
    columns: Sequence[tuple[str, str, str, Callable[[float | None], str]]]
    parties: Sequence[str]
    picture: str = ""
    unit: str = ""


def _percent(value: float | None) -> str:
    return number(None if value is None else value * 100, "%")


_SECTIONS = [
    _Section(
        "network",
        ("A free lock, over a network", "网络上获取一把空闲的锁"),
        (
            "Acquire and release with 0.25 ms of network each way. Locks that check their holder need two round trips.",
            "获取并释放，网络单程 0.25 毫秒：凡是会核对持有者的锁，都要两次往返。",
        ),
        [("µs per pair", "每对 µs", "us", number), ("× the bare commands", "× 裸命令", "ratio", number)],
        [FLOOR, OURS, UNCONFIRMED, *_THEIRS],
        "us",
        "µs",
    ),
    _Section(
        "network-handoff",
        ("Handoffs over a network", "网络上从一个持有者交给下一个"),
        (
            "Eight processes contend for a lock and hold it for 2 ms each: how long it is idle between two holders.",
            "八个进程争用同一把锁，每次持有 2 毫秒：两次持有之间锁空闲了多久。",
        ),
        [
            ("median, µs", "中位数，µs", "p50 us", number),
            ("99th percentile, µs", "第 99 百分位，µs", "p99 us", number),
            ("× BLPOP", "× BLPOP", "ratio", number),
        ],
        [_QUEUE, OURS, IDIOM, *_THEIRS],
        "p50 us",
        "µs",
    ),
    _Section(
        "contended",
        ("A contended lock", "人人都要的一把锁"),
        (
            "Four processes with eight threads each, as fast as possible, on one machine. Jain's index is 1 when all "
            "get the same share.",
            "四个进程、各八个线程，在一台机器上尽可能快地获取和释放。所有线程所得相同时，Jain 指数为 1。",
        ),
        [
            ("acquisitions/s", "每秒获取次数", "per_s", number),
            ("× redis-py", "× redis-py", "ratio", number),
            ("Jain's index", "Jain 指数", "jain", number),
            ("longest wait, ms", "最长等待，ms", "longest wait ms", number),
        ],
        [_QUEUE, OURS, IDIOM, STRICT, *_THEIRS],
        "per_s",
        "/s",
    ),
    _Section(
        "inside-threads",
        ("One lock within a process", "一个进程之内的一把锁"),
        (
            "Eight threads of one process, as fast as possible, compared with a lock for this process only.",
            "一个进程的八个线程尽可能快地获取和释放，旁边是只认得本进程的锁。",
        ),
        [
            ("acquisitions/s", "每秒获取次数", "per_s", number),
            ("Jain's index", "Jain 指数", "jain", number),
            ("longest wait, ms", "最长等待，ms", "longest wait ms", number),
        ],
        [FIFO, OURS, IDIOM, STRICT, "redis-py Lock"],
    ),
    _Section(
        "threads",
        ("A free lock, on one machine", "同一台机器上获取一把空闲的锁"),
        (
            "Acquire and release over loopback: the time of client and server, without the network.",
            "经由本机回环获取并释放：这里花掉的是客户端和服务器的时间，而不是网络的时间。",
        ),
        [("µs per pair", "每对 µs", "us", number), ("× the bare commands", "× 裸命令", "ratio", number)],
        [FLOOR, OURS, *_THEIRS],
    ),
    _Section(
        "asyncio",
        ("Many tasks with a lock each", "许多任务，各用一把锁"),
        (
            "One event loop with 1,000 tasks, each with a lock of its own.",
            "一个事件循环，1,000 个任务，各有自己的一把锁。",
        ),
        [
            ("one task, µs per pair", "单个任务，每对 µs", "us at 1", number),
            ("1,000 tasks, pairs/s", "1,000 个任务，每秒对数", "pairs/s at 1000", number),
        ],
        [FLOOR, OURS, "redis-py Lock"],
        "pairs/s at 1000",
        "/s",
    ),
    _Section(
        "leases",
        ("Holding 10,000 locks", "持有 10,000 把锁"),
        (
            "Each with a ttl of 6 s, renewed in the background by one process. redis-py's Lock has no renewal.",
            "每把锁的 ttl 为 6 秒，由一个进程在后台续期。redis-py 的锁没有续期。",
        ),
        [
            ("still held", "仍然持有", "alive", number),
            ("requests/s", "每秒请求数", "requests", number),
            ("CPU, of a core", "CPU，占一个核", "cpu", _percent),
            ("threads", "线程数", "threads", number),
        ],
        ["holdfast, 10000", "holdfast, asyncio, 10000", "python-redis-lock, 10000"],
    ),
    _Section(
        "family",
        ("Other primitives", "其他同步器"),
        (
            "Acquire and release of each, compared with the plain lock.",
            "逐个获取并释放，与普通的锁相比。",
        ),
        [("µs per pair", "每对 µs", "us", number), ("× the plain lock", "× 普通的锁", "ratio", number)],
        ["lock", "lock, reentrant", "rwlock, read", "rwlock, write", "semaphore of 3", "multilock of 2"],
    ),
    _Section(
        "startup",
        ("The command line", "命令行"),
        (
            "The run time of each command.",
            "各命令的运行时间。",
        ),
        [("ms", "ms", "ms", number)],
        ["true", "python -c pass", "holdfast run NAME -- true"],
    ),
]

_FACTS = {
    "date": "日期",
    "machine": "机器",
    "load": "负载",
    "server": "服务器",
    "versions": "版本",
    "lasted": "用时",
}
_HEAD = (
    (
        "# Benchmarks",
        "[中文](benchmarks.zh-CN.md)",
        "The cost of a lock, compared with other libraries and with the bare commands. Written by `make bench`. All "
        "rows of a table were measured side by side in one run, in interleaved rounds, so ratios say more than times. "
        "Bare commands are not a lock: they have no queue, no renewal and no fencing token. All rows, and the targets "
        "that were missed: [performance](evidence/performance.md).",
    ),
    (
        "# 基准测试",
        "[English](benchmarks.md)",
        "一把锁的代价，与其他库和裸命令相比。由 `make bench` 写成；"
        "同一张表的各行在同一次运行中交替测得，所以比例比时间更有意义。"
        "裸命令不是锁：没有队列，没有续期，也没有防护令牌。"
        "全部各行，以及未达到的目标：[performance](evidence/performance.md)。",
    ),
)


def write(folder: Path, tables: Sequence[Table], facts: Mapping[str, str]) -> list[Path]:
    """Write all pages and pictures below that folder; returns them."""
    by_name = {table.name: table for table in tables}
    written = [_save(folder / "evidence" / "performance.md", _for_developers(tables, facts))]
    for language, name in enumerate(("benchmarks.md", "benchmarks.zh-CN.md")):
        written.append(_save(folder / name, _for_users(by_name, facts, language)))
    for section in _SECTIONS:
        if section.picture:
            for names, ending in ((_ENGLISH, ".svg"), (_CHINESE, ".zh-CN.svg")):
                drawn = bars(_drawn(section, by_name.get(section.row), names), section.unit)
                written.append(_save(folder / "benchmarks" / f"{section.row}{ending}", drawn))
    return written


def _save(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _for_users(tables: Mapping[str, Table], facts: Mapping[str, str], language: int) -> str:
    names = (_ENGLISH, _CHINESE)[language]
    called, colon = (_FACTS, "：") if language else ({}, ": ")
    parts = [*_HEAD[language], "\n".join(f"- {called.get(what, what)}{colon}{fact}" for what, fact in facts.items())]
    for section in _SECTIONS:
        parts += [f"## {section.title[language]}", section.says[language]]
        if section.picture:
            ending = (".svg", ".zh-CN.svg")[language]
            parts.append(f"![{section.title[language]}](benchmarks/{section.row}{ending})")
        figures = tables[section.row].figures if section.row in tables else {}
        lines = [
            "| | " + " | ".join(column[:2][language] for column in section.columns) + " |",
            "|---|" + "--:|" * len(section.columns),
        ]
        for who in section.parties:
            cells = [show(figures.get(who, {}).get(what)) for _, _, what, show in section.columns]
            shown = who.removesuffix(", 10000")
            lines.append(f"| {names.get(shown, shown)} | " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _for_developers(tables: Sequence[Table], facts: Mapping[str, str]) -> str:
    targets = [target for table in tables for target in table.targets]
    head = [
        "# Performance",
        "",
        "Written by `make bench`; do not edit. Measured side by side in one run, in interleaved rounds, on one private "
        "server over loopback. Ratios are medians of the rounds' ratios and say more than the times next to them. "
        "For users: [benchmarks](../benchmarks.md).",
        "",
        *(f"- {what}: {fact}" for what, fact in facts.items()),
        "",
        f"Targets: {sum(target.met for target in targets)} of {len(targets)} met.",
        "",
        *(f"- {target}" for target in targets if not target.met),
        "",
    ]
    return "\n".join(head) + "\n" + "\n".join(table.markdown() for table in tables)


def _drawn(section: _Section, table: Table | None, names: Mapping[str, str]) -> list[tuple[str, float]]:
    figures = table.figures if table is not None else {}
    found = [(who, figures.get(who, {}).get(section.picture)) for who in section.parties]
    plain = {who: name.replace("**", "").replace("`", "") for who, name in names.items()}
    return [(plain.get(who, who), value) for who, value in found if value is not None and not math.isnan(value)]


_WIDTH, _NAMES, _NUMBERS, _ROW = 720, 230, 90, 30


def bars(found: Sequence[tuple[str, float]], unit: str) -> str:
    """A picture: a bar for each party, ours in colour; readable on light and dark pages."""
    most = max((value for _, value in found), default=0.0) or 1.0
    height = _ROW * len(found) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="14">',
        "<style>text{fill:#1f2328}.o{fill:#8c959f}.h{fill:#1a7f5a}"
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.o{fill:#6e7681}.h{fill:#3fb98a}}</style>",
    ]
    for at, (who, value) in enumerate(found):
        top = 4 + at * _ROW
        length = max(1.0, (_WIDTH - _NAMES - _NUMBERS) * value / most)
        kind = "h" if who.startswith("holdfast") else "o"
        parts += [
            f'<text x="{_NAMES - 8}" y="{top + 19}" text-anchor="end">{escape(who)}</text>',
            f'<rect class="{kind}" x="{_NAMES}" y="{top + 4}" width="{length:.1f}" height="{_ROW - 8}" rx="2"/>',
            f'<text x="{_NAMES + length + 6:.1f}" y="{top + 19}">{escape(number(value))} {escape(unit)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
