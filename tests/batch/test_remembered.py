"""What other requests said, at every door: it drafts for the same owner and changes no text."""

import pytest
from helpers import devices, tiny
from helpers.answers import ask

from pyspec.batch.run import Settings
from pyspec.draft.lookup import NOTHING, Drafter
from pyspec.requests.records import Record
from pyspec.sampling.options import Sampling

DRAWN = Settings(Sampling(temperature=1.2, seed=5), max_tokens=80)
"""A text that does not repeat itself, the same at each time it is asked for."""

SAMPLED = Sampling(temperature=1.2, seed=5)
PROMPT = [tiny.A + n for n in (0, 3, 1, 4, 1, 5, 9, 2, 6)]


def say(batch, record=None):
    (result,) = batch.run([record or Record(id="a", prompt="ab")])
    assert result.error is None
    return result.text, result.speculation["accepted"]


@pytest.fixture
def open_drawn(open_batch):
    usual = {"draft": "lookup", "length": "fixed:8", "settings": DRAWN, "parallel": 2, **tiny.F32}
    return lambda **more: open_batch(**{**usual, **more})


@pytest.mark.parametrize("how", ["kept", "anew", "without"])
def test_a_batch_drafts_what_another_record_said(open_drawn, how):
    batch = open_drawn(memory=how != "without")
    text, before = say(batch)
    if how == "anew":
        batch._close_contexts()
    again, accepted = say(batch)
    assert again == text
    assert accepted == before if how == "without" else accepted > before + 30


@devices.for_processors(devices.STREAMS)
def test_what_is_said_beside_many_is_remembered(open_drawn):
    """Nothing is drafted there, and so nothing was looked up; answers that come alone draft from it all the same."""
    many = [Record(id=name, prompt="ab" + name) for name in "abcdefgh"]
    options = {"draft": "auto", "parallel": 8, "interactive": True}
    _, alone = say(open_drawn(**options), many[0])
    batch = open_drawn(**options)
    said = {result.id: result.text for result in batch.run(many)}
    text, accepted = say(batch, many[0])
    assert text == said["a"]
    assert accepted > alone + 30


def test_a_drafter_hears_the_whole_of_a_text(open_llama, tiny_target):
    class Listener(Drafter):
        def propose(self, seq, tokens, limit):
            return NOTHING

        def end(self, seq, tokens):
            heard.append(list(tokens))
            raise ValueError("no")

    heard = []
    llm = open_llama(tiny_target, draft=Listener(), length="fixed:0")
    answer = ask(llm, PROMPT, 8)
    assert [text[: len(PROMPT) + 8] for text in heard] == [[*PROMPT, *answer.ids]]


def test_the_class_remembers_where_it_is_asked(open_llama, tiny_target):

    def accepted(llm):
        ask(llm, [tiny.A], 4)  # another text
        ask(llm, PROMPT, 80, SAMPLED)
        return llm.last_speculation["accepted"]

    options = {"draft": "lookup", "length": "fixed:8"}
    for memory, gains in ((False, False), (True, True)):
        llm = open_llama(tiny_target, memory=memory, **options)
        first = accepted(llm)
        assert (accepted(llm) > first + 30) is gains
        llm.close()
