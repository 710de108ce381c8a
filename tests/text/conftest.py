"""Vocabularies with a template. One child renders all templates of these tests: to start one and to compile takes 0.3 s each."""

import itertools
from collections.abc import Callable
from contextlib import ExitStack, closing

import pytest
from helpers import tiny

from pyspec.engine.target import TargetLlama
from pyspec.text.render import Renderer


class View:
    """A renderer of a template's own in the child of all: the same source with the same variables is compiled once."""

    def __init__(self, child, names):
        self._child, self._names = child, names
        self._own: dict[str, str] = {}

    def start(self):
        """It starts with the first rendering."""

    def add(self, name, source, variables):
        key = repr((source, sorted(variables.items())))
        if key not in self._names:
            self._names[key] = f"{len(self._names)}"
            self._child.add(self._names[key], source, variables)
        self._own[name] = self._names[key]

    def render(self, name, arguments, now):
        return self._child.render(self._own[name], arguments, now)

    def close(self):
        """The child stays for the others."""


@pytest.fixture(scope="session")
def shared_renderer():
    child, names = Renderer(), dict[str, str]()
    yield lambda: View(child, names)
    child.close()


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKS = ["<|im_start|>", "<|im_end|>"]
Made = Callable[..., TargetLlama]


@pytest.fixture
def alone(tmp_path):
    """Makes a vocabulary with a template, each with a child of its own."""
    with ExitStack() as opened:
        count = itertools.count()

        def make(template, *, marks=MARKS, **how):
            options = {k: how.pop(k) for k in ("chat_template", "template_args") if k in how}
            path = tiny.write_vocabulary(tmp_path / f"{next(count)}.gguf", template, marks, **how)
            llm = TargetLlama(str(path), vocab_only=True, trust=True, verbose=False, **options)
            return opened.enter_context(closing(llm))

        yield make


@pytest.fixture
def made(alone, shared_renderer, monkeypatch):
    """The same by the child of all tests."""
    monkeypatch.setattr("pyspec.engine.target.Renderer", shared_renderer)
    return alone


def user(text):
    return {"role": "user", "content": text}


def control(llm, tokens):
    silent = (t for t in tokens if not llm.detokenize([t]))
    return [text.decode() for t in silent if (text := llm.detokenize([t], special=True))]
