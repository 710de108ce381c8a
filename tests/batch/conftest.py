"""Batches of the tiny model."""

import resource
import signal
from pathlib import Path

import pytest
from helpers.answers import counters
from helpers.fake_batch import go

from pyspec.batch import Batch, Settings
from pyspec.engine.handle import Engine
from pyspec.requests.records import Record

__all__ = ["go"]


@pytest.fixture
def read(monkeypatch):
    """Rows that went to the target, by decode; a prompt's tokens among them."""
    rows = []
    verify = Engine.verify

    def counted(self, work):
        before = counters(self).rows[0]
        verify(self, work)
        rows.append(counters(self).rows[0] - before)

    monkeypatch.setattr(Engine, "verify", counted)
    return rows


@pytest.fixture
def open_batch(tiny_target):
    """Makes a `Batch` of the tiny target; nothing drafts and 2 answers go on at once unless said otherwise."""
    usual = {"draft": "none", "companion": "none", "length": "fixed:4", "n_ctx": 256, "parallel": 2}
    usual |= {"n_threads": 1, "n_threads_batch": 1}
    opened = []

    def open_(path=None, max_tokens=24, **options):
        settings = options.pop("settings", Settings(max_tokens=max_tokens, raw=True))
        words = {k: str(v) if isinstance(v, Path) else v for k, v in options.items()}
        opened.append(Batch(str(path or tiny_target), settings=settings, **{**usual, **words}))
        return opened[-1]

    yield open_
    for batch in opened:
        batch.close()


@pytest.fixture
def submit():
    """Queues records or prompts in a batch; returns their answers. hear: gives each its listener, by number."""

    def submit_(batch, asked, hear=lambda _: None):
        answers = []
        for i, each in enumerate(asked):
            record = Record(id=str(i), prompt=each) if isinstance(each, str) else each
            answers.append(batch.maker.answer(i, record))
            answers[-1].listener = hear(i)
            batch.submit(answers[-1])
        return answers

    return submit_


@pytest.fixture
def work(monkeypatch):
    """What goes into each decode, as (sequence, prompt tokens, drafted tokens)."""
    decodes, verify = [], Engine.verify

    def noted(self, work):
        decodes.append(list(work))
        verify(self, work)

    monkeypatch.setattr(Engine, "verify", noted)
    return decodes


@pytest.fixture
def file_limit():
    """Lets no file grow beyond so many bytes, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)
