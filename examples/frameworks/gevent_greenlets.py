"""gevent: patched first, then the threads API. `python -m examples.frameworks.gevent_greenlets`"""

from gevent import monkey

monkey.patch_all()

import os

import gevent

import holdfast

URL = os.environ.get("HOLDFAST_URL", "redis://localhost:6379")

locks = holdfast.connect(URL)
inside: list[int] = []


def work(number: int) -> None:
    with locks.lock("work"):
        inside.append(number)
        gevent.sleep(0.001)
        assert inside == [number]
        inside.remove(number)


gevent.joinall([gevent.spawn(work, number) for number in range(50)], raise_error=True)
print("worked")
