"""Grammars of calls: they take what their families write, and nothing that is no call."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import astuple

import llama_cpp
import pytest
from helpers import call_examples, tiny
from helpers.call_examples import FAMILIES, NOW, WRITTEN, written
from helpers.matched import follows
from text.test_calls import notation_of

from pyspec.engine.target import TargetLlama
from pyspec.grammar.languages import Language, of_gbnf
from pyspec.grammar.schemas import of_schema, tool_schema
from pyspec.text.call_grammar import AnswerGrammar
from pyspec.text.notation import DEEPSEEK_FENCED, LLAMA, MISTRAL_IDS, THINK, Notation

Takes = Callable[..., bool]

CASES = [(family, what) for family in FAMILIES for what in WRITTEN]
CASES.remove(("GPT_OSS", "several"))
FUNCTIONS = {name: tool_schema(schema) for name, schema in call_examples.FUNCTIONS.items()}
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    path = tmp_path_factory.mktemp("marks") / "marks.gguf"
    tiny.write(path, tokens=[*tiny.ASCII, *"ö\uff5c"], marks=MARKS)
    with closing(TargetLlama(str(path), trust=True, n_ctx=64, verbose=False)) as opened:
        yield opened


@pytest.fixture(scope="module")
def takes(llm):
    vocab, ids = llm._model.vocab, {}
    for token in range(llm.n_vocab()):
        ids[llama_cpp.llama_vocab_get_text(vocab, token).decode()] = token

    def taken(language, *pieces):
        text = [c for piece in pieces for c in ([piece] if piece in MARKS else piece)]
        shown = [c.replace("\u2581", "_").replace(" ", "\u2581") for c in text]
        spelled = Language(*(part.replace("\u2581", "_") for part in astuple(language)))
        return follows(llm, spelled, [ids[c] for c in shown])

    return taken


@pytest.mark.parametrize(("family", "what"), CASES)
def test_each_family_may_write_its_calls(family, what, takes):
    grammar = AnswerGrammar(notation_of(family)).calls(FUNCTIONS)
    text = written(family, WRITTEN[what]).removesuffix("<|call|>")  # which ends the answer
    assert takes(grammar, text)
    other = text.replace("weather", "winter").replace("write_file", "winter") + "x"
    assert not any(takes(grammar, each) for each in (text[:-1], other, "Yes."))


@pytest.mark.parametrize("family", FAMILIES)
def test_one_function_alone_may_be_asked_for(family, takes):
    grammar = AnswerGrammar(notation_of(family), many=False).calls({"now": FUNCTIONS["now"]})
    assert not takes(grammar, written(family, [NOW, NOW]).removesuffix("<|call|>"))


@pytest.mark.parametrize(("template", "text"), [
    ("<|tool_call>call:", '<|tool_call>call:weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>'),
    ("<|tool_call_start|>", '<|tool_call_start|>[weather(city="Rome", days=3)]<|tool_call_end|>'),
    ("<|tool_call_start|>", "<|tool_call_start|>[now()]<|tool_call_end|>"),
    ("<|START_ACTION|>", '<|START_ACTION|>[\n{"tool_name": "now", "parameters": {}}\n]<|END_ACTION|>'),
    ("<minimax:tool_call>",
     '<minimax:tool_call><invoke name="weather"><parameter name="city">Rome</parameter></invoke></minimax:tool_call>'),
    ("<|tools_prefix|>", '<|tools_prefix|>[{"now": {}}, {"weather": {"city": "Rome"}}]<|tools_suffix|>'),
    (DEEPSEEK_FENCED, next(text for what, text, *_ in FAMILIES["DEEPSEEK"] if what == "3, several")), # its older form
    (MISTRAL_IDS, '[TOOL_CALLS]weather[CALL_ID]abcdef123[ARGS]{"city": "Paris"}'),
])  # fmt: skip
def test_further_families(template, text, takes):
    notation = Notation.of(template) if isinstance(template, str) else Notation(calls=template)
    assert takes(AnswerGrammar(notation).calls(FUNCTIONS), text)


CALL = written("HERMES", [NOW])


@pytest.mark.parametrize(("start", "right", "wrong"), [
    ("inside", [f"Hm.</thin</think>\n\n{CALL}"], [CALL]),
    ("free", [CALL, f"<think>Hm.</think>{CALL}"], [f"Hm.</think>{CALL}"]),
    ("behind", [CALL], [f"<think>Hm.</think>{CALL}"]),
])  # fmt: skip
def test_reasoning_comes_before_a_call_that_is_asked_for(takes, start, right, wrong):
    grammar = AnswerGrammar(Notation(THINK), start=start).calls(FUNCTIONS)
    assert all(takes(grammar, text) for text in right)
    assert not any(takes(grammar, text) for text in wrong)


def test_marks_are_tokens_where_they_are_some(takes, llm):
    """A call that is asked for is not spelled out, and text that spells a mark ends nothing."""
    tokens = {mark: llm.tokenize(mark.encode(), False, True)[0] for mark in MARKS}
    grammar = AnswerGrammar(Notation(THINK), start="inside", token_of=tokens.get).calls(FUNCTIONS)
    call = ("<tool_call>", '{"name": "now", "arguments": {}}', "</tool_call>")
    assert takes(grammar, "Hm.</thin", "</think>", *call)
    assert not takes(grammar, "Hm.", "</think>", *list("<tool_call>"), *call[1:])


def test_content_of_a_shape_comes_behind_reasoning(takes):
    number = {"properties": {"n": {"type": "integer"}}, "required": ["n"]}
    schema = of_schema({"type": "object", **number})
    assert AnswerGrammar(Notation()).after_reasoning(schema) == schema
    for made, text in (
        (AnswerGrammar(Notation(THINK), start="inside"), 'Hm.</think>\n\n{"n": 3}'),
        (AnswerGrammar(Notation(THINK)), '{"n": 3}'),
        (AnswerGrammar(Notation(channels=True)), '<|channel|>final<|message|>{"n": 3}'),
    ):
        assert takes(made.after_reasoning(schema), text)


def test_a_callers_own_grammar_comes_behind_reasoning(takes):
    """However it is laid out, unless it has the marks itself."""
    text = '# an answer\nroot   ::=\n  "a" b\nb ::= "c"\n'
    own = AnswerGrammar(Notation(THINK), start="inside").after_reasoning(of_gbnf(text))
    assert takes(own, "Hm.</think>ac")
    assert not takes(own, "ac")
    marked = of_gbnf('root ::= "a</think>b"')
    assert AnswerGrammar(Notation(THINK)).after_reasoning(marked) == marked


def test_content_or_calls(takes):
    schema, llamas = of_schema({"type": "object"}), '{"name": "now", "parameters": {}}'
    for notation, call in ((Notation(), CALL), (Notation(calls=LLAMA), llamas)):
        either = AnswerGrammar(notation).content_or_calls(schema, FUNCTIONS)
        assert takes(either, '{"n": 3}')
        assert takes(either, call)
        assert not takes(either, "Yes.")


def test_a_grammar_waits_for_the_mark(takes):
    language, mark = AnswerGrammar(Notation()).lazy(FUNCTIONS) or (Language(""), "")
    assert mark == "<tool_call>"
    assert takes(language, CALL)
    for other in (Notation(calls=LLAMA), Notation(channels=True)):
        assert AnswerGrammar(other).lazy(FUNCTIONS) is None
