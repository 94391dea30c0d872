"""What mkdocs.yml cannot say: how the two languages differ. Read by mkdocs, in the environment of `make docs`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

LANGUAGE = os.environ.get("SITE_LANGUAGE", "en")
OTHER = "zh" if LANGUAGE == "en" else "en"
STAGED = Path(__file__).resolve().parents[2] / "build" / "docs"
#: Of the menu.
CHINESE = {
    "Getting started": "入门",
    "Locks and primitives": "锁与原语",
    "Leases, fencing, errors": "租约、防护、异常",
    "Guides": "指南",
    "Frameworks": "框架",
    "Migration and drop-ins": "迁移与替换",
    "Production": "生产环境",
    "Why locks break": "锁为什么会失效",
    "API reference": "API 参考（英文）",
    "holdfast (threads)": "holdfast（线程）",
    "Modules": "模块",
    "Changelog": "更新日志",
    "Security": "安全",
}
#: Of the switch between light and dark.
SCHEMES = {"Light": "浅色", "Dark": "深色", "Like the system": "跟随系统"}


def on_config(config: Any) -> Any:
    """The menu in the language of the site; what there is in English alone leads there."""
    if LANGUAGE == "zh":
        config.nav = [
            {CHINESE[title]: [_entry(each) for each in pages]} for each in config.nav for title, pages in each.items()
        ]
        config.site_description = "基于 Redis 和 Valkey 的 Python 分布式锁"
        for each in config.theme["palette"]:
            each["toggle"]["name"] = SCHEMES[each["toggle"]["name"]]
    return config


def _entry(given: Any) -> Any:
    title, page = next(iter(given.items())) if isinstance(given, dict) else ("", given)
    if (STAGED / LANGUAGE / page).exists():
        return page
    return {CHINESE.get(title, title): f"../{page.removesuffix('.md')}.html"}


def on_page_context(context: Any, page: Any, config: Any, nav: Any) -> Any:
    """Link the page to the other language; to its first page where the page is missing there."""
    there = page.url if (STAGED / OTHER / page.file.src_uri).exists() else "index.html"
    up = "../" * page.url.count("/")
    context["other_language"] = f"{up}zh/{there}" if LANGUAGE == "en" else f"{up}../{there}"
    return context
