"""Fields of requests that are refused, since ignoring them would change the answer; and the types of members at any depth.

A kind of request refuses those that it does not declare. `.docs/pages/fields.md` says why others are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import get_annotations
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pyspec.errors import InputError, ThreadUnsupported
from pyspec.requests.records import RequestFields

Schema = dict[str, Any] | bool


class Undone(NamedTuple):
    """How a field is refused. hint: what to do instead. asks: whether a value has an effect; others are accepted."""

    hint: str
    asks: Callable[[Any], bool] = bool


def _unless(*values: Any) -> Callable[[Any], bool]:
    """Whether a value is none of these; true is no 1."""
    return lambda value: (
        not any(
            value == each and isinstance(value, bool) == isinstance(each, bool) for each in values
        )
    )


def _positive(value: Any) -> bool:
    return type(value) not in (int, float) or value > 0


_LEAVE_OUT = "leave it out"
_STATELESS = "nothing is stored: send the whole conversation"
_EDITORS = ["top_k", "top_p", "infill"]  # llama.vim names those that it sets, in their order
_TABLE: tuple[tuple[str, Undone], ...] = (
    # OpenAI's
    ("audio moderation personality", Undone(_LEAVE_OUT)),
    ("background conversation previous_response_id prompt", Undone(_STATELESS)),
    ("echo suffix", Undone("use /v1/completions")),
    ("functions", Undone("use tools")),
    ("function_call", Undone("use tool_choice")),
    ("include", Undone("use logprobs of a chat", lambda v: "message.output_text.logprobs" in str(v))),
    ("logprobs top_logprobs", Undone("use /v1/chat/completions")),
    ("modalities", Undone(_LEAVE_OUT, _unless([], ["text"]))),
    (
        "prompt_cache_options",
        Undone("send max_tokens 0", lambda v: not isinstance(v, dict) or bool(v.get("prewarm"))),
    ),
    ("truncation", Undone("shorten the input", _unless("disabled"))),
    ("web_search_options", Undone(_LEAVE_OUT, _unless())),
    # Anthropic's
    ("compaction container mcp_servers", Undone(_LEAVE_OUT)),
    ("thread", Undone(_STATELESS)),
    # llama-server's
    ("chat_format ignore_eos lora mirostat preserved_tokens reasoning_budget_message response_fields return_progress",
     Undone(_LEAVE_OUT)),
    ("adaptive_target min_keep n_indent t_max_predict_ms top_n_sigma", Undone(_LEAVE_OUT, _positive)),
    ("chat_template thinking_forced_open", Undone("use chat_template_kwargs")),
    ("grammar_lazy grammar_triggers", Undone("send tools, whose calls are held to their form")),
    ("n_cmpl", Undone("use n", _unless(1))),
    ("n_predict", Undone("use max_tokens", _unless(-1))),
    ("n_probs", Undone("use logprobs of /v1/completions")),
    ("parse_tool_calls", Undone(_LEAVE_OUT, _unless(True))),
    ("reasoning_format", Undone(_LEAVE_OUT, _unless("auto", "deepseek"))),
    ("repeat_last_n", Undone(_LEAVE_OUT, _unless(64))),
    ("return_tokens return_token_ids", Undone("send the content to /tokenize")),
    ("samplers", Undone(_LEAVE_OUT, _unless([], _EDITORS))),
    ("typ_p", Undone(_LEAVE_OUT, _unless(1))),
    # vLLM's
    ("add_special_tokens include_reasoning skip_special_tokens", Undone(_LEAVE_OUT, _unless(True))),
    ("allowed_token_ids bad_words logits_processors", Undone("use logit_bias")),
    ("documents", Undone("write them into a message")),
    ("guided_choice guided_grammar guided_json guided_regex", Undone("use structured_outputs")),
    ("guided_whitespace_pattern include_stop_str_in_output kv_transfer_params min_tokens", Undone(_LEAVE_OUT)),
    ("mm_processor_kwargs return_tokens_as_token_ids truncate_prompt_tokens vllm_xargs", Undone(_LEAVE_OUT)),
    ("use_beam_search", Undone(_LEAVE_OUT)),
    ("prompt_logprobs", Undone("use echo and logprobs of /v1/completions", _unless(False))),
    ("reasoning_budget_tokens thinking_token_budget", Undone("use reasoning_budget", _unless(-1))),
    ("stop_token_ids", Undone("use stop")),
    # ollama's
    ("context", Undone("send the conversation to /api/chat")),
    ("num_ctx", Undone("set the context when the server starts (-c)")),
    ("template", Undone("set another when the server starts (--chat-template)")),
)  # fmt: skip
UNDONE = {name: undone for names, undone in _TABLE for name in names.split()}
"""Every refused field of any kind of request."""

if TYPE_CHECKING:
    UndoneFields = RequestFields
else:
    UndoneFields = msgspec.defstruct(
        "UndoneFields",
        [(name, Any, None) for name in UNDONE],
        bases=(RequestFields,),
        kw_only=True,
    )


@cache
def refused(kind: Any) -> tuple[str, ...]:
    """The fields that a kind of request refuses: those in UNDONE that it does not declare."""
    own = takewhile(lambda each: each is not UndoneFields, kind.__mro__)
    declared = {name for each in own for name in get_annotations(each)}
    return tuple(name for name in UNDONE if name not in declared)


def refuse_undone(body: Any) -> None:
    """Raise InputError where a body uses an unsupported field."""
    for name in refused(body.__class__):
        value = getattr(body, name)
        if value is not None and UNDONE[name].asks(value):
            kind = ThreadUnsupported if name == "thread" else InputError
            raise kind(f"{name} is not supported", UNDONE[name].hint)


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
# a function that is called
Function = _shape("Function", "name", arguments="str | dict[str, Any]")
# a call in a message of the model's
Call = _shape("Call", "id type", function="Function")
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
    format="Form", tools="list[Tool]", environment="dict[str, Any]", defer_loading="bool",
)  # fmt: skip
# the tool that has to be called, or those that may be
ToolChoice = _shape(
    "ToolChoice", "type name mode", function="Function", allowed_tools="ToolChoice",
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
