"""The same with eventlet. `python -m examples.frameworks.eventlet_greenlets`"""

import eventlet

eventlet.monkey_patch()

import os

import holdfast

URL = os.environ.get("HOLDFAST_URL", "redis://localhost:6379")

locks = holdfast.connect(URL)
inside: list[int] = []


def work(number: int) -> None:
    with locks.lock("work"):
        inside.append(number)
        eventlet.sleep(0.001)
        assert inside == [number]
        inside.remove(number)


for ended in [eventlet.spawn(work, number) for number in range(50)]:
    ended.wait()
print("worked")
