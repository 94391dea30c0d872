"""Django with SQLite: orders under locks, a management command, commits and rollbacks, the cache's lock."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from types import ModuleType

import pytest

pytest.importorskip("django", reason="`make frameworks` has it")

import holdfast
from testbed.servers import start
from testbed.waiting import eventually
from tests.frameworks.programs import Programs
from tests.frameworks.shops import PATIENCE_S

SETTINGS = "examples.frameworks.django_shop.settings"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ModuleType, Programs]]:
    folder = tmp_path_factory.mktemp("django")
    with start() as server, pytest.MonkeyPatch.context() as patch:
        environment = {
            "HOLDFAST_URL": server.url,
            "SHOP_DATABASE": str(folder / "shop.db"),
            "DJANGO_SETTINGS_MODULE": SETTINGS,
        }
        for name, value in environment.items():
            patch.setenv(name, value)
        import django

        django.setup()
        from django.db import connections

        from examples.frameworks.django_shop import orders

        programs = Programs(folder, **environment)
        try:
            programs.run("django", "migrate", "--run-syncdb", "--verbosity=0")
            yield orders, programs
        finally:
            programs.close()
            print(programs.logs())
            from examples.frameworks.django_shop.locks import locks

            locks.close()
            connections.close_all()


def test_a_later_holder_wins_over_a_stale_one(shop: tuple[ModuleType, Programs]) -> None:
    orders, _ = shop
    order = orders.Order.objects.create()
    with holdfast.connect(os.environ["HOLDFAST_URL"]) as elsewhere:
        late = elsewhere.lock(f"order:{order.pk}", ttl=0.5, renew=False).acquire()
        orders.ship(order.pk)  # waits for the other lease's end
    with pytest.raises(orders.Stale):
        orders.set_state(order.pk, "cancelled", late)
    order.refresh_from_db()
    assert order.state == "shipped" and order.fence > late.fencing_token


def test_a_lease_that_is_lost_rolls_back(shop: tuple[ModuleType, Programs]) -> None:
    orders, _ = shop
    order = orders.Order.objects.create()
    with pytest.raises(holdfast.LeaseLost), orders.locked_order(order.pk) as lease:
        orders.set_state(order.pk, "shipped", lease)
        assert orders.locks.break_(f"order:{order.pk}", reason="a test")
        eventually(lambda: lease.state is holdfast.LeaseState.LOST)
    order.refresh_from_db()
    assert order.state == "new"


def test_the_lock_is_kept_until_the_commit(shop: tuple[ModuleType, Programs]) -> None:
    from django.db import transaction

    orders, _ = shop
    order = orders.Order.objects.create()
    lock = orders.locks.lock(f"order:{order.pk}")
    with transaction.atomic():
        orders.ship_inside_a_transaction(order.pk)
        assert lock.locked()
    assert not lock.locked()


@pytest.mark.filterwarnings("ignore:.*was dropped:ResourceWarning")
def test_after_a_rollback_it_is_not_held_for_good(shop: tuple[ModuleType, Programs]) -> None:
    from django.db import transaction

    orders, _ = shop
    order = orders.Order.objects.create()
    with pytest.raises(KeyError), transaction.atomic():
        orders.ship_inside_a_transaction(order.pk)
        raise KeyError
    gc.collect()
    eventually(lambda: not orders.locks.lock(f"order:{order.pk}").locked(), "it is free", PATIENCE_S)


def test_of_many_hosts_one_closes_the_day(shop: tuple[ModuleType, Programs]) -> None:
    orders, programs = shop
    order = orders.Order.objects.create(state="shipped")
    hosts = [programs.start("django", "close_day") for _ in range(3)]
    assert [host.wait(PATIENCE_S) for host in hosts] == [0, 0, 0]
    said = programs.logs()
    assert said.count("closed ") == 1 and said.count("runs elsewhere") == 2, said
    order.refresh_from_db()
    assert order.state == "closed"
