"""Records and requests become prompts by the file's template."""

import json

import pytest
from helpers import tiny

from pyspec.batch import Record, Settings
from pyspec.batch.maker import AnswerMaker
from pyspec.engine.target import TargetLlama
from pyspec.errors import ContextOverflow, InputError, TemplateError
from pyspec.requests.bodies import read_body, records_of
from pyspec.vocab import GuardedTokenizer

SHOWN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ mood }}"


@pytest.fixture
def maker(tmp_path):
    opened = []

    def make(template, **settings):
        path = tiny.write_vocabulary(tmp_path / f"{len(opened)}.gguf", template, ["<|im_end|>"])
        opened.append(TargetLlama(str(path), vocab_only=True, trust=True, verbose=False))
        return AnswerMaker(opened[-1], Settings(**settings), 4096), opened[-1]

    yield make
    for llm in opened:
        llm.close()


@pytest.mark.parametrize("record", [
    Record(id="a", messages=[{"role": "user", "content": "a" * 900_000}]),
    Record(id="b", prompt="a" * 900_000, form="completion"),
    Record(id="c", messages=[{"role": "user", "content": ""}] * 35_000),
])  # fmt: skip
def test_what_is_too_long_for_sure_is_not_tokenised(maker, record, monkeypatch):
    """Making 225,000 tokens to refuse them took a second, and rendering 35,000 turns 25."""
    made, _ = maker(SHOWN)
    monkeypatch.setattr(GuardedTokenizer, "tokenize", None)
    with pytest.raises(ContextOverflow, match="at least"):
        made.answer(0, record)
    assert made.count(record) > 4096


def prompt(made, record):
    maker, llm = made
    return llm.detokenize(maker.answer(0, record).tokens, special=True).decode()


def test_prompt_is_a_turn_behind_the_batchs_system_text(maker):
    made = maker(SHOWN, system="Be brief.")
    assert prompt(made, Record(id="a", prompt="hi")) == "[system]Be brief.[user]hi"
    assert prompt(made, Record(id="a", prompt="hi", system="S")) == "[system]S[user]hi"


def test_lines_and_requests_bring_template_variables(maker):
    made = maker(SHOWN)
    record = Record(id="a", prompt="hi", chat_template_kwargs={"mood": "!"})
    assert prompt(made, record) == "[user]hi!"
    assert prompt(made, asked("hi", chat_template_kwargs={"mood": "?"})) == "[user]hi?"
    assert record.sha256 != Record(id="a", prompt="hi").sha256  # a batch that goes on asks anew


def asked(text, **more):
    body = {"messages": [{"role": "user", "content": text}], **more}
    (record,) = records_of(read_body("/v1/chat/completions", json.dumps(body).encode()))
    return record


def test_plain_words_where_there_is_no_template(maker):
    made = maker(None)
    llm = made[1]
    turns = [{"role": "user", "content": "hi"}]
    assert prompt(made, Record(id="a", prompt="hi")) == "hi"
    assert prompt(made, Record(id="a", prompt="hi", system="S")) == "S\n\nUser: hi\nAssistant:"
    job = made[0].answer(0, Record(id="a", messages=turns))
    reader = job.reader
    text = llm.tokenize(b" yes\nUser: no", add_bos=False)
    said = "".join(part.text for part in [*reader.push(text), *reader.finish()])
    assert (said, reader.done) == (" yes", True)


def test_refusal_of_a_template_is_the_requests_fault(maker):
    record = Record(id="a", prompt="x")
    with pytest.raises(InputError, match="no such turn") as caught:
        maker("{{ raise_exception('no such turn') }}")[0].answer(0, record)
    assert caught.value.http[0] == 400
    with pytest.raises(TemplateError) as broken:
        maker("{% for %}")[0].answer(0, record)
    assert broken.value.http[0] == 503


EFFORTS = (
    "{% if reasoning_effort not in ['high', 'no_think'] %}{{ raise_exception('word') }}{% endif %}"
    "{{ reasoning_effort }} {{ messages[0].content }}"
)


def test_effort_is_asked_for_in_the_templates_words(maker):
    assert prompt(maker(EFFORTS), asked("x", reasoning_effort="none")) == "no_think x"
