"""Fields of requests that are refused, since ignoring them would change the answer; and the types of members at any depth.

A body refuses those that it has and its kind of request does not support. `.docs/pages/fields.md` says why others are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from pyspec.errors import InputError, ThreadUnsupported
from pyspec.requests.records import RequestFields

Schema = dict[str, Any] | bool


@dataclass(frozen=True)
class Undone:
    """A refused field, and the error's sentences."""

    why: str = "is not supported"
    hint: str = "leave it out"
    asks: Callable[[Any], bool] = bool  # whether a value has an effect; others are accepted
    kind: type[InputError] = InputError


def _unless(*values: Any) -> Callable[[Any], bool]:
    """Whether a value is none of these; true is no 1."""
    return lambda value: (
        not any(
            value == each and isinstance(value, bool) == isinstance(each, bool) for each in values
        )
    )


def _positive(value: Any) -> bool:
    return type(value) not in (int, float) or value > 0


def _same(undone: Undone, names: str) -> dict[str, Undone]:
    return dict.fromkeys(names.split(), undone)


_EDITORS = ["top_k", "top_p", "infill"]  # llama.vim names those that it sets, in their order
_BUDGET = Undone(hint="use reasoning_budget", asks=_unless(-1))
_STORED = Undone(
    "needs stored responses, and none are stored", "send the whole conversation as input"
)
_ANYWHERE = {
    **_same(
        Undone(), "suffix preserved_tokens reasoning_budget_message return_progress guided_whitespace_pattern"
        " include_stop_str_in_output kv_transfer_params mm_processor_kwargs return_tokens_as_token_ids vllm_xargs mirostat"
        " min_tokens ignore_eos use_beam_search",
    ),
    **_same(Undone(asks=_positive), "top_n_sigma adaptive_target min_keep n_indent"),
    **_same(Undone(hint="use logit_bias"), "logits_processors bad_words allowed_token_ids"),
    **_same(Undone(hint="use structured_outputs"), "guided_choice guided_grammar guided_json guided_regex"),
    **_same(Undone(hint="send tools, whose calls are held to their form"), "grammar_lazy grammar_triggers"),
    # OpenAI's
    "moderation": Undone("is not done here"),
    "prompt_cache_options": Undone(
        "asks for no answer (prewarm)", "send max_tokens 0", lambda v: not isinstance(v, dict) or bool(v.get("prewarm"))
    ),
    # llama-server's and vLLM's
    "n_predict": Undone(hint="use max_tokens", asks=_unless(-1)),
    "typ_p": Undone(asks=_unless(1)),
    "chat_format": Undone("comes with the model"),
    "lora": Undone(hint="merge the adapter into the model's file"),
    "n_cmpl": Undone(hint="use n", asks=_unless(1)),
    "parse_tool_calls": Undone("is always done", "leave tools out", _unless(True)),
    "reasoning_budget_tokens": _BUDGET,
    "reasoning_format": Undone("cannot be chosen", asks=_unless("auto", "deepseek")),
    "repeat_last_n": Undone("is always 64", asks=_unless(64)),
    "response_fields": Undone("cannot be chosen"),
    "t_max_predict_ms": Undone(hint="use max_tokens, or close the connection", asks=_positive),
    "thinking_forced_open": Undone(hint="use chat_template_kwargs"),
    "include_reasoning": Undone("is always done", "ask for none by enable_thinking", _unless(True)),
    "return_token_ids": Undone(hint="send the content to /tokenize"),
    "skip_special_tokens": Undone("is always done", asks=_unless(True)),
    "thinking_token_budget": _BUDGET,
    "truncate_prompt_tokens": Undone(hint="shorten the prompt"),
    "stop_token_ids": Undone(hint="use stop"),
    "chat_template": Undone("comes with the model", "use chat_template_kwargs, or set another when the server starts"),
    "documents": Undone(hint="write them into a message"),
    "samplers": Undone("cannot be put into another order", asks=lambda v: bool(v) and v != _EDITORS),
    "prompt_logprobs": Undone(hint="use echo and logprobs of /v1/completions", asks=lambda v: v is not False),
    # ollama's
    "num_ctx": Undone("is no matter of a request", "set the context when the server starts (-c)"),
}  # fmt: skip
UNDONE = _ANYWHERE | {
    **_same(_STORED, "background conversation previous_response_id prompt"),
    **_same(Undone(hint="use /v1/chat/completions"), "logprobs top_logprobs"),
    # of some kinds alone: vLLM's, and ollama's
    "add_special_tokens": Undone("is always done", "send token ids", _unless(True)),
    "echo": Undone(hint="use /v1/completions"),
    # OpenAI's
    "audio": Undone(hint="answers are text alone"),
    "functions": Undone(hint="use tools"),
    "function_call": Undone(hint="use tool_choice"),
    "modalities": Undone("has more than text", "answers are text alone", lambda v: set(v) != {"text"} and bool(v)),
    "web_search_options": Undone("asks for a search, and none is made here", asks=lambda _: True),
    "include": Undone(
        "asks for log-probabilities", "use /v1/chat/completions", lambda v: "message.output_text.logprobs" in v
    ),
    "personality": Undone(hint="describe it in instructions"),
    "truncation": Undone("auto is not supported", "leave it out, and shorten the input", _unless("disabled")),
    # Anthropic's
    "compaction": Undone(hint="ask for a summary in a message"),
    "container": Undone("is none of this server's"),
    "mcp_servers": Undone("are not asked from here", "send their tools, and call them yourself"),
    "thread": Undone(
        "needs stored messages, and none are stored", "send the whole conversation", kind=ThreadUnsupported
    ),
    # llama-server's
    "n_probs": Undone(hint="use logprobs of /v1/completions"),
    "return_tokens": Undone(hint="send the content to /tokenize"),
    # ollama's
    "template": Undone(hint="leave it out, or set another when the server starts (--chat-template)"),
    "context": Undone(hint="send the conversation to /api/chat"),
}  # fmt: skip
"""Every refused field of any kind of request."""

REFUSED = tuple(sorted(_ANYWHERE))  # fields that are read of all kinds of request, to refuse them

if TYPE_CHECKING:
    UndoneFields = RequestFields
else:
    UndoneFields = msgspec.defstruct(
        "UndoneFields",
        [(name, Any, None) for name in REFUSED],
        bases=(RequestFields,),
        kw_only=True,
    )


def refused(kind: Any) -> tuple[str, ...]:
    """The fields of a kind of request that are refused."""
    fields = {*kind.__struct_fields__} - {*kind.supported}
    return tuple(name for name in UNDONE if name in fields)


def refuse_undone(body: Any) -> None:
    """Raise InputError where a body uses an unsupported field."""
    for name in refused(type(body)):
        value, undone = getattr(body, name), UNDONE[name]
        if value is not None and undone.asks(value):
            raise undone.kind(f"{name} {undone.why}", undone.hint)


def _shape(name: str, texts: str = "", **others: str) -> Any:
    """An object whose members may all be missing. texts: names of those that are texts. others: types of the rest."""
    kinds = {**dict.fromkeys(texts.split(), "str"), **others}
    members = [(key, f"{kind} | None", None) for key, kind in kinds.items()]
    return msgspec.defstruct(name, members, kw_only=True, module=__name__)


# a part of a content or of an output, or a block of Anthropic's
Part = _shape(
    "Part", "type text refusal id name thinking tool_use_id tool_name title context", is_error="bool",
    image_url="str | dict[str, Any]", content="str | Part | list[Part]", source="str | Source",
)  # fmt: skip
# where a picture's or a document's data are
Source = _shape("Source", "type data url", content="str | list[Part]")
# a function or a custom tool that is called
Function = _shape("Function", "name input", arguments="str | dict[str, Any]")
# a call in a message of the model's
Call = _shape("Call", "id type", function="Function", custom="Function")
# a message of a chat, in any API
Message = _shape(
    "Message", "role name tool_name tool_call_id refusal reasoning_content reasoning thinking",
    content="str | Part | list[Part]", tool_calls="list[Call]", images="list[str]",
)  # fmt: skip
# an item of Responses
Item = _shape(
    "Item", "type role id call_id name namespace input", content="str | list[Part]", summary="list[Part]",
    arguments="str | dict[str, Any]", output="str | list[Part]", tools="list[Tool]",
)  # fmt: skip
# the form of an answer, by any of its names
Form = _shape(
    "Form", "type name regex definition syntax", schema="Schema", json_schema="Form", choice="list[str]",
    grammar="str | dict[str, Any]",
)  # fmt: skip
# a tool, or its function
Tool = _shape(
    "Tool", "type name description execution", parameters="dict[str, Any]", input_schema="dict[str, Any]", function="Tool",
    custom="Tool", format="Form", tools="list[Tool]", environment="dict[str, Any]", defer_loading="bool",
)  # fmt: skip
# the tool that has to be called, or those that may be
ToolChoice = _shape(
    "ToolChoice", "type name mode", function="Function", custom="Function", allowed_tools="ToolChoice",
    tools="list[ToolChoice]", disable_parallel_tool_use="bool",
)  # fmt: skip
# how much to reason, by several names
Reasoning = _shape(
    "Reasoning", "type effort", budget_tokens="int", max_tokens="int", enabled="bool"
)
StreamOptions = _shape("StreamOptions", include_usage="bool")
# vLLM's structured_outputs
Outputs = _shape(
    "Outputs", "regex grammar", json="Schema | str", choice="list[str]", json_object="bool"
)
# the format of a text, and how hard the model tries
TextConfig = _shape("TextConfig", "effort", format="Form")
Metadata = _shape("Metadata", "user_id")  # Anthropic's
# fields of all kinds of request that are objects or lists; a body converts to it if all within has the right type
Inside = _shape(
    "Inside", stream_options="StreamOptions", response_format="Form", structured_outputs="Outputs", thinking="Reasoning",
    reasoning="Reasoning", tools="list[Tool]", tool_choice="str | ToolChoice", messages="list[Message]",
    system="str | list[Part]", input="str | list[Item | str]", prediction="Message", text="TextConfig",
    output_config="TextConfig", output_format="Form", metadata="Metadata",
)  # fmt: skip

_KINDS = {
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "array": "a list",
    "object": "an object", "null": "null",
}  # fmt: skip
_EXPECTED = re.compile(r"Expected `([^`]+)`, got `(\w+)`(?: - at (.+))?")
_LACKS = re.compile(r"Object missing required field `(\w+)`(?: - at (.+))?")


def refusal(error: msgspec.ValidationError) -> InputError:
    """The error in words of our own: which field is what, and what it takes."""
    text = str(error)
    if lacks := _LACKS.fullmatch(text):
        return InputError(f"{_place(lacks[2], lacks[1])} is missing", "send it")
    found = _EXPECTED.fullmatch(text)
    if found is None:
        message, _, place = text.partition(" - at ")
        return InputError(f"{_place(place)}: {message[:1].lower()}{message[1:]}")
    wanted = [_KINDS.get(kind, kind) for kind in found[1].split(" | ") if kind != "null"]
    place, got = _place(found[3]), _KINDS.get(found[2], found[2])
    if found[2] == "null":
        return InputError(f"{place} is missing", f"send {' or '.join(wanted)}")
    return InputError(f"{place} is {got}", f"use {', '.join(wanted)}")


def _place(told: str | None, member: str = "") -> str:
    """A path of msgspec's, such as `key` in `$.a[0].b`, as a name."""
    path = (told or "").rpartition("`$")[2].strip("`").removeprefix(".")
    path = ".".join(filter(None, (path, member))) or "the body"
    return f"a key of {path}" if (told or "").startswith("`key`") else path
