"""Asking many holders where they are: what is sent, to whom, and how long that takes, by a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast._core.effects import Command, Now, Sleep
from holdfast._core.failure import RequestFailed
from holdfast._core.settings import DEFAULT
from holdfast._core.whereabouts import ANSWERS_MAX, BETWEEN, TOGETHER_MAX, Questions, asked_in

SILENT, DEAF = "5" * 24, "d" * 24


class World:
    """A server, and clients that answer at once: but for those that are silent, and those that hear nothing."""

    def __init__(self, *refused: str) -> None:
        self.now = 0.0
        self.asked: list[tuple[float, str, list[str]]] = []
        self.read = 0
        self._refused = refused
        self.silent: Callable[[str], bool] = lambda client: client == SILENT
        self._answers: dict[str, bytes] = {}

    def run(self, protocol: Any) -> Any:
        answer: Any = None
        while True:
            try:
                effect = protocol.throw(answer) if isinstance(answer, Exception) else protocol.send(answer)
            except StopIteration as end:
                return end.value
            if isinstance(effect, Sleep):
                self.now += effect.seconds
            answer = self.now if isinstance(effect, Now) else None
            if isinstance(effect, Command):
                self.now += 0.0001
                answer = self._do(*effect.args)

    def _do(self, command: Any, key: Any, *more: Any) -> Any:
        if command in self._refused:
            return RequestFailed("NOPERM", "not allowed", "a node", maybe_executed=False, transient=False)
        if command == "PUBLISH":
            word, token, text = more[0].split(" ")
            question, tokens = asked_in(token, text) or pytest.fail(text)
            client = key.removeprefix("ns:inbox:")
            assert word == "where" and all(each.startswith(client) for each in tokens)
            self.asked.append((self.now, client, tokens))
            if not self.silent(client):
                self._answers[f"ns:where:{question}"] = BETWEEN.join(each.encode() for each in tokens)
            return 0 if client == DEAF else 1
        self.read += 1
        return self._answers.get(key, b"" if command == "GETRANGE" else None)


def held(client: str, count: int, first: int = 1) -> list[tuple[str, str]]:
    return [(f"ns:{{{client[:2]}-{number}}}", f"{client}:1:{number}") for number in range(first, first + count)]


def client(number: int) -> str:
    return f"{number:024x}"


def questions(together: bool = True) -> Questions:
    return Questions("ns", "abc:where:1", together, DEFAULT)


def test_each_client_is_asked_once_for_all_that_it_holds() -> None:
    world = World()
    pairs = [pair for number in range(20) for pair in held(client(number), 5)]
    found = world.run(questions().ask(pairs))
    assert found == {token: token.encode() for _, token in pairs}
    assert len(world.asked) == world.read == 20 and world.now < 0.1


def test_what_has_no_client_is_not_asked() -> None:
    world = World()
    pairs = [("ns:{a}", token) for token in ("someone", f"{client(1)}:x y:1", f"{client(1)}:1,2:1", "")]
    assert world.run(questions().ask(pairs)) == {} and world.asked == [] and world.now == 0


def test_a_page_of_silent_clients_takes_a_second_and_they_are_not_asked_again() -> None:
    world, all_questions = World(), questions()
    pairs = [*held(client(1), 3), *held(SILENT, 200), *held(DEAF, 60)]
    found = world.run(all_questions.ask(pairs))
    assert set(found) == {token for _, token in held(client(1), 3)}
    assert 1 <= world.now < 1.1
    assert [who for _, who, _ in world.asked].count(SILENT) == 1
    began_at = world.now
    found = world.run(all_questions.ask([*held(client(1), 3, 10), *held(SILENT, 3, 300)]))
    assert set(found) == {token for _, token in held(client(1), 3, 10)} and world.now - began_at < 0.1


@pytest.mark.parametrize("per_page", [100, 1_000])
def test_one_client_is_asked_in_portions_at_half_of_what_it_answers(per_page: int) -> None:
    world, all_questions = World(), questions()
    for page in range(0, 1_000, per_page):
        assert len(world.run(all_questions.ask(held(client(1), per_page, page)))) == per_page
    assert max(len(tokens) for _, _, tokens in world.asked) <= TOGETHER_MAX
    times = [at for at, _, tokens in world.asked for _ in tokens]
    assert max(sum(1 for at in times if start <= at < start + 1) for start in times) <= ANSWERS_MAX / 2 + TOGETHER_MAX
    assert world.now < 2 * 1_000 / (ANSWERS_MAX / 2)


def test_in_a_cluster_one_node_may_know_who_listens_and_another_not() -> None:
    world = World()
    world.run(questions(together=False).ask(held(DEAF, 3)))
    assert len(world.asked) == 3
    world = World()
    world.run(questions().ask(held(DEAF, 3)))
    assert len(world.asked) == 1


def test_the_locks_of_a_multilock_are_one_lease() -> None:
    world = World()
    assert len(world.run(questions().ask([("ns:{a}", f"{client(1)}:m.1:1"), ("ns:{b}", f"{client(1)}:m.1:1")]))) == 1
    assert [tokens for _, _, tokens in world.asked] == [[f"{client(1)}:m.1:1"]]


def test_who_may_not_read_a_part_reads_all() -> None:
    assert len(World("GETRANGE").run(questions().ask(held(client(1), 2)))) == 2


@pytest.mark.parametrize("refused", [("PUBLISH",), ("GETRANGE", "GET")])
def test_what_is_refused_is_said(refused: tuple[str, ...]) -> None:
    with pytest.raises(RequestFailed, match="not allowed"):
        World(*refused).run(questions().ask(held(client(1), 2)))


def test_a_listing_waits_two_seconds_for_all_that_do_not_answer() -> None:
    world = World()
    questions = Questions("ns", "q", True, DEFAULT)
    took = []
    for page in range(6):
        began = world.now
        silent = SILENT[:-1] + str(page)
        world.silent = lambda client: client.startswith(SILENT[:-1])
        assert world.run(questions.ask([*held(silent, 3), *held("a" * 24, 1, 1 + page)])).keys() == {
            f"{'a' * 24}:1:{1 + page}"
        }
        took.append(world.now - began)
    assert all(1.0 <= each < 1.2 for each in took[:2]) and all(0.25 <= each < 0.4 for each in took[2:]), took
