"""Structured output by other people's programs: through processors, grammars, and by decoding on the context itself."""

import json

import llama_cpp
import pytest
from clients.conftest import OPTIONS, accepted

pytestmark = pytest.mark.filterwarnings("ignore")
SCHEMA = {
    "type": "object", "required": ["yes", "n"],
    "properties": {"yes": {"type": "boolean"}, "n": {"enum": [1, 2, 3]}},
}  # fmt: skip


def test_outlines_json(both, tiny_ascii):
    pytest.importorskip("numba", reason="install pyspec-llama[clients]")
    outlines = pytest.importorskip("outlines", reason="install pyspec-llama[clients]")
    from outlines.types import JsonSchema

    def client():
        llm = llama_cpp.Llama(str(tiny_ascii), chat_format="llama-2", **OPTIONS)
        model = outlines.from_llamacpp(llm)
        text = model("abcabd", JsonSchema(json.dumps(SCHEMA)), max_tokens=60, temperature=0.0)
        return text, accepted(llm)

    theirs, ours = both(client)
    assert ours[0] == theirs[0]
    assert set(json.loads(ours[0])) == {"yes", "n"}
    assert ours[1] > 0


def test_outlines_choice_and_stream(both, tiny_ascii):
    """A choice, streamed: two answers of one model object, each with a processor of its own."""
    pytest.importorskip("numba", reason="install pyspec-llama[clients]")
    outlines = pytest.importorskip("outlines", reason="install pyspec-llama[clients]")
    from typing import Literal

    def client():
        llm = llama_cpp.Llama(str(tiny_ascii), chat_format="llama-2", **OPTIONS)
        choice, how = Literal["abcabd", "abcxyz", "zzz"], {"max_tokens": 20, "temperature": 0.0}
        generator = outlines.Generator(outlines.from_llamacpp(llm), choice)
        whole = [generator("abcabd", **how) for _ in range(2)]
        return [*whole, "".join(generator.stream("abcabd", **how))]

    theirs, ours = both(client)
    assert ours == theirs


def test_lm_format_enforcer(both, smollm2):
    """Its processor masks by the ids it is shown, so wrong ids would show; lookup drafts what is copied."""
    integration = pytest.importorskip(
        "lmformatenforcer.integrations.llamacpp", reason="install pyspec-llama[clients]"
    )
    from lmformatenforcer import JsonSchemaParser

    prompt = 'As JSON: {"yes": true, "n": 2}\nThe same again: {"yes": true, "n": 2}\nOnce more: '

    def client():
        llm = llama_cpp.Llama(str(smollm2), **OPTIONS)
        processor = integration.build_llamacpp_logits_processor(llm, JsonSchemaParser(SCHEMA))
        only = llama_cpp.LogitsProcessorList([processor])
        result = llm(prompt, logits_processor=only, max_tokens=40, temperature=0.0)
        return result["choices"][0]["text"], accepted(llm)

    theirs, ours = both(client, draft="lookup")
    assert ours[0] == theirs[0]
    assert set(json.loads(ours[0])) == {"yes", "n"}
    assert ours[1] > 0


def test_guidance_and_we_share_a_context(both, smollm2):
    """Guidance decodes on the context by itself, between our answers; neither disturbs the other."""
    guidance = pytest.importorskip("guidance", reason="install pyspec-llama[clients]")
    options = {"max_tokens": 12, "temperature": 0.0}

    def client():
        llm = llama_cpp.Llama(str(smollm2), **{**OPTIONS, "n_ctx": 512})
        first = llm("one two three four", **options)["choices"][0]["text"]
        lm = guidance.models.LlamaCpp(llm, echo=False)
        lm += "The capital of France is " + guidance.select(["Paris", "Rome"], name="city")
        again = llm("one two three four", **options)["choices"][0]["text"]
        assert again == first or type(llm) is llama_cpp.Llama
        return first, lm["city"]

    theirs, ours = both(client, draft="lookup")
    assert ours == theirs
