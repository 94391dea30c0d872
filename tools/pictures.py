"""Write the Chinese pictures of docs/pictures from the English ones: `python -m tools.pictures`.

Only the words differ. A picture with words that have no translation is refused; `tests/docs/test_pictures.py` compares.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

__all__ = ["PICTURES", "in_chinese", "main"]

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
_CHINESE = {
    "A handoff: the release names the next holder and sends it one message": "移交：释放定下一个持有者，给它发一条消息",
    "Fencing: the storage refuses the late write of a paused process": "防护：存储拒绝暂停过的进程迟到的写入",
    "client A": "客户端 A",
    "client B": "客户端 B",
    "server": "服务器",
    "storage": "存储",
    "acquire": "获取",
    "release": "释放",
    "holder: A": "持有者：A",
    "holder: B": "持有者：B",
    "queue: B": "队列：B",
    "one atomic step": "一个原子步骤",
    "token 33": "令牌 33",
    "token 34": "令牌 34",
    "yours: token 34": "归你：令牌 34",
    "holds": "持有",
    "waits,": "等待，",
    "asks nothing": "什么都不问",
    "paused": "暂停",
    "its lease ends": "租约结束",
    "wakes up": "醒来",
    "write, 33": "写入，33",
    "write, 34": "写入，34",
    "newest: 34": "最新：34",
    "33 is older:": "33 较旧：",
    "refused": "拒绝",
}
_WORDS = re.compile(r'(<text[^>]*>|<title>|aria-label=")([^<"]+)')


def in_chinese(drawn: str) -> str:
    """The same picture in Chinese. Raises KeyError for words without a translation."""
    return _WORDS.sub(lambda found: found[1] + _CHINESE[found[2]], drawn)


def main() -> int:
    """Write them all; the exit status."""
    for english in PICTURES.glob("*.svg"):
        if ".zh-CN." not in english.name:
            chinese = in_chinese(english.read_text(encoding="utf-8"))
            english.with_suffix(".zh-CN.svg").write_text(chinese, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
