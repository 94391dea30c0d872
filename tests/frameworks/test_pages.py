"""The files of the pages on frameworks, in both languages, pasted into a folder and used there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from holdfast import embedded
from tests.frameworks.programs import ROOT, Programs
from tests.support.pages import files

PAGES = ("web", "databases", "queues", "schedulers", "concurrency", "notebooks")

#: A program for each file of the pages: what a reader may do with it. What it prints begins its last line.
USES = {
    "fastapi_app.py": """
        import asyncio, httpx
        import holdfast.asyncio
        from fastapi_app import app

        async def main():
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=transport, base_url="http://test") as client,
            ):
                async def post(path):
                    return (await client.post(path)).status_code
                async with holdfast.asyncio.connect() as others, others.lock("order:2"):
                    print(await post("/orders/1/pack"), await post("/orders/2/pack"), end=" ")
                print(*sorted(await asyncio.gather(*(post("/reports/monday") for _ in range(2)))))

        asyncio.run(main())
    """,
    "flask_app.py": """
        import holdfast
        from flask_app import app

        with holdfast.connect() as others, others.lock("order:2"):
            print(*(app.test_client().post(f"/orders/{order}/pack").status_code for order in (1, 2)))
    """,
    "shop/orders.py": """
        import os
        import django
        from django.conf import settings
        from django.core.management import call_command

        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}
        settings.configure(
            INSTALLED_APPS=["shop"],
            DATABASES={"default": database},
            HOLDFAST_URL=os.environ["HOLDFAST_URL"],
            DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        )
        django.setup()
        call_command("migrate", run_syncdb=True, verbosity=0)

        from django.db import transaction
        from shop.models import Order
        from shop.orders import ship, ship_inside_a_transaction

        first, second = Order.objects.create(), Order.objects.create()
        ship(first.pk)
        with transaction.atomic():
            ship_inside_a_transaction(second.pk)
        print(*Order.objects.values_list("state", flat=True), flush=True)
        call_command("close_day")
    """,
    "stock.py": """
        import asyncio
        from sqlalchemy import create_engine
        from sqlalchemy.orm import Session
        import holdfast
        import stock

        engine = create_engine("sqlite:///stock.db")
        stock.Base.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            session.add(stock.Stock(item="lamp", left=3))
        with holdfast.connect() as locks:
            stock.sell_one(locks, engine, "lamp")
        with Session(engine) as session:
            print(session.get_one(stock.Stock, "lamp").left, end=" ")
            try:
                stock.write_stock(session, "lamp", 9, 1)
            except stock.Stale:
                print("stale")
    """,
    "tasks.py": """
        import tasks

        tasks.store.rpush("data:monday", "here it is")
        said = [tasks.report.apply(["monday"]).get(), tasks.charge.apply([1]).get()]
        tasks.pack.apply([1, "lamp"]).get()
        print(*said, *tasks.store.lrange("order:1", 0, -1), tasks.sweep.apply().get(), tasks.sweep.apply().get())
    """,
    "jobs.py": """
        import jobs

        jobs.store.rpush("data:monday", "here it is")
        jobs.pack(1, "lamp")
        print(jobs.report("monday"), *jobs.store.lrange("order:1", 0, -1), jobs.charge("a"), jobs.charge("a"))
    """,
    "actors.py": """
        import actors

        actors.store.rpush("data:monday", "here it is")
        actors.report.fn("monday")
        actors.pack.fn(1, "lamp")
        print(*actors.store.lrange("written", 0, -1), *actors.store.lrange("order:1", 0, -1))
    """,
    "ticks.py": """
        import ticks

        print(len(ticks.scheduler.get_jobs()), ticks.sweep(), ticks.sweep())
    """,
    "ticks_asyncio.py": """
        import asyncio, os
        os.environ["SWEEP_EVERY_S"] = "2"
        from ticks_asyncio import main

        try:
            asyncio.run(asyncio.wait_for(main(), 5))
        except TimeoutError:
            pass
    """,
    "rebuild.py": """
        import threading, time
        import holdfast
        import rebuild

        def take_away():
            with holdfast.connect() as others:
                while not others.break_("index", reason="a test"):
                    time.sleep(0.05)

        threading.Thread(target=take_away, daemon=True).start()
        try:
            rebuild.rebuild()
        except holdfast.LeaseLost as error:
            print("stopped:", error.reason)
    """,
    "greenlets.py": "import runpy; runpy.run_path('greenlets.py', run_name='__main__')",
    "moves_on.py": "import runpy; runpy.run_path('moves_on.py', run_name='__main__')",
    "sells.py": "import runpy; runpy.run_path('sells.py', run_name='__main__')",
    "conftest.py": """
        import pathlib, subprocess, sys

        pathlib.Path("test_it.py").write_text("def test_it(database, printer):\\n    assert database.exists()\\n")
        subprocess.run([sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "no:cacheprovider", "test_it.py"])
    """,
}
PRINTED = {
    "fastapi_app.py": "200 423 200 409",
    "flask_app.py": "200 423",
    "shop/orders.py": "shipped shipped\nclosed 2",
    "stock.py": "2 stale",
    "tasks.py": "written 1 1. lamp swept was swept already",
    "jobs.py": "written 1. lamp charged was charged before",
    "actors.py": "monday 1. lamp",
    "ticks.py": "1 swept another process runs it",
    "ticks_asyncio.py": "swept",
    "rebuild.py": "rebuilding\nstopped: broken",
    "greenlets.py": "worked",
    "moves_on.py": "moved on",
    "sells.py": "sold",
    "conftest.py": "1 passed",
}
#: Files that others of their folder import.
TOGETHER = {"shop/locks.py", "shop/models.py", "shop/management/commands/close_day.py"}


def paste(page: str, folder: Path) -> list[str]:
    """Write the files of a page; what they are called."""
    shown = files((ROOT / "docs" / "frameworks" / page).read_text(encoding="utf-8"))
    for name, code in shown.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        for package in file.relative_to(folder).parents[:-1]:
            (folder / package / "__init__.py").touch()  # as `startapp` makes them
        file.write_text(code, encoding="utf-8")
    return list(shown)


@pytest.mark.parametrize("language", ["", ".zh-CN"], ids=["English", "Chinese"])
@pytest.mark.parametrize("page", PAGES)
def test_the_files_of_a_page_work(
    page: str, language: str, private_server: Callable[[], embedded.Server], tmp_path: Path
) -> None:
    names = paste(f"{page}{language}.md", tmp_path)
    assert names and {*names} <= {*USES} | TOGETHER
    url = private_server().url
    programs = Programs(tmp_path, HOLDFAST_URL=url, PYTHONPATH=str(tmp_path), TMPDIR=str(tmp_path))
    try:
        for name in names:
            if name in USES:
                use = tmp_path / f"use_{Path(name).stem}.py"
                use.write_text(re.sub(r"^ {8}", "", USES[name], flags=re.MULTILINE), encoding="utf-8")
                assert PRINTED[name] in programs.run(use.stem), name
                with redis.Redis.from_url(url) as server:
                    server.flushall()
    finally:
        programs.close()


def test_every_use_is_of_a_page() -> None:
    shown = [name for page in PAGES for name in files((ROOT / "docs" / "frameworks" / f"{page}.md").read_text("utf-8"))]
    assert sorted(shown) == sorted({*USES} | TOGETHER)
