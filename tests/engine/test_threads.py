"""Threads give way to other programs, and come back."""

from functools import partial
from types import SimpleNamespace

import llama_cpp
import pytest

from pyspec.engine import assembly as module
from pyspec.engine.assembly import Threads, threads_beside


class Neighbour:
    """A load of `others` on so many processors."""

    def __init__(self, processors=4):
        self.processors, self.taken = processors, 0.0

    def others(self):
        return self.taken


@pytest.fixture
def looking(monkeypatch):
    """Every question is a look at the load; what contexts were told is kept."""
    told = []
    monkeypatch.setattr(module, "EVERY_S", 0.0)
    monkeypatch.setattr(llama_cpp, "llama_set_n_threads", lambda *words: told.append(words))
    return told


@pytest.mark.parametrize(("most", "processors", "others", "fit"), [
    (2, 2, 0.0, 2), (2, 2, 0.2, 2), (2, 2, 0.7, 1), (2, 2, 2.0, 1), (8, 8, 1.5, 6), (4, 16, 9.0, 4), (1, 1, 1.0, 1),
])  # fmt: skip
def test_each_thread_finds_a_processor(most, processors, others, fit):
    """What others take is rounded up, but for the little that a system always does."""
    assert threads_beside(most, processors, others) == fit


@pytest.mark.parametrize(("loads", "told", "left"), [
    ((1.6,) * 3, [2], 2), ((3.0, 0.0, 3.0, 0.0), [], 4), ((3.0, 3.0, 0.0, 0.0), [1, 4], 4),
])  # fmt: skip
def test_they_give_way_to_who_stays_and_come_back(looking, loads, told, left):
    """A child that is over before the next look changes nothing."""
    load = Neighbour()
    threads = Threads([7, 8], 4, load)
    changes = []
    for load.taken in loads:
        changes.append(threads.adapt())
    assert looking == [(context, n, n) for n in told for context in (7, 8)]
    assert (sum(changes), threads.n) == (len(told), left)


def test_the_processors_are_looked_at_now_and_then(monkeypatch):
    monkeypatch.setattr(module, "EVERY_S", 60.0)
    load, looks = Neighbour(), []
    monkeypatch.setattr(load, "others", lambda: looks.append(1) or 0.0)
    threads = Threads([7], 4, load)
    for _ in range(5):
        threads.adapt()
    assert len(looks) == 1


def test_a_number_that_was_asked_for_stays(open_llama, tiny_target):
    asked = open_llama(tiny_target, n_threads=1)
    assert asked.assembly.threads is None
    left = open_llama(tiny_target, n_threads=None, n_threads_batch=None)
    assert left.assembly.threads.n == left.n_threads


def test_an_answer_goes_on_with_fewer_threads(open_llama, tiny_target, monkeypatch):
    llm = open_llama(tiny_target, n_threads=2, n_threads_batch=2)
    ask = partial(llm.create_completion, "a b c", max_tokens=24, temperature=0.0)
    expected = ask()["choices"][0]["text"]
    counts, used, real = iter([1, 1, 2, 2] * 50), set(), llama_cpp.llama_set_n_threads

    def noted(context, n, m):
        used.add(n)
        real(context, n, m)

    load = SimpleNamespace(processors=2, others=lambda: 2.0 - next(counts))
    monkeypatch.setattr(module, "EVERY_S", 0.0)
    monkeypatch.setattr(llama_cpp, "llama_set_n_threads", noted)
    llm.assembly.loop.adapt_threads = Threads([llm.ctx], 2, load).adapt
    llm.reset()
    assert (ask()["choices"][0]["text"], used) == (expected, {1, 2})
