"""Build the documentation site: `make docs`.

Each language is a site of its own, with its own search: English in site/, Chinese in site/zh/. README, CHANGELOG and
SECURITY are pages, too, and so is the reference (tools/reference.py). Links to what is only in the repository become
its path. What `make docs` cannot build without a warning, or with a link that leads nowhere, it refuses.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Container, Sequence
from pathlib import Path, PurePosixPath
from posixpath import normpath

from tools import reference

__all__ = ["LANGUAGES", "linked", "main", "pages", "stage"]

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
#: Below it a folder for each language, which mkdocs.yml calls `docs_dir`.
STAGED = ROOT / "build" / "docs"
LANGUAGES = ("en", "zh")
PICTURES = {".svg", ".png"}
#: What the site has beside pages and pictures.
ASSETS = ROOT / "tools" / "site" / "assets"
#: The table of contents for readers of the repository: the site has its own.
INDEX = PurePosixPath("docs/README.md")
#: For those who work on holdfast: in the repository alone, and not in the search.
INSIDE = ("docs/design/", "docs/evidence/", "docs/evidence.", "docs/protocol.")
#: The words of a link to the other language, for which the site has a switch.
SWITCHES = {"English", "中文"}
#: What lies beside docs/, and what it is called on the site.
BESIDE = {
    "README.md": "index.md",
    "README.zh-CN.md": "index.zh-CN.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
_LINK = re.compile(r"(!?)\[((?:[^\]\\]|\\.)*)\]\((?!https?:|#|mailto:)([^)#\s]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
#: Two lines of one Chinese paragraph: the break would be shown as a blank.
_WIDE = r"[\u2014\u2018-\u201d\u2026\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]"
_STOP = r"[\u3001\u3002\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f]"
_BREAK = re.compile(
    rf"(?<={_WIDE})\n *(?={_WIDE})|(?<={_STOP})\n *(?=[\w`\[*(](?!\. |\*? ))|(?<=[\w`)*])\n *(?={_STOP})"
)
#: What readers look for by other words than those of the page: {page: words for each language}.
KEYWORDS: dict[str, tuple[str, str]] = {
    "concepts.md": ("ttl, guarantees, exactly once", "锁过期, 过期时间, ttl"),
    "fencing.md": ("fencing", "防护令牌, 栅栏令牌, 隔离令牌"),
    "topologies.md": ("redlock, sentinel, cluster, failover, quorum", "红锁, 哨兵, 集群, 主从切换"),
    "servers.md": (
        "elasticache, memorydb, azure, memorystore, upstash, dragonfly, garnet, kvrocks, keydb, redict",
        "云服务, 托管, 阿里云, 兼容",
    ),
    "scale.md": ("capacity, memory, many clients, sharding", "容量, 内存, 大规模, 分片"),
    "operations.md": ("prometheus, metrics, monitoring, acl", "监控, 指标, 告警, prometheus"),
    "benchmarks.md": ("benchmark, performance, latency", "基准测试, 性能, 延迟"),
    "primitives/lock.md": ("mutex, reentrant, renew, watchdog", "互斥锁, 可重入锁, 看门狗, 续期, 续约, 公平锁, 惊群"),
    "primitives/rwlock.md": ("rwlock", "读写锁"),
    "primitives/optimistic.md": ("watch, cas", "乐观锁"),
    "primitives/once.md": ("idempotent", "幂等"),
    "frameworks/schedulers.md": ("cron", "定时任务"),
    "questions/README.md": ("cache stampede, debounce, rate limit", "缓存击穿, 防抖, 限流"),
    "ladder.md": ("setnx", "setnx, 误删"),
}


def _name_of(path: str) -> str:
    """Return a file's path on the site of either language; "" where it is on none."""
    return BESIDE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else "")


@functools.cache
def pages(language: str) -> dict[str, tuple[PurePosixPath, str]]:
    """The pages of one language by their names: where each is in the repository, and its text."""
    found: dict[str, tuple[PurePosixPath, str]] = {}
    for source in sorted([*DOCS.rglob("*.md"), *(ROOT / name for name in BESIDE)]):
        where = PurePosixPath(source.relative_to(ROOT).as_posix())
        name = _name_of(str(where))
        if where == INDEX or str(where).startswith(INSIDE) or name.endswith(".zh-CN.md") != (language == "zh"):
            continue
        found[name.replace(".zh-CN", "")] = where, source.read_text(encoding="utf-8")
    if language == "en":
        for name, text in reference.pages().items():
            found[f"reference/{name}"] = PurePosixPath("docs/reference") / name, text
    return found


def linked(name: str, where: PurePosixPath, text: str, language: str, known: Container[str]) -> str:
    """The text with links that lead to where their pages are on the site."""
    up = "../" * (len(PurePosixPath(name).parts) - 1)

    def link(found: re.Match[str]) -> str:
        image, words, target, anchor = found[1], found[2], found[3], found[4] or ""
        if words in SWITCHES:
            return ""
        there = _name_of(normpath(str(where.parent / target)))
        if (DOCS / there).suffix in PICTURES:
            return f"{image}[{words}]({up}{there})"
        page = there.replace(".zh-CN", "")
        if page in known:
            return f"[{words}]({up}{page}{anchor})"
        if language == "zh" and there in pages("en"):  # of which there is no Chinese page
            return f"[{words}]({up}../{there.removesuffix('.md')}.html{anchor})"
        path = normpath(str(where.parent / target))  # of the repository alone
        if words in (path, path.removesuffix(".md"), path.removeprefix("docs/")):
            return words
        return f"{words} (`{path}`)" if language == "en" else f"{words}（`{path}`）"

    parts = _FENCE.split(text)
    return "".join(part if number % 2 else _LINK.sub(link, part) for number, part in enumerate(parts))


def joined(text: str) -> str:
    """A Chinese text whose line breaks are no blanks."""
    parts = _FENCE.split(text)
    return "".join(part if number % 2 else _BREAK.sub("", part) for number, part in enumerate(parts))


def stage(folder: Path, language: str) -> None:
    """Write the sources of one language there."""
    known = pages(language)
    for name, (where, text) in known.items():
        text = linked(name, where, text, language, known)
        if language == "zh":
            text = joined(text)
        head = f"tags: [{KEYWORDS[name][LANGUAGES.index(language)]}]\n" if name in KEYWORDS else ""
        if name.startswith("reference/") or name == "changelog.md":
            head = f"search: {{boost: {0.2 if 'threads' in name else 0.1}}}\n"
        page = folder / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"---\n{head}---\n\n{text}" if head else text, encoding="utf-8")
    for picture in DOCS.rglob("*"):
        if picture.suffix in PICTURES and (".zh-CN." in picture.name) == (language == "zh"):
            there = folder / picture.relative_to(DOCS)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(picture, there)
    shutil.copytree(ASSETS, folder / "assets")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the site; the exit status."""
    parser = argparse.ArgumentParser(prog="site", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "site", help="where to (%(default)s)")
    parser.add_argument("--mkdocs", default="mkdocs", help="the program (%(default)s)")
    asked = parser.parse_args(arguments)
    shutil.rmtree(STAGED, ignore_errors=True)
    for language in LANGUAGES:
        stage(STAGED / language, language)
    for language in LANGUAGES:
        out = asked.out.resolve() / ("" if language == "en" else language)
        command = [asked.mkdocs, "build", "--quiet", "--strict", "-d", out]
        environment = {**os.environ, "SITE_LANGUAGE": language, "SITE_DOCS": str(STAGED / language)}
        done = subprocess.run(command, cwd=ROOT, env=environment)
        if done.returncode:
            return done.returncode
        if language != "en":
            (out / "404.html").unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
