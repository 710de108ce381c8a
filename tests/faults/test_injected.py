"""Cases 24 and 26 at every place: ends and failing decodes, each once or from there on, under the whole of Python.

llama.cpp's functions are replaced in the extension's table, as SQLite's tests do it. Allocations fail in their turns in
native/tests/test_faults.c.
"""

import ctypes

import llama_cpp
import msgspec
import pytest
from helpers import tiny
from helpers.answers import GREEDY, ask

from pyspec._lib import check, ffi, lib
from pyspec.batch import Batch, Settings
from pyspec.cli.main import main
from pyspec.draft.simple import FixedPolicy
from pyspec.engine.handle import Role
from pyspec.errors import EngineError
from pyspec.sampling.verification import Margin

PROMPT = [tiny.A, tiny.A + 1, tiny.A + 2]
ERRORS = (1, -1, -3)
"""Of a decode: no room in the KV, a bad batch, and a computation that failed; 2 is a cancel."""

lasting = pytest.mark.parametrize("lasts", [False, True], ids=["once", "from-there-on"])


class Fault:
    """A function of llama.cpp's with ours before it, `answer`. Of the calls that ask `bad`, the `at`-th is; 0 for none."""

    def __init__(self, name, *kinds):
        names = (lib.ps_api_name(i) for i in range(999))
        self._index = next(i for i, found in enumerate(names) if ffi.string(found) == name.encode())
        kind = ctypes.CFUNCTYPE(*kinds)
        self.call = kind(self._address(getattr(llama_cpp.llama_cpp._lib, name)))
        self._mine = kind(self.answer)  # kept as long as the extension may call it
        self.disarm()
        self._bind(self._mine)

    @staticmethod
    def _address(function):
        return ctypes.cast(function, ctypes.c_void_p).value

    def _bind(self, function):
        check(lib.ps_api_bind(self._index, ffi.cast("void *", self._address(function))))

    def restore(self):
        """llama.cpp's own again."""
        self._bind(self.call)

    def disarm(self):
        """No call is bad from here on; `failed` says how many were."""
        self.at = 0

    def each(self, lasts, step=1):
        """Places of the first bad call, further on turn by turn, until a turn had none; lasts: with all behind it."""
        at, self._lasts, self.failed = 0, lasts, 1
        while self.failed:
            at += step
            self.at, self._seen, self.failed = at, 0, 0
            yield at

    def bad(self):
        if not self.at:
            return False
        self._seen += 1
        bad = self._seen == self.at or (self._lasts and self._seen > self.at)
        self.failed += bad
        return bad


class Decodes(Fault):
    """They give an error instead of decoding; only for the contexts of one role."""

    def __init__(self):
        self.contexts, self.role = {}, Role.TARGET
        super().__init__("llama_decode", ctypes.c_int32, ctypes.c_void_p, llama_cpp.llama_batch)

    def answer(self, context, batch):
        if self.contexts.get(context, Role.TARGET) is self.role and self.bad():
            return ERRORS[self.at % 3]
        return self.call(context, batch)


class Ends(Fault):
    """Any token may be the end of generation."""

    def __init__(self):
        super().__init__("llama_vocab_is_eog", ctypes.c_bool, ctypes.c_void_p, ctypes.c_int32)

    def answer(self, vocab, token):
        return self.bad() or self.call(vocab, token)


def injecting(kind):
    @pytest.fixture
    def made():
        faults = kind()
        yield faults
        faults.restore()

    return made


decodes, ends = injecting(Decodes), injecting(Ends)


@pytest.fixture
def both(tiny_target, tiny_draft, tiny_companion, monkeypatch):
    """A target with a draft and a companion, which both work in every round, whatever time they take."""
    plan = FixedPolicy.plan
    monkeypatch.setattr(
        FixedPolicy, "plan", lambda *seen: msgspec.structs.replace(plan(*seen), use_companion=True)
    )
    sides = {"draft": tiny_draft, "companion": tiny_companion, "length": "fixed:4"}
    return {"path": tiny_target, "n_ctx": 512, **sides}


@pytest.fixture
def llm(open_llama, both, decodes):
    llm = open_llama(**both)
    decodes.contexts = {
        int(ffi.cast("uintptr_t", side.context)): role
        for role, side in zip((Role.DRAFT, Role.COMPANION), llm.assembly.models)
    }
    return llm


@lasting
@pytest.mark.parametrize("role", [Role.DRAFT, Role.COMPANION])
def test_a_failing_side_changes_no_text(llm, decodes, role, lasts):
    loop, decodes.role = llm.assembly.loop, role
    reference = ask(llm, PROMPT).ids
    for k in decodes.each(lasts):
        loop.draft_model = loop.companion = True  # what failed is left out for good
        assert ask(llm, PROMPT).ids == reference, k
    assert k > 5  # it was used, and failed at each of these places
    assert ask(llm, PROMPT).ids == reference


@lasting
def test_a_failing_target_is_one_error(llm, decodes, lasts):
    reference = ask(llm, PROMPT).ids
    for k in decodes.each(lasts):
        ids: list[int] = []
        try:
            for step in llm.steps(PROMPT, GREEDY, max_tokens=40):
                ids += [token.id for token in step.tokens]
            assert not decodes.failed, k
        except EngineError:
            assert decodes.failed, k
        assert ids == reference[: len(ids)], k
        decodes.disarm()
        assert ask(llm, PROMPT).ids == reference, k
    assert k > 5


@lasting
def test_a_failing_target_ends_no_batch(tiny_target, decodes, lasts):
    prompts = ["abc", "bcd", "cde"]
    options = {"draft": "none", "companion": "none", "n_ctx": 256, "parallel": 2, "n_threads": 1}
    settings = Settings(max_tokens=8, raw=True)
    with Batch(str(tiny_target), settings=settings, **options) as batch:
        wanted = [result.text for result in batch.run(prompts)]
        for k in decodes.each(lasts):
            results = list(batch.run(prompts))
            decodes.disarm()
            assert len(results) == len(prompts), k
            right = [result.error or result.text == text for result, text in zip(results, wanted)]
            assert all(right), (k, results)
            assert decodes.failed or not any(result.error for result in results), k
            assert [result.text for result in batch.run(prompts)] == wanted, k
    assert k > 5


@lasting
def test_a_failing_target_is_one_sentence(tiny_target, decodes, lasts, capfd):
    words = ["-m", str(tiny_target), "--draft", "none", "--raw", "--temp", "0", "-n", "24", "-t", "1", "-c", "256"]  # fmt: skip

    def command():
        with pytest.raises(SystemExit) as end:
            main(["generate", "abc", *words, "--trust-model", "--no-stats", "--no-log"])
        return int(end.value.code or 0), *capfd.readouterr()

    code, reference, _ = command()
    assert (code, len(reference) > 20) == (0, True)
    for k in decodes.each(lasts, 3):
        code, text, said = command()
        assert code == min(1, decodes.failed), k
        assert reference.startswith(text.rstrip("\n")), k
        assert said.startswith("pyspec: ") is bool(code), said
        assert len(said.splitlines()) == 1, said
    assert k > 12


@lasting
@pytest.mark.parametrize("theta", [1.0, 0.5], ids=["strict", "margin"])
def test_an_end_anywhere_is_the_end(open_llama, both, ends, theta, lasts):
    llm = open_llama(**both, verification=Margin(theta, budget=0.0))
    reference = ask(llm, PROMPT, 24).ids
    inside = 0
    for k in ends.each(lasts):
        answer = ask(llm, PROMPT, 24)
        assert answer.ids == reference[: len(answer.ids)], k
        assert answer.finish_reason == "stop" or answer.ids == reference, k
        assert llm.input_ids[: llm.n_tokens].tolist() == (PROMPT + answer.ids)[: llm.n_tokens], k
        assert llm.n_tokens >= len(PROMPT) + len(answer.ids) - 1, k
        inside += answer.finish_reason == "stop" and answer.flags[-1] == "a"
        ends.disarm()
        assert ask(llm, PROMPT, 24).ids == reference, k
    assert inside > 5  # drafted tokens that were accepted, and the end
