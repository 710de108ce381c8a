"""What drafts for a batch: the same words mean the same parts as for one text."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from helpers import devices, tiny, tiny_dflash
from helpers.fake_batch import texts
from helpers.tiny import F32
from msgspec import structs

from pyspec.batch import Settings
from pyspec.draft.goodput import GoodputPolicy
from pyspec.engine.contexts import FEW, Models
from pyspec.engine.handle import Engine
from pyspec.engine.target import SNAPSHOTS
from pyspec.errors import DraftMismatch
from pyspec.gguf.header import facts_of
from pyspec.requests.records import Record, SpeculationBody
from pyspec.sampling.options import Sampling
from pyspec.sampling.verification import Strict

ALONE = [Record(id="alone", prompt="ab", max_tokens=60)]
MANY = [Record(id=str(i), prompt=chr(97 + i) * (2 + i), max_tokens=30) for i in range(12)]


@pytest.fixture(params=["tokens", "states"])
def other(request, tmp_path):
    """A draft of other tokens, or one that reads layers which the target does not have."""
    if request.param == "states":
        return tiny_dflash.write(tmp_path / "other.gguf", layers=[3, 99])
    tokens = list(tiny.TOKENS)
    tokens[9], tokens[14] = tokens[14], tokens[9]
    return tiny.write(tmp_path / "other.gguf", tokens=tokens)


@pytest.fixture
def drafted(monkeypatch):
    """How many sequences the draft model drafted for, by call."""
    calls, draft = [], Engine.draft

    def counted(self, seqs, *how, **more):
        calls.append(len(seqs))
        draft(self, seqs, *how, **more)

    monkeypatch.setattr(Engine, "draft", counted)
    return calls


def find(monkeypatch, path):
    here = SimpleNamespace(path=path, name=path.stem, origin="a test")
    monkeypatch.setattr("pyspec.engine.assembly.drafts_here", lambda _: iter([here]))


@devices.for_processors(devices.STREAMS)
def test_one_client_gets_drafts_and_many_none(open_batch, tiny_draft, monkeypatch, drafted):
    find(monkeypatch, tiny_draft)
    options = {"parallel": 8, "interactive": True, **F32}
    batch, plain = open_batch(draft="auto", **options), open_batch(**options)
    assert texts(batch, ALONE) == texts(plain, ALONE)
    assert drafted
    assert texts(batch, MANY) == texts(plain, MANY)
    assert batch.stats()["streams"]
    assert max(drafted) <= FEW


def test_a_few_answers_share_the_model(open_batch, tiny_draft, monkeypatch, drafted):
    find(monkeypatch, tiny_draft)
    batch = open_batch(draft="auto", parallel=4, **F32)
    assert batch.facts["draft"] == "lookup+draft"
    assert texts(batch, MANY) == texts(open_batch(parallel=4, **F32), MANY)
    assert max(drafted) > FEW


def test_each_answer_has_the_length_that_it_asks_for(open_batch, tiny_draft):
    batch = open_batch(draft=tiny_draft, length="fixed:4", parallel=4, **F32)
    alone = texts(open_batch(parallel=4, **F32), MANY)
    wanted = {"0": "fixed:0", "1": "fixed:2", "2": None, "3": "auto"}
    for i, record in enumerate(MANY[: len(wanted)]):
        job = batch.maker.answer(i, record)
        asked = replace(job.options.speculation, length=wanted[record.id])
        job.options = replace(job.options, speculation=asked)
        batch.submit(job)
    found = {result.id: result for result in batch.stream()}
    assert [found[name].text for name in wanted] == alone[: len(wanted)]
    verified = {name: result.speculation for name, result in found.items()}
    assert verified["0"]["verified"] == 0
    assert len(verified["1"]["accepted_by_position"]) <= 2
    assert verified["2"]["verified"] > verified["1"]["verified"] > 0


@pytest.fixture
def hybrid(tmp_path):
    """A model whose memory goes back by the states that llama.cpp keeps."""
    return tiny.write(tmp_path / "hybrid.gguf", arch="qwen35", n_layer=4)


AGAIN = [
    Record(id=f"{i}-{n}", prompt=chr(97 + i) * 3, max_tokens=30) for n in (1, 2) for i in range(4)
]
"""Texts that lookup knows the second time."""


@pytest.mark.parametrize("parallel", [1, 4])
def test_auto_drafts_for_a_hybrid(open_batch, hybrid, parallel):
    batch = open_batch(hybrid, draft="auto", parallel=parallel, memory=True, **F32)
    assert batch.facts["draft"] == "lookup"
    assert texts(batch, AGAIN) == texts(open_batch(hybrid, parallel=parallel, **F32), AGAIN)
    assert batch.stats()["drafted"] > 0


@devices.for_processors(devices.STREAMS)
def test_a_hybrid_drafts_for_one_client_over_streams(open_batch, hybrid):
    options = {"parallel": 8, "interactive": True, **F32}
    plain = open_batch(hybrid, **options)
    batch = open_batch(hybrid, draft="auto", memory=True, **options)
    for record in AGAIN[::4]:
        assert texts(batch, [record]) == texts(plain, [record])
    assert batch.stats()["drafted"] > 0
    assert texts(batch, MANY) == texts(plain, MANY)


def test_a_head_drafts_for_many(open_batch, tmp_path):
    headed = tiny.write(tmp_path / "headed.gguf", arch="qwen35", n_layer=4, n_heads=1)
    batch = open_batch(headed, draft="auto", parallel=4, **F32)
    assert batch.facts["draft"] == "lookup+mtp"
    assert texts(batch, MANY) == texts(open_batch(headed, parallel=4, **F32), MANY)
    assert batch.stats()["drafted"] > 0


@pytest.mark.parametrize(("share", "kept"), [(1.0, 0), (4.0 * 16, 1), (4.0 * 16 * 100, SNAPSHOTS)])
def test_states_are_kept_as_far_as_memory_goes(hybrid, tiny_target, monkeypatch, share, kept):
    facts = facts_of(hybrid)
    monkeypatch.setattr(
        "pyspec.engine.contexts.machine_memory", lambda: int(share * facts.state) + 1
    )
    assert Models._snapshots(hybrid, "auto", 16, {}) == kept
    assert (
        Models._snapshots(tiny_target, "auto", 64, {}) == SNAPSHOTS
    )  # a model without states needs no memory for them
    models = Models(str(hybrid), "auto", "none", at_once=16, n_threads=1)
    drafts = models.parts.drafter is not None
    models.close()
    assert drafts == (kept > 0)


def test_a_found_model_that_cannot_draft_is_left_out_and_a_named_one_refused(
    open_batch, other, monkeypatch, caplog
):
    find(monkeypatch, other)
    batch = open_batch(draft="auto")
    texts(batch, ALONE)
    assert "not used as drafts for this model: other.gguf (" in caplog.text
    assert batch.facts["draft"] == "lookup"
    with pytest.raises(DraftMismatch, match="other"):
        texts(open_batch(draft=other, **F32), ALONE)


def test_answers_teach_those_that_are_drawn_as_they_are(open_batch, tiny_draft, monkeypatch):
    """Requests at temperature 0 share rounds with sampled ones, and nothing else: what they accept is no word on draws."""
    monkeypatch.setattr(GoodputPolicy, "_pays", lambda *_: True)
    settings = Settings(max_tokens=16, raw=True, sampling=Sampling(temperature=0.8))
    batch = open_batch(draft=tiny_draft, length="auto", settings=settings, parallel=4)
    begun = batch._policies.of(None)
    list(batch.run([structs.replace(one, temperature=0.0) for one in MANY]))
    assert sum(begun.learned.calibration.seen) == 0.0
    batch._policies._kinds[9] = Strict(), "greedy"
    greedy = begun.learned_of([9])
    assert sum(greedy.calibration.seen) > 0.0
    seen = list(greedy.calibration.seen)
    list(batch.run(MANY))
    assert sum(begun.learned.calibration.seen) > 0.0
    assert greedy.calibration.seen == seen


def test_a_record_says_how_it_speculates(open_batch, tiny_ascii):
    loose = {"verify": "margin", "gap": 9, "theta": 0}
    asked = {"off": {"enabled": False}, "loose": loose, "own": {}}
    usual = {"prompt": "ab" * 8, "max_tokens": 30}
    records = [
        Record(id=name, speculation=SpeculationBody(**how), **usual) for name, how in asked.items()
    ]
    batch = open_batch(tiny_ascii, draft="lookup", parallel=4)
    told = {result.id: result.speculation for result in batch.run(records)}
    assert [told[name]["verification"] for name in asked] == ["strict", "margin", "strict"]
    assert (told["off"]["drafted"], told["off"]["draft"]) == (0, "none")
    assert told["own"]["drafted"] > 0


def test_settings_of_the_margin_rule_need_the_rule(open_batch):
    """Nothing that is asked is left aside."""
    batch = open_batch()
    for how in (SpeculationBody(theta=0.5), SpeculationBody(confirm=1)):
        (result,) = batch.run([Record(id="a", prompt="ab", speculation=how)])
        assert result.error is not None
        assert ("theta" in result.error.message) is (how.theta is not None)
