"""The run: order, resuming, turns; and the peer that needs no program."""

from contextlib import closing

import pytest
from measure.bench import Runner, run_bench
from measure.contenders import Files, Ours, open_peer
from measure.equal import first_differences
from measure.questions import Question
from measure.records import RunLog, TimedAnswer, describe, read_run_records
from measure.tasks import Options, PeerMissing, Task, parse_modes

from pyspec.errors import EngineError

OPTIONS = Options(max_tokens=8, warm_up=0)
QUESTIONS = [Question(1, "a", ["abc", "more"]), Question(2, "b", ["xyz xyz"])]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    """No other program works here, whatever works there: a disturbed answer is timed again."""
    monkeypatch.setattr("pyspec.machine.machine.Watch.others", lambda _watch: 0.0)


class Fake:
    """A contender that answers with the prompt's length, and may fail."""

    exact = peer = False

    def __init__(self, name, log, fails=False):
        self.name, self._log, self._fails = name, log, fails

    def forget(self):
        self._log.append(f"forget {self.name}")

    def answer(self, prompt, max_tokens, options):
        self._log.append(self.name)
        if self._fails:
            raise EngineError("it broke")
        return TimedAnswer(len(prompt), [5, 6], "length", 0.1, 0.1, 0.2)

    def close(self):
        self._log.append(f"close {self.name}")


@pytest.fixture
def llm(open_llama, tiny_ascii):
    return open_llama(tiny_ascii, draft="lookup", length="auto")


def runner(llm, path, contenders):
    setup = describe(llm, {}, OPTIONS, QUESTIONS, llm.n_ctx())
    return Runner(llm, contenders, OPTIONS, RunLog(path, setup))


def test_questions_are_interleaved_and_the_order_turns(llm, tmp_path):
    log: list[str] = []
    runner(llm, tmp_path / "r", [Fake("x", log), Fake("y", log)]).run(QUESTIONS)
    said = "forget x, x, x, forget y, y, y, forget y, y, forget x, x"
    assert log == said.split(", ")


def test_an_interrupted_run_goes_on_where_it_stopped(llm, tmp_path):
    log: list[str] = []
    runner(llm, tmp_path / "r", [Fake("x", log)]).run(QUESTIONS[:1])
    log.clear()
    records = runner(llm, tmp_path / "r", [Fake("x", log)]).run(QUESTIONS)
    assert log == ["forget x", "x"]
    assert [r.question_id for r in records] == [1, 2]


def test_a_failure_is_kept_and_the_run_goes_on(llm, tmp_path):
    log: list[str] = []
    contenders = [Fake("bad", log, fails=True), Fake("x", log)]
    asked = [QUESTIONS[1], Question(3, "a", ["z" * 600])]
    *records, long, other = runner(llm, tmp_path / "r", contenders).run(asked)
    assert [(r.who, r.error) for r in records] == [("bad", "it broke"), ("x", "")]
    assert "does not fit" in long.error
    assert "does not fit" in other.error


def test_a_later_turn_has_the_earlier_answer_in_its_prompt(llm, tmp_path):
    contenders = [Ours(llm, mode) for mode in parse_modes("plain")]
    (record,) = runner(llm, tmp_path / "r", contenders).run(QUESTIONS[:1])
    first, second = record.turns
    assert second.prompt_tokens > first.prompt_tokens + len(first.tokens)
    # the answer's last token is not in the KV yet when the next prompt comes
    assert second.speculation["prompt_kept"] >= first.prompt_tokens


def test_bench_agrees_with_llama_cpp_and_writes_its_page(llm, tmp_path):
    told: list[str] = []
    task = Task(
        QUESTIONS, parse_modes("plain,strict,model+strict"), OPTIONS, tmp_path,
        peers=["llama_cpp", "server"], server=tmp_path / "none",
    )  # fmt: skip
    results = run_bench(llm, task, lambda *_: None, told.append)
    assert [s.who for s in results.summaries] == ["plain", "strict", "llama_cpp"]
    assert results.differences == []
    assert any("no draft model" in note for note in told)
    assert any("no llama-server" in note for note in told)
    assert {"runs.jsonl", "README.md", "results.json"} <= {p.name for p in tmp_path.iterdir()}
    assert len(read_run_records(tmp_path / "runs.jsonl")) == 6


def test_drawn_texts_are_compared_too(llm, tmp_path):
    """Noise is coupled, so strict says what plain says; who draws numbers of its own is not compared."""
    how = Options(max_tokens=8, warm_up=0, temperature=2.0)
    modes = parse_modes("plain,strict,strict+apart")
    task = Task(QUESTIONS, modes, how, tmp_path, peers=["llama_cpp"])
    results = run_bench(llm, task, lambda *_: None, print)
    exact = {s.who: s.exact for s in results.summaries}
    assert exact == {"plain": True, "strict": True, "strict+apart": False, "llama_cpp": False}
    assert results.differences == []
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert ("All were equal" in page, "Greedy answers" in page) == (True, False)


def test_lookup_peer_answers_like_plain(llm, tiny_ascii, tmp_path):
    with closing(open_peer("llama_cpp-lookup", Files(tiny_ascii, None, 256, 1), None)) as peer:
        contenders = [Ours(llm, parse_modes("plain")[0]), peer]
        records = runner(llm, tmp_path / "r", contenders).run(QUESTIONS)
    assert len(records) == 4
    assert first_differences(records) == []


@pytest.mark.parametrize(
    ("name", "draft"), [("server-draft", "eagle"), ("server-eagle3:2", "llama")]
)
def test_a_draft_of_another_kind_is_not_given_to_a_server(name, draft, tiny_draft, tiny_eagle3):
    """llama-server would end on it."""
    path = tiny_eagle3 if draft == "eagle" else tiny_draft
    with pytest.raises(PeerMissing, match="not a file for draft-"):
        open_peer(name, Files(tiny_draft, path, 64, 1), tiny_draft)


def test_a_server_that_dies_is_missing_and_its_last_words_are_told(tiny_draft, tmp_path):
    """They are its options here: drafts are drawn where a peer says so."""
    program = tmp_path / "llama-server"
    program.write_text('#!/bin/sh\necho "$@" | grep -o -e --spec-draft-.* >&2\nexit 1\n')
    program.chmod(0o755)
    files = Files(tiny_draft, tiny_draft, 64, 1)
    with pytest.raises(PeerMissing, match="-draft-sampling probabilistic --spec-draft-n-max 3"):
        open_peer("server-draft-sampled:3", files, program)
