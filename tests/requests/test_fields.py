"""Every field that the APIs' own clients can send is honoured, harmless if it is ignored, or refused."""

import inspect
import json
import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

from pyspec.errors import InputError
from pyspec.requests.bodies import UNDONE, ChatBody, CompletionBody, decoded, records_of
from pyspec.serve.completions import InfillBody
from pyspec.serve.fleet import EmbeddingBody
from pyspec.serve.messages import CountBody, MessagesBody
from pyspec.serve.ollama import OllamaChat, OllamaText
from pyspec.serve.responses import ResponsesBody

pytest.importorskip("openai", reason="the extra [test] is not installed")
pytest.importorskip("anthropic", reason="the extra [test] is not installed")

DOCS = Path(__file__).parents[2] / ".docs" / "pages" / "fields.md"
MESSAGES = [{"role": "user", "content": "hello"}]
ASKED = {
    ChatBody: {"messages": MESSAGES},
    CompletionBody: {"prompt": "hello"},
    ResponsesBody: {"input": "hello"},
    MessagesBody: {"messages": MESSAGES},
    CountBody: {"messages": MESSAGES},
    InfillBody: {"input_prefix": "hello"},
    OllamaText: {"prompt": "hello"},
    OllamaChat: {"messages": MESSAGES},
}

CALLS = [
    ("openai.resources.chat.completions:Completions.create", ChatBody),
    ("openai.resources.completions:Completions.create", CompletionBody),
    ("openai.resources.responses:Responses.create", ResponsesBody),
    ("anthropic.resources.messages:Messages.create", MessagesBody),
    ("anthropic.resources.messages:Messages.count_tokens", CountBody),
    ("anthropic.resources.beta.messages:Messages.create", MessagesBody),
    ("anthropic.resources.beta.messages:Messages.count_tokens", CountBody),
]
"""The clients' methods, and what reads such a request."""

OF_THE_CLIENT = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}


def listed(kind, field):
    """How a field of this kind of request is treated; None if nobody has thought of it."""
    if field in kind.refused():
        return "refused"
    if field in SAMPLES and (field in UNDONE or field not in kind.__struct_fields__):
        return "harmless"
    return "honoured" if field in kind.__struct_fields__ else None


@pytest.mark.parametrize(("method", "kind"), CALLS)
def test_each_field_is_in_a_list(method, kind):
    """A client that has learnt a new one has to be answered in one of the three ways."""
    given = inspect.signature(resolve_name(method)).parameters.keys() - OF_THE_CLIENT
    assert [field for field in given if not listed(kind, field)] == []


def test_each_field_of_embeddings_is_honoured():
    """But the user's name: nothing of theirs is kept."""
    fields = inspect.signature(resolve_name("openai.resources.embeddings:Embeddings.create"))
    known = {*EmbeddingBody.__struct_fields__, "user", *OF_THE_CLIENT}
    assert fields.parameters.keys() <= known


SAMPLES = {
    "access_programs": {"cyber": "standard"},
    "background_options": {"completion_window": "soonest"}, "betas": ["a-1"],
    "billing_policy": {"type": "billing_policy", "bill_to": "self"},
    "cache_control": {"type": "ephemeral"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "diagnostics": {"previous_message_id": "msg_1"}, "fallback_credit_token": "t",
    "fallbacks": [{"model": "other"}], "image": {"context_compression": "auto"}, "n_indent": 4,
    "response_fields": ["content", "timings/prompt_n"], "t_max_predict_ms": 500,
    "inference_geo": "eu", "max_tool_calls": 3, "metadata": {"topic": "a"},
    "output_config.task_budget": {"type": "tokens", "total": 1000}, "prompt_cache_key": "k",
    "prompt_cache_retention": "24h", "reasoning.context": "all_turns",
    "reasoning.generate_summary": "auto", "reasoning.mode": "standard", "reasoning.summary": "auto",
    "service_tier": "flex", "speed": "fast", "store": True,
    "stream_options.include_obfuscation": True, "text.verbosity": "low",
    "thinking.block_binding": "none", "thinking.display": "omitted", "user_profile_id": "u",
    "verbosity": "low", "workspace_id": "w", "add_special_tokens": False, "cache_salt": "a",
    "guided_decoding_backend": "xgrammar", "id_slot": -1, "request_id": "a",
}  # fmt: skip
SAMPLES |= dict.fromkeys(re.findall(r"\S+", """
        backend_sampling cache_prompt n_cache_reuse n_keep post_sampling_probs speculative.n_max speculative.n_min
        speculative.p_min sse_ping_interval t_max_prompt_ms timings_per_token length_penalty priority
        spaces_between_special_tokens keep_alive truncate shift add_generation_prompt continue_final_message
"""), 1)  # fmt: skip
"""A value of each field that is harmless."""


def records(kind, **asked):
    return records_of(decoded(kind, json.dumps({**ASKED[kind], **asked}).encode()))


def setting(field):
    outer, _, inner = field.partition(".")
    return {outer: {inner: SAMPLES[field]} if inner else SAMPLES[field]}


@pytest.mark.parametrize("kind", ASKED)
def test_a_harmless_field_asks_for_the_same(kind):
    harmless = [field for field in SAMPLES if listed(kind, field) == "harmless"]
    plain = records(kind)
    assert [field for field in harmless if records(kind, **setting(field)) != plain] == []


def test_a_harmless_field_is_explained():
    """The page of fields says why it is ignored, or the server's page, for ollama's."""
    page = DOCS.read_text()
    told = page[page.index("## Ignored") : page.index("## Refused")]
    words = set(re.findall(r"`([^`]+)`", told)) | {"keep_alive", "truncate", "shift"}
    assert {field.split(".")[-1] for field in SAMPLES} <= words


WANTED = dict.fromkeys(UNDONE, True) | {
    "add_special_tokens": False, "context": [1], "include": ["message.output_text.logprobs"],
    "include_reasoning": False, "n_cmpl": 2, "parse_tool_calls": False, "reasoning_format": "none",
    "skip_special_tokens": False, "modalities": ["text", "audio"], "n_probs": 3,
    "template": "{{ .Prompt }}",
    "mcp_servers": [{"type": "url", "url": "https://a.invalid", "name": "a"}], "n_predict": 8,
    "prompt_logprobs": 0, "prompt_cache_options": {"prewarm": True}, "suffix": "b",
    "top_n_sigma": 1.0, "truncation": "auto", "typ_p": 0.5,
}  # fmt: skip
"""A value that asks for something, of each field that is refused."""

NOTHING = {
    "add_special_tokens": True, "adaptive_target": -1, "include_reasoning": True, "lora": [], "n_cmpl": 1,
    "n_indent": 0, "parse_tool_calls": True, "reasoning_budget_tokens": -1, "reasoning_format": "auto",
    "repeat_last_n": 64, "return_progress": False, "skip_special_tokens": True, "t_max_predict_ms": 0,
    "background": False, "container": None, "include": ["reasoning.encrypted_content"],
    "ignore_eos": False, "mcp_servers": [], "min_tokens": 0, "mirostat": 0,
    "modalities": ["text"], "n_predict": -1, "prompt_cache_options": {"mode": "explicit"}, "stop_token_ids": [],
    "suffix": "", "top_n_sigma": -1, "truncation": "disabled", "typ_p": 1,
}  # fmt: skip


@pytest.mark.parametrize("field", UNDONE)
def test_a_refused_field_is_refused_by_its_name_unless_it_asks_for_nothing(field):
    """Programs send their defaults."""
    kinds = [kind for kind in ASKED if field in kind.refused()]
    assert kinds
    for kind in kinds:
        with pytest.raises(InputError, match=rf"^{field} .*\(.+\)$"):
            records(kind, **{field: WANTED[field]})
        assert records(kind, **{field: NOTHING.get(field)}) == records(kind)


def test_the_samplers_of_editors_are_taken_in_their_order():
    """llama.vim names those that it sets, and `infill`."""
    samplers = ["top_k", "top_p", "infill"]
    assert records(InfillBody, samplers=samplers) == records(InfillBody)
    for wrong in (samplers[::-1], ["top_k", "top_k"], ["best"], "kp", {"top_k": 1}):
        with pytest.raises(InputError, match="samplers is not"):
            records(InfillBody, samplers=wrong)


def test_the_page_lists_what_is_refused():
    """And names what is to be used instead."""
    told = DOCS.read_text().partition("## Refused")[2]
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", told))))
    assert {*UNDONE} <= words
    others = "400 1 auto best_of disabled false n options structured_outputs tools"
    assert words - {*UNDONE} <= {*others.split()}
