"""From tokens to parts: marks that are control tokens, stop strings, why an answer ended, and budgets for reasoning."""

from contextlib import closing
from functools import partial

import pytest
from helpers import scripted, tiny
from helpers.call_examples import FUNCTIONS
from helpers.matched import may_come
from hypothesis import given
from hypothesis import strategies as st

from pyspec.batch import Batch, Settings
from pyspec.engine.options import AnswerOptions
from pyspec.engine.target import TargetLlama
from pyspec.errors import InputError, OptionError
from pyspec.grammar.masks import Masks
from pyspec.llama.generation import stream_text
from pyspec.requests.bodies import ChatBody, decoded, records_of
from pyspec.requests.records import Record
from pyspec.sampling.options import Sampling
from pyspec.serve.messages import MessagesBody
from pyspec.serve.responses import ResponsesBody
from pyspec.text.answer import AnswerReader, Budget, ReasoningLimit, Speech, reasoning_end
from pyspec.text.notation import THINK, Notation
from pyspec.text.parser import AnswerParser
from pyspec.text.parts import Result, result_of
from pyspec.text.stream import StopFinder
from pyspec.vocab import piece_reader

MARKS = ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]", "<|other|>")


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    path = tmp_path_factory.mktemp("marks") / "marks.gguf"
    tiny.write(path, tokens=tiny.ASCII, marks=MARKS)
    with closing(TargetLlama(str(path), trust=True, n_ctx=64, verbose=False)) as opened:
        yield opened


@pytest.fixture
def speech(llm):
    piece = piece_reader(llm._model.vocab)
    return Speech(["[THINK] [/THINK] [TOOL_CALLS] [ARGS]"], llm.tokenizer_, piece)


def ids_of(llm, text):
    return list(llm.tokenize(text.encode(), add_bos=False, special=True))


def read(reader, ids):
    return Result.of([p for token in ids for p in reader.push([token])] + reader.finish())


def test_a_reader_knows_that_a_character_has_begun():
    """An answer in Python goes on behind max_tokens until it is whole."""
    reader = AnswerReader([b"\xe6\x97", b"\xa5"].__getitem__)
    reader.push([0])
    assert reader.halfway is True
    reader.push([1])
    assert reader.halfway is False


def test_tools_that_are_too_many_for_a_grammar_keep_their_names(llm, speech):
    """Agents may have hundreds: their schemas are then left out of the grammar, and the request is no error."""
    schema = {"type": "object", "properties": {f"p{n}": {"enum": [n]} for n in range(600)}}
    made = speech.shape([], functions={f"tool_{n}": schema for n in range(200)})
    assert made is not None
    masks = Masks(made, llm)
    for token in ids_of(llm, "[TOOL_CALLS]tool_19"):
        masks.accept(token)
    assert may_come(masks, *ids_of(llm, "9"))
    assert not may_come(masks, *ids_of(llm, "x"))


def test_marks_that_are_control_tokens(llm, speech):
    ids = ids_of(llm, "[THINK]Hm.[/THINK]So<|other|>.[TOOL_CALLS]now[ARGS]{}")
    reader = speech.reader(ids_of(llm, "x"), functions=FUNCTIONS)
    answer = read(reader, ids)
    assert (answer.reasoning, answer.text) == ("Hm.", "So.")
    assert [call["function"]["name"] for call in answer.calls] == ["now"]
    assert [reader.reason(each) for each in ("stop", "length")] == ["tool_calls", "length"]
    without = read(speech.reader([]), ids_of(llm, "a[TOOL_CALLS]b"))
    assert (without.text, without.calls) == ("ab", [])
    assert read(AnswerReader(speech.piece, ["z"]), ids_of(llm, "<think>x yz")).text == "<think>x y"


def test_the_prompt_says_where_an_answer_begins(llm, speech):
    assert speech.start(ids_of(llm, "user[THINK]\n")) == "inside"
    assert speech.start(ids_of(llm, "[THINK]user")) == "free"
    assert speech.start(ids_of(llm, "user[THINK]\n\n[/THINK]\n")) == "behind"
    reader = speech.reader(ids_of(llm, "user[THINK]"))
    assert read(reader, ids_of(llm, "Hm")).reasoning == "Hm"
    assert reader.inside


def thinking(stop=(), **how):
    parser = AnswerParser(Notation(THINK), functions=FUNCTIONS)
    return AnswerReader(lambda token: chr(token).encode(), stop, parser, **how)


def test_stop_strings_end_content_alone():
    reader = thinking(["END"])
    call = '<tool_call>{"name": "now", "arguments": {"x": "END"}}</tool_call>'
    answer = read(reader, [ord(c) for c in f"<think>END</think>a EN{call}D b END c"])
    assert (answer.reasoning, answer.text) == ("END", "a END b ")
    assert [call["function"]["arguments"] for call in answer.calls] == ['{"x": "END"}']
    assert reader.done


@pytest.mark.parametrize("cut", range(5, 52))
def test_a_demanded_call_that_is_cut_is_no_text(cut):
    call = '<tool_call>{"name": "now", "arguments": {"x": "a b"}}</tool_call>'
    answer = read(thinking(forced=True), [ord(c) for c in f"<think>Hm.</think>{call[:cut]}"])
    assert (answer.reasoning, answer.text, answer.calls) == ("Hm.", "", [])


CLOSE = "</think>"
TURN = [{"role": "user", "content": "a"}]


class Reader:
    """Reasons from the start to the token 9; the token 195 ends inside a character."""

    reasoned, inside, halfway = 0, True, False

    def push(self, ids):
        self.inside, self.halfway = self.inside and ids != [9], ids == [0xC3]
        self.reasoned += self.inside


@pytest.mark.parametrize(("most", "tokens", "due"), [
    (2, [1, 1, 8, 9, 1, 1], [None, None, 8, 9, None, None, None]),
    (2, [1, 9, 1, 1], [None] * 5), # reasoning that ends by itself is left alone
    (0, [], [8]), # no budget ends it at once
    (1, [0xC3, 2], [None, None, 8]), # half a character is finished first
    (1, [1, 5, 1, 1], [None, 8, None, None, None]), # what something else forbids is not forced
])  # fmt: skip
def test_after_so_many_tokens_the_end_has_to_come(most, tokens, due):
    found = Budget(Reader(), most, [8, 9])
    seen = [found.next]
    for token in tokens:
        found.accept(token)
        seen.append(found.next)
    assert seen == due


@pytest.mark.parametrize(("notation", "architecture", "text"), [
    (Notation(THINK), "llama", "\n</think>\n\n"),
    (Notation.of("[THINK]"), "mistral", "[/THINK]"),
    (Notation(channels=True), "gpt-oss", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    (Notation(), "llama", ""),
])  # fmt: skip
def test_each_family_has_its_end(notation, architecture, text):
    assert reasoning_end(notation, architecture) == text
    why = "\n\nConsidering the limited time by the user"
    assert reasoning_end(Notation(THINK), "qwen3moe").startswith(why)


@pytest.mark.parametrize(("kind", "given"), [
    (ChatBody, {"reasoning_budget": 7}),
    (ChatBody, {"thinking": {"type": "enabled", "budget_tokens": 7}}),
    (ChatBody, {"reasoning": {"max_tokens": 7}}),
    (MessagesBody, {"thinking": {"type": "enabled", "budget_tokens": 7}}),
    (ResponsesBody, {"reasoning": {"max_tokens": 7}}),
])  # fmt: skip
def test_each_api_has_its_name_for_it(kind, given):
    about = {"input": TURN} if kind is ResponsesBody else {"messages": TURN}
    (record,) = records_of(kind(**about, **given))
    assert record.reasoning_budget == 7
    with pytest.raises(InputError, match="budget_tokens"):
        decoded(ChatBody, b'{"messages": [], "thinking": {"budget_tokens": "many"}}')


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    return scripted.write(tmp_path_factory.mktemp("x"), behind=scripted.THINKS)


HOT = Sampling(temperature=0.8, seed=3)


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0.0), HOT, Sampling(seed=3, noise="llama.cpp")]
)
def test_an_answer_has_so_much_reasoning(thinker, open_llama, sampling):
    """With drafts and without, however tokens are drawn; the text before the end is that of no budget."""
    llm = open_llama(thinker, trust=True, draft="lookup", length="fixed:3")
    prompt = llm.template.prompt(TURN)
    ask = partial(stream_text, llm, prompt, chat=True)
    limited = AnswerOptions(sampling, max_tokens=40, reasoning=ReasoningLimit(12))
    said = result_of(list(ask(limited)), llm.last_speculation)
    free = result_of(list(ask(AnswerOptions(sampling, max_tokens=12))), llm.last_speculation)
    assert said.reasoning == free.reasoning.rstrip()
    whole = b"".join(llm.piece(token.id) for token in said.tokens).decode()
    assert whole.index(f"\n{CLOSE}\n\n") == 12
    assert said.text


def test_a_batch_counts_it(thinker):
    """A record's budget comes before that of all; tokens of the end are reasoning too."""
    settings = Settings(Sampling(temperature=0.0, seed=0), max_tokens=40, reasoning_budget=5)
    budgets = {"all": None, "own": 9, "free": -1, "quiet": 0}
    given = [Record(id=name, messages=TURN, reasoning_budget=n) for name, n in budgets.items()]
    with Batch(str(thinker), draft="none", settings=settings, n_ctx=256, trust=True) as batch:
        found = {result.id: result.reasoned for result in batch.run(given)}
    most = len(f"\n{CLOSE}") - 1
    assert found == {"all": 5 + most, "own": 9 + most, "free": 40, "quiet": 0}


def test_a_grammar_holds_behind_it(thinker):
    how = {"structured_outputs": {"choice": ["yes", "no"]}, "reasoning_budget": 6}
    with Batch(str(thinker), draft="none", n_ctx=256, trust=True) as batch:
        (result,) = batch.run(records_of(ChatBody(messages=TURN, temperature=0.0, **how)))
    assert result.text in ("yes", "no")
    assert result.finish_reason == "stop"


def shown(pieces, stop):
    """What each token of an answer shows, and its end."""

    def text(parts):
        return "".join(part.text for part in parts)

    reader = AnswerReader(pieces.__getitem__, stop)
    made = [*(text(reader.push([i])) for i in range(len(pieces))), text(reader.finish())]
    assert reader.done is any(each.encode() in b"".join(pieces) for each in stop)
    return made


@pytest.mark.parametrize(("pieces", "stop", "wanted"), [
    (["é".encode()[:1], "é".encode()[1:]], (), ["", "é", ""]),
    ([b"\xe2\x82"], (), ["", "\ufffd"]),
    ([b"a EN", b"Dless", b" way"], ("END.",), ["a ", "ENDless", " way", ""]),
    ([b"a EN"], ("END",), ["a ", "EN"]),
    ([b"one", b" STOP two", b"one"], ("STOP",), ["one", " ", "", ""]),
    ([b"x BB AA"], ("AA", "BB"), ["x ", ""]),
], ids=["half a character", "damaged bytes", "possible stop", "half a stop", "stop", "earliest stop"])  # fmt: skip
def test_text_is_shown_as_soon_as_it_is_safe(pieces, stop, wanted):
    assert shown(pieces, stop) == wanted


@pytest.mark.parametrize("stops", [tuple(map(str, range(1000))), ("x" * 10_000,), ("",), "END"])
def test_stop_strings_that_are_too_many_too_long_empty_or_no_list_are_refused(stops):
    with pytest.raises(OptionError, match="stop string"):
        StopFinder(stops)


@given(st.text(alphabet="ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4)))
def test_stops_are_found_where_a_plain_search_finds_them(text, stops):
    """The first one to be complete, the longest of those that end there; nothing of a possible one is shown before."""
    places = ((end, stop) for stop in stops for end in range(len(stop), len(text) + 1))
    found = [(end, -len(stop)) for end, stop in places if text[:end].endswith(stop)]
    wanted = text[: sum(min(found))] if found else text
    for pieces in (list(text), [text]):
        finder = StopFinder(stops)
        assert "".join(map(finder.push, pieces)) + finder.finish() == wanted
