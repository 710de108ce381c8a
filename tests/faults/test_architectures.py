"""A random file of every architecture that llama.cpp knows answers rightly, or is refused by a sentence."""

import traceback
from typing import Any

import pytest
from faults.cases import load
from helpers import tiny_archs
from helpers.forked import run_child, told

from pyspec.engine.target import TargetLlama
from pyspec.errors import PyspecError, UnsupportedModel
from pyspec.sampling.options import Sampling

pytestmark = pytest.mark.usefixtures("own_cache")

PROMPT = [100, 101, 102, 100, 101, 102, 100, 101]
N = 12
EXACT: dict[str, Any] = {"n_ctx": 128, "n_threads": 1, "flash_attn": False}
NEAR = 0.02
"""Nats between two tokens that rounding may swap."""


def plain(path):
    """What llama-cpp-python answers, a token a decode, and how far each token was ahead of the next likely one."""
    llm = TargetLlama(str(path), trust=True, verbose=False, logits_all=True, **EXACT)
    found, ahead = [], []
    llm.eval(PROMPT)
    for _ in range(N):
        row = llm.scores[llm.n_tokens - 1]
        best = int(row.argmax())
        first, second = sorted(row)[:-3:-1]
        found.append(best)
        ahead.append(float(first - second))
        llm.eval([best])
    return found, ahead


def answers(path):
    try:
        with drafting(path) as llm:
            steps = llm.steps(PROMPT, Sampling(temperature=0.0), max_tokens=N)
            ids = [token.id for step in steps for token in step.tokens]
        wanted, ahead = plain(path)
        same = next((i for i, (a, b) in enumerate(zip(ids, wanted)) if a != b), len(ids))
        right = same == len(ids) or ahead[same] < NEAR
        said = "right" if right else "wrong", f"{ids} {wanted} {ahead}"
    except PyspecError as error:
        said = "refused", str(error)
    except BaseException:  # noqa: BLE001 - it is what is looked for
        said = "traceback", traceback.format_exc()[-1500:]
    return said


def drafting(path):
    try:
        return load(path, draft="lookup", length="fixed:3", **EXACT)
    except UnsupportedModel as error:
        if "rolled back" not in str(error):
            raise
        return load(path, **EXACT)


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
