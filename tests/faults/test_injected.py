"""Cases 24, 26 and 27 at every place: ends, decodes and allocations, each once or from there on, under the whole of Python.

llama.cpp's functions are replaced in the extension's table, and the C library's in what the extension imports.
"""

import sys

import msgspec
import pytest
from faults.inject import Allocations, Decodes, Ends
from helpers import tiny
from helpers.answers import GREEDY, ask

from pyspec._lib import ffi, lib
from pyspec.batch import Batch, Settings
from pyspec.cli.main import main
from pyspec.draft.simple import FixedPolicy
from pyspec.engine.handle import Role
from pyspec.engine.round import Outage
from pyspec.errors import EngineError
from pyspec.sampling.verification import Margin

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads ELF and /proc/self/maps")
PROMPT = [tiny.A, tiny.A + 1, tiny.A + 2]

lasting = pytest.mark.parametrize("lasts", [False, True], ids=["once", "from-there-on"])


def injecting(kind):
    @pytest.fixture
    def made():
        faults = kind()
        yield faults
        faults.restore()

    return made


decodes, ends, allocations = injecting(Decodes), injecting(Ends), injecting(Allocations)


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
def llm(open_llama, both):
    return open_llama(**both)


@pytest.fixture
def parts(llm, decodes):
    decodes.contexts = {
        int(ffi.cast("uintptr_t", side.context)): role
        for role, side in zip((Role.DRAFT, Role.COMPANION), llm.assembly.models)
    }
    return llm


@pytest.fixture
def command(both, capfd):
    files = ["-m", str(both["path"]), "--draft", str(both["draft"])]
    files += ["--companion", str(both["companion"])]
    files += ["--raw", "--temp", "0", "-n", "24", "-t", "1", "-c", "256"]
    options = ["--trust-model", "--no-stats", "--no-log"]

    def run(*more):
        with pytest.raises(SystemExit) as end:
            main(["generate", "abc", *files, *options, "--length", "fixed:4", *more])
        return int(end.value.code or 0), *capfd.readouterr()

    return run


@lasting
@pytest.mark.parametrize("role", [Role.DRAFT, Role.COMPANION])
def test_a_failing_side_changes_no_text(parts, decodes, role, lasts):
    llm, loop, decodes.role = parts, parts.assembly.loop, role
    reference = ask(llm, PROMPT).ids
    for k in decodes.each(lasts):
        # else it sits out whole answers
        loop._draft_outage, loop._score_outage = Outage(), Outage()
        assert ask(llm, PROMPT).ids == reference, k
    assert k > 5  # it was used, and failed at each of these places
    assert ask(llm, PROMPT).ids == reference


@lasting
def test_a_failing_target_is_one_error(parts, decodes, lasts):
    llm = parts
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
def test_a_failing_target_is_one_sentence(command, decodes, lasts):
    code, reference, _ = command("--draft", "none", "--companion", "none")
    assert (code, len(reference) > 20) == (0, True)
    for k in decodes.each(lasts, 3):
        code, text, said = command("--draft", "none", "--companion", "none")
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


@lasting
def test_a_failing_allocation_is_one_error(open_llama, both, allocations, lasts):
    reference = ask(open_llama(**both), PROMPT).ids
    errors = 0
    for k in allocations.each(lasts):
        llm, code = None, lib.PS_E_NOMEM
        try:
            llm = open_llama(**both)
            assert ask(llm, PROMPT).ids == reference, k
        except EngineError as error:
            errors, code = errors + 1, error.code
        assert code == lib.PS_E_NOMEM, k
        allocations.disarm()
        if llm is not None:
            assert ask(llm, PROMPT).ids == reference, k
            llm.close()
    assert min(errors, k) > 5
