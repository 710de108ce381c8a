"""Workers: OpenMP's threads for decodes end with the work, or those of idle threads would slow down the one that decodes."""

import os
from concurrent.futures import ThreadPoolExecutor

import llama_cpp
import psutil
import pytest
from helpers.forked import fork
from helpers.waiting import DEADLINE_S
from llama_cpp import llama_cpp as library

from pyspec import SpeculativeLlama
from pyspec.batch.run import Batch
from pyspec.machine import attention
from pyspec.machine.attention import Heads

pytestmark = pytest.mark.skipif(
    not hasattr(library._lib, "omp_pause_resource"), reason="llama.cpp was built without OpenMP"
)


def threads():
    return {thread.id for thread in psutil.Process().threads()}


@pytest.fixture
def left():
    """How many threads a piece of work leaves behind in a thread that lives on."""
    with ThreadPoolExecutor(1) as pool:

        def new(work):
            before = threads()
            work()
            return len(threads() - before)

        yield lambda work: pool.submit(new, work).result()


@pytest.fixture
def llm(tiny_target):
    with SpeculativeLlama(str(tiny_target), draft="none", n_threads=2, n_threads_batch=2) as made:
        yield made


def test_an_answer_has_workers(llm, left):
    """While it goes on; otherwise the tests below could not fail."""
    stream = llm.create_completion("ab", max_tokens=4, stream=True)
    assert left(lambda: next(stream)) == 1
    stream.close()


@pytest.mark.parametrize("work", [
    lambda llm: llm.create_completion("ab", max_tokens=4),
    lambda llm: list(llm.create_completion("ab", max_tokens=4, stream=True)),
    lambda llm: llm.eval([1, 2, 3]),
    # measuring runs in the thread that loads a model, which answers no request in a server
    lambda _: attention._measure(Heads(2, 2, 8, 8), [8], 2),
])  # fmt: skip
def test_the_class_leaves_none(llm, left, work):
    assert left(lambda: work(llm)) == 0


def test_a_stream_that_changes_threads_leaves_none(llm, left):
    """As web frameworks read it: each piece in another thread of their pool."""
    stream = llm.create_completion("ab", max_tokens=8, temperature=0, stream=True)
    next(stream)
    assert left(lambda: next(stream)) == 0
    stream.close()


def test_a_batch_leaves_none(tiny_target, left):
    with Batch(str(tiny_target), draft="none", parallel=2, n_ctx=64, n_threads=2) as batch:
        assert left(lambda: list(batch.run(["ab", "cd"]))) == 0
        assert left(batch.prepare) == 0


def test_a_fork_does_not_wait_for_its_parents_workers(tiny_target):
    """Which it does not have: a model of one thread, loaded before, answers there."""
    plain = llama_cpp.Llama(str(tiny_target), n_threads=2, n_threads_batch=2, verbose=False)
    one = SpeculativeLlama(str(tiny_target), draft="none", n_threads=1, n_threads_batch=1)
    plain.eval([1, 2, 3])  # its workers stay

    def answer(_report):
        one.create_completion("ab", max_tokens=4)
        os._exit(0)

    assert fork(answer, DEADLINE_S).status == 0
    one.close()
    plain.close()
