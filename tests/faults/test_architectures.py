"""A random file of every architecture that llama.cpp knows answers rightly, or is refused by a sentence."""

import traceback

import pytest
from engine.test_family_table import PROMPT, Reference, by
from helpers import tiny_archs
from helpers.answers import ask
from helpers.forked import run_child, told

from pyspec.errors import PyspecError

pytestmark = pytest.mark.usefixtures("own_cache")


def answers(path):
    """How it answers, and why so; right at a near tie is right."""
    try:
        with by(path, "lookup") as llm:
            ids = ask(llm, PROMPT, 12).ids
        wrong = Reference(path).differs(PROMPT, ids)
    except PyspecError as error:
        return "refused", str(error)
    except BaseException:  # noqa: BLE001 - it is what is looked for
        return "traceback", traceback.format_exc()[-1500:]
    return "wrong" if wrong else "right", wrong


FEW = sorted({*tiny_archs.REFUSED, *tiny_archs.NAMES[::6]})
_MORE = (name for name in tiny_archs.NAMES if name not in FEW)


@pytest.mark.parametrize("arch", [*FEW, *(pytest.param(n, marks=pytest.mark.slow) for n in _MORE)])
def test_architectures(arch, tmp_path, monkeypatch):
    """Each in a fork, so that one that ended the process would be known by its name."""
    monkeypatch.setattr("pyspec.gguf.check.run_child", run_child)
    path = tmp_path / f"{arch}.gguf"
    whole = tiny_archs.write(path, arch)
    kind, why = told(answers, path)
    assert (whole, kind) == (True, "right") or arch in tiny_archs.REFUSED, why
    assert (kind, f"{arch}.gguf" in why) == ("refused", True) or arch not in tiny_archs.REFUSED, why
