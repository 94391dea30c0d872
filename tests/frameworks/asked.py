"""The programs around the code of `docs/questions`: what a reader has there already, with one answer put into it.

Their work is told to the server: begun, held up until `go` is there, done.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from testbed.waiting import eventually
from tests.frameworks.programs import Program, Programs

__all__ = ["PATIENCE_S", "QUESTIONS", "Asked", "answers", "work"]

#: Workers are started meanwhile, on a machine that has other things to do.
PATIENCE_S = 120.0
PAGE = Path(__file__).resolve().parents[2] / "docs" / "questions" / "README.md"

_HEAD = """
import asyncio, contextlib, os, time
from collections.abc import AsyncIterator
from typing import Annotated, Any
import redis
import holdfast, holdfast.asyncio
from tests.frameworks.asked import work
from tests.frameworks.unlocked import AsyncUnlocked, Unlocked
URL = os.environ["HOLDFAST_URL"]
store = redis.Redis.from_url(URL, decode_responses=True)
"""
_THREADS = 'locks = holdfast.connect(URL) if os.environ["LOCKED"] else Unlocked(store)\n'
_ASYNCIO = """
locks = holdfast.asyncio.connect(URL) if os.environ["LOCKED"] else AsyncUnlocked(store)
from concurrent.futures import ThreadPoolExecutor
THREADS = ThreadPoolExecutor(64)
async def in_thread(*what):
    await asyncio.get_running_loop().run_in_executor(THREADS, work, store, *what)
"""
_CELERY = """
import celery
app = celery.Celery(broker=URL, backend=URL)
def write_index(shop=""):
    work(store, shop)
"""
_DRAMATIQ = """
import dramatiq
from dramatiq.brokers.redis import RedisBroker
dramatiq.set_broker(RedisBroker(url=URL))
def add_to_parcel(order, item):
    work(store, order)
def write_export(user):
    work(store, user)
"""
_FASTAPI = """
import pydantic
from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse, Response
RELEASE = "1.4"
async def warm_up(lease):
    await in_thread("warm")
async def poll(lease):
    store.rpush("led by", os.getpid())
    await in_thread("poll")
    await asyncio.Event().wait()
async def charge(payment):
    await in_thread(payment.customer)
    return f'{{"charged": {payment.amount}}}'
class Payment(pydantic.BaseModel):
    customer: str
    amount: int
"""
_SERVED = """
app = FastAPI(lifespan=lifespan)
@app.get("/")
def root():
    return os.getpid()
"""

#: What stands before and after each answer, in the order of the page.
QUESTIONS: dict[str, tuple[str, str]] = {
    "single": (_THREADS + _CELERY, ""),
    "argument": (_THREADS + _DRAMATIQ, ""),
    "tick": (
        _THREADS
        + """
from apscheduler.schedulers.background import BackgroundScheduler
scheduler = BackgroundScheduler(timezone="UTC")
def read_mailbox():
    store.rpush("ticks", int(time.time() // 10))
""",
        """
scheduler.start()
store.rpush("started", os.getpid())
while not store.exists("stop"):
    time.sleep(0.1)
""",
    ),
    "startup": (_ASYNCIO + _FASTAPI, _SERVED),
    "leader": (_ASYNCIO + _FASTAPI, _SERVED),
    "tenant": (
        _ASYNCIO
        + """
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend
broker = ListQueueBroker(URL).with_result_backend(RedisAsyncResultBackend(URL, prefix_str="result"))
async def write_export(tenant):
    await in_thread(tenant)
""",
        "",
    ),
    "stampede": (
        _THREADS
        + """
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="x")
def render_home():
    work(store, "home")
    return "page"
""",
        '\nurlpatterns = [path("", home)]\napplication = get_wsgi_application()\n',
    ),
    "idempotent": (
        _ASYNCIO
        + _FASTAPI
        + """
app = FastAPI()
@app.exception_handler(holdfast.OnceConflict)
async def conflict(request: Request, error: holdfast.OnceConflict):
    return JSONResponse({"detail": str(error)}, 422)
""",
        "",
    ),
    "queued": (_THREADS + _CELERY, ""),
    "debounce": (
        _ASYNCIO
        + """
import arq
from arq.connections import RedisSettings
SETTINGS = RedisSettings.from_dsn(URL)
async def write_page(page):
    await in_thread(page)
""",
        """
class WorkerSettings:
    functions = [publish]
    redis_settings = SETTINGS
    poll_delay = 0.1
async def main():
    global queue
    queue = await arq.create_pool(SETTINGS)
    for _ in range(5):
        await edited("home")
    await queue.aclose()
if __name__ == "__main__":
    asyncio.run(main())
""",
    ),
    "handover": (_THREADS + _DRAMATIQ, ""),
    "migration": (
        _THREADS
        + """
import sqlite3
import django
from django.conf import settings
from django.core.management import call_command
with sqlite3.connect(os.environ["DATABASE"], timeout=60) as made:
    made.execute(
        "CREATE TABLE IF NOT EXISTS django_migrations (id integer PRIMARY KEY AUTOINCREMENT,"
        " app varchar(255) NOT NULL, name varchar(255) NOT NULL, applied datetime NOT NULL)"
    )
database = {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["DATABASE"], "OPTIONS": {"timeout": 60}}
settings.configure(DATABASES={"default": database}, INSTALLED_APPS=["shop"])
django.setup()
""",
        "",
    ),
}


def work(store: redis.Redis, *what: str | int) -> None:
    """Tell that this has begun, and go on when the test says so."""
    store.rpush("begun", *what)
    until = time.monotonic() + PATIENCE_S
    while not store.exists("go") and time.monotonic() < until:
        time.sleep(0.02)
    store.rpush("done", *what)


def answers(page: Path = PAGE) -> dict[str, str]:
    """Return the code of each section."""
    sections = re.split(r"^## (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    found: dict[str, str] = {}
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        (found[title],) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return found


class Asked:
    """One program with its answer, on a server of its own."""

    def __init__(self, name: str, locked: bool, url: str, folder: Path) -> None:
        before, after = QUESTIONS[name]
        answer = [*answers().values()][[*QUESTIONS].index(name)]
        self.url = url
        self.module = f"asked_{name}"
        (folder / f"{self.module}.py").write_text(f"{_HEAD}{before}\n{answer}\n{after}", encoding="utf-8")
        root = Path(__file__).resolve().parents[2]
        self.environment = {
            "HOLDFAST_URL": url,
            "LOCKED": "yes" if locked else "",
            "PYTHONPATH": f"{root}:{folder}",
            "PYTHONWARNINGS": "ignore",
            "DATABASE": f"{folder}/shop.db",
        }
        self.programs = Programs(folder, **self.environment)
        self.store: Any = redis.Redis.from_url(url, decode_responses=True)

    def start(self, *command: str) -> Program:
        return self.programs.start(*command)

    def use(self, code: str) -> str:
        """Run code that imports the program; return what it printed."""
        use = f"from {self.module} import *\n{code}"
        number = self.store.incr("uses")
        (self.programs.folder / f"use_{number}.py").write_text(use, encoding="utf-8")
        return self.programs.run(f"use_{number}")

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        def there() -> Any:
            self.programs.check()
            return condition()

        return eventually(there, what, PATIENCE_S)

    def begun(self, count: int) -> list[str]:
        """Return what has begun, as soon as that many have."""
        self.until(lambda: self.store.llen("begun") >= count, f"{count} begun")
        items: list[str] = self.store.lrange("begun", 0, -1)
        return items

    def go(self) -> None:
        self.store.set("go", 1)

    def done(self, count: int) -> list[str]:
        """Let them go on; return what has been done, as soon as that many have."""
        self.go()
        self.until(lambda: self.store.llen("done") >= count, f"{count} done")
        items: list[str] = self.store.lrange("done", 0, -1)
        return items

    def close(self) -> None:
        self.go()  # else workers wait for what they do
        self.programs.close()
        print(self.programs.logs())
        self.store.close()
