"""The architectures that people run: each by lookup, by drafts, four at once, from a state, from a prefix, to the last position.

Texts are those of llama-cpp-python, a token a decode, but for places where two tokens are as likely as rounding makes them.
"""

import traceback
from pathlib import Path

import pytest
from faults.cases import load
from helpers import devices, tiny_archs
from helpers.answers import ask, ask_at_once
from helpers.forked import run_child, told

from pyspec.engine.contexts import Layout, Models
from pyspec.engine.target import TargetLlama
from pyspec.errors import UnsupportedModel
from pyspec.gguf.kinds import NO_STATES

NAMES = ["llama", "qwen35", "gemma3", "deepseek2", "mamba2", "gpt-oss"]
"""One of each kind of memory: plain, hybrid with states that go back, sliding, latent, recurrent, sliding with sinks."""
_MORE = """
qwen2 qwen3 qwen3moe qwen3next gemma2 gemma3n gemma4 phi3 mistral3 olmo2 glm4 granite granitehybrid falcon-h1 lfm2 rwkv7 cohere2
exaone4 smollm3
"""

PROMPT = [100, 101, 102, 100, 101, 102, 100, 101]
OTHERS = [PROMPT, [103, 104, 103], [110, 111, 112, 113, 110], [120, 121] * 6]
N, N_CTX = 24, 256
EXACT = {"n_ctx": N_CTX, "n_threads": 1, "flash_attn": False}
NEAR = 0.02
"""Nats between two tokens that rounding may swap."""
MAX_NEAR_TIES = 1
"""Of the twelve answers of a model, how many may leave the reference at such a place."""


class Reference:
    """What llama-cpp-python answers, a token a decode."""

    def __init__(self, path):
        self._llm = TargetLlama(str(path), trust=True, verbose=False, logits_all=True, **EXACT)
        self.near_ties = 0

    def differs(self, prompt, found):
        """What is wrong with an answer; empty where it is the reference's, or where it left it at a near tie."""
        self._llm.reset()
        self._llm.eval(prompt)
        for i, token in enumerate(found):
            row = self._llm.scores[self._llm.n_tokens - 1]
            best = int(row.argmax())
            if token != best:
                lost = float(row[best] - row[token])
                self.near_ties += lost < NEAR
                return "" if lost < NEAR else f"token {i} is {token}, not {best}, by {lost:.3f}"
            if self._llm.n_tokens < N_CTX:
                self._llm.eval([token])
        return ""


def by(path, draft, **options):
    """A model with drafts, or without where its memory cannot be rolled back."""
    try:
        return load(path, draft=draft, length="fixed:3", **{**EXACT, **options})
    except UnsupportedModel as error:
        if "rolled back" not in str(error):
            raise
        return load(path, **{**EXACT, **options})


def drafts_as_known(llm):
    known, drafted = Path(llm.model_path).stem not in NO_STATES, llm.last_speculation["drafted"]
    return "" if known == (drafted > 0) else f"{drafted} drafted, and it {known=}"


def by_lookup(path, draft, reference):
    """Its own text continued, and said again, when all of it is known."""
    with by(path, "lookup", memory=True) as llm:
        wrong = reference.differs(PROMPT, ask(llm, PROMPT, N).ids)
        return wrong or reference.differs(PROMPT, ask(llm, PROMPT, N).ids) or drafts_as_known(llm)


def by_draft(path, draft, reference):
    with by(path, str(draft)) as llm:
        return reference.differs(PROMPT, ask(llm, PROMPT, N).ids) or drafts_as_known(llm)


def by_itself(path, draft, reference):
    """The same file as its own draft: everything is accepted, and states go on."""
    with by(path, str(path)) as llm:
        wrong = reference.differs(PROMPT, ask(llm, PROMPT, N).ids)
        few = llm.last_speculation["drafted"] and llm.last_speculation["accepted"] < N // 2
        return wrong or (f"{llm.last_speculation}" if few else "")


def four_at_once(path, draft, reference):
    options = {"n_threads": 1, "n_threads_batch": 1, "flash_attn": False, "trust": True}
    try:
        models = Models(str(path), str(draft), "none", **options)
    except UnsupportedModel:
        models = Models(str(path), "none", "none", **options)
    layout = Layout(N_CTX)  # phi3's positions depend on the context
    runs = ask_at_once(models, OTHERS, [N] * len(OTHERS), n_ctx=N_CTX, layout=layout)
    found = [reference.differs(p, r.tokens[len(p) :]) for p, r in zip(OTHERS, runs)]
    return "; ".join(filter(None, found))


def from_a_state(path, draft, reference):
    with by(path, "lookup") as llm:
        text = [*PROMPT, *ask(llm, PROMPT, 8).ids]
        state = llm.save_state()
        ask(llm, OTHERS[1], 5)
        llm.load_state(state)
        return reference.differs(text, ask(llm, text, N).ids)


def from_a_prefix(path, draft, reference):
    with by(path, str(draft)) as llm:
        text = [*PROMPT, *ask(llm, PROMPT, 10).ids]
        longer, other = [*text, 115, 116], [*text[:12], 117]
        wrong = reference.differs(longer, ask(llm, longer, N).ids)
        return wrong or reference.differs(other, ask(llm, other, N).ids)


def to_the_last_position(path, draft, reference):
    with by(path, str(draft)) as llm:
        prompt = [100 + i % 7 for i in range(N_CTX - 20)]
        answer = ask(llm, prompt, None)
        full = len(prompt) + len(answer.ids) >= N_CTX or answer.finish_reason == "stop"
        return reference.differs(prompt, answer.ids) or (
            "" if full else f"{len(answer.ids)} tokens"
        )


WAYS = [
    by_lookup, by_draft, by_itself, four_at_once, from_a_state, from_a_prefix, to_the_last_position,
]  # fmt: skip


def all_ways(path, draft):
    wrong = {}
    reference = Reference(path)
    for way in WAYS:
        try:
            said = way(path, draft, reference)
        except BaseException:  # noqa: BLE001 - it is what is looked for
            said = traceback.format_exc()[-700:]
        if said:
            wrong[way.__name__] = said
    return wrong, reference.near_ties


@pytest.fixture(scope="module")
def drafts(tmp_path_factory):
    """Two small models of the words that all of them have."""
    folder = tmp_path_factory.mktemp("drafts")
    for arch in ("llama", "qwen2"):
        assert tiny_archs.write(folder / f"{arch}.gguf", arch)
    return [folder / "llama.gguf", folder / "qwen2.gguf"]


@pytest.mark.parametrize(
    "arch", [*NAMES, *(pytest.param(name, marks=pytest.mark.slow) for name in _MORE.split())]
)
def test_families(arch, drafts, tmp_path, monkeypatch, own_cache):
    """Each in a fork, so that one that ended the process would be known by its name."""
    if not devices.LAYERS:  # a fork of a process with an RPC device waits for the device for ever
        monkeypatch.setattr("pyspec.gguf.check.run_child", run_child)
    path = tmp_path / f"{arch}.gguf"
    assert tiny_archs.write(path, arch)
    wrong, near_ties = told(all_ways, path, drafts[arch == "llama"], timeout=200)
    assert wrong == {}
    assert near_ties <= MAX_NEAR_TIES
