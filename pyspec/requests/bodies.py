"""OpenAI's request and response bodies, for batches in their format and for the server.

A body becomes a `Record`, so that batch and server share the rest of the way. Fields that would change the answer and are not
supported are refused, by every kind of request that does not declare them. Others are ignored, since clients send many;
`.docs/pages/fields.md` says why.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec

from pyspec.errors import InputError, OptionError, ThreadUnsupported
from pyspec.grammar.languages import Language
from pyspec.requests.records import CHAT, COMPLETION, Record, RequestFields
from pyspec.sampling.chain import MIN_TOP_P
from pyspec.sampling.options import MAX_TOKENS
from pyspec.text.completions import format_language, functions_of, tools_left
from pyspec.text.messages import content_text

AnyBody = TypeVar("AnyBody", bound=msgspec.Struct)
Schema = dict[str, Any] | bool

# -- fields that are refused -------------------------------------------------------------------------------------------


class Undone(NamedTuple):
    """How a field is refused. hint: what to do instead. asks: whether a value has an effect; others are accepted."""

    hint: str
    asks: Callable[[Any], bool] = bool


def _unless(*values: Any) -> Callable[[Any], bool]:
    """Whether a value is none of these; true is no 1."""
    accepted = [(isinstance(each, bool), each) for each in values]
    return lambda value: (isinstance(value, bool), value) not in accepted


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
    ("adaptive_target min_keep n_indent t_max_predict_ms top_n_sigma",
     Undone(_LEAVE_OUT, lambda v: type(v) not in (int, float) or v > 0)),
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
    ("mm_processor_kwargs return_tokens_as_token_ids truncate_prompt_tokens use_beam_search vllm_xargs",
     Undone(_LEAVE_OUT)),
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


# -- types of members at any depth -------------------------------------------------------------------------------------


def _shape(name: str, texts: str = "", **others: str) -> Any:
    """An object whose members may all be missing. texts: names of those that are texts. others: types of the rest."""
    kinds = {**dict.fromkeys(texts.split(), "str"), **others}
    members = [(key, f"{kind} | None", None) for key, kind in kinds.items()]
    return msgspec.defstruct(name, members, kw_only=True, module=__name__)


# a message of a chat, in any API
Message = _shape(
    "Message", "role name tool_name tool_call_id refusal reasoning_content reasoning thinking",
    content="str | Member | list[Member]", tool_calls="list[Member]", images="list[str]",
)  # fmt: skip
# any other object within a request: a part of a content, an item, a call, a tool, a choice among tools, or the form of an answer
Member = _shape(
    "Member", "call_id context data definition description execution id mode name namespace refusal regex role syntax text "
    "thinking title tool_name tool_use_id type url",
    content="str | Member | list[Member]", function="Member", arguments="str | dict[str, Any]", input="str | dict[str, Any]",
    output="str | list[Member]", summary="list[Member]", image_url="str | dict[str, Any]", source="str | Member",
    is_error="bool", tools="list[Member]", allowed_tools="Member", parameters="dict[str, Any]", input_schema="dict[str, Any]",
    environment="dict[str, Any]", defer_loading="bool", disable_parallel_tool_use="bool", format="Member",
    schema="Schema", json_schema="Member", choice="list[str]", grammar="str | dict[str, Any]",
)  # fmt: skip
# how much to reason, what a stream tells, or the format of a text
Settings = _shape(
    "Settings", "type effort", budget_tokens="int", max_tokens="int", enabled="bool", include_usage="bool", format="Member",
)  # fmt: skip
# vLLM's structured_outputs
Outputs = _shape(
    "Outputs", "regex grammar", json="Schema | str", choice="list[str]", json_object="bool"
)
Metadata = _shape("Metadata", "user_id")  # Anthropic's
# fields of all kinds of request that are objects or lists; a body converts to it if all within has the right type
Inside = _shape(
    "Inside", stream_options="Settings", response_format="Member", structured_outputs="Outputs", thinking="Settings",
    reasoning="Settings", tools="list[Member]", tool_choice="str | Member", messages="list[Message]",
    system="str | list[Member]", input="str | list[Member | str]", prediction="Message", text="Settings",
    output_config="Settings", output_format="Member", metadata="Metadata",
)  # fmt: skip


# -- bodies ------------------------------------------------------------------------------------------------------------


class Body(RequestFields, kw_only=True):
    """Fields of all kinds of request. Names and meanings are OpenAI's; top_k, min_p and grammar are llama.cpp's.

    json_schema is llama-server's; structured_outputs and repetition_penalty are vLLM's; enable_thinking is
    Qwen's, think Ollama's, thinking Anthropic's and reasoning OpenRouter's.
    """

    model: str | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    json_schema: Schema | str | None = None
    structured_outputs: dict[str, Any] | None = None
    repetition_penalty: float | None = None
    user: str | None = None
    safety_identifier: str | None = None
    enable_thinking: bool | None = None
    think: bool | None = None
    thinking: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def owner(self) -> str:
        """The user whose remembered texts may draft for this request, "" for none."""
        return self.safety_identifier or self.user or ""

    most_answers: ClassVar[int] = 16  # how many answers to one prompt may be asked for

    @property
    def answers(self) -> int:
        """The number of answers to each prompt. Raises OptionError."""
        n = 1 if self.n is None else self.n
        if not 1 <= n <= self.most_answers:
            raise OptionError(f"n is {n}", f"use 1 to {self.most_answers}")
        return n

    @property
    def n_prompts(self) -> int:
        return 1

    @classmethod
    def refused(cls) -> list[str]:
        """The fields that this kind of request refuses: those in UNDONE that it does not declare."""
        return [name for name in UNDONE if name not in cls.__struct_fields__]

    @classmethod
    def refuse(cls, given: Mapping[str, Any]) -> None:
        """Raise InputError where a request has an unsupported field."""
        for name in cls.refused():
            value = given.get(name)
            if value is not None and UNDONE[name].asks(value):
                kind = ThreadUnsupported if name == "thread" else InputError
                raise kind(f"{name} is not supported", UNDONE[name].hint)

    def records(self) -> list[Record]:
        """A record without an id for each prompt. Raises InputError, or any error of a malformed body."""
        raise NotImplementedError

    def _chat(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        choice: Any = None,
        parallel: bool | None = None,
        effort: str | None = None,
    ) -> Record:
        """The record of a chat. messages, tools, choice of one: OpenAI's. effort: of reasoning. Raises InputError."""
        shared = self._shared()
        if tools and choice != "none":
            named = functions_of(tools)
            check_names(function["name"] for function in named)
            functions, forced = tools_left(named, choice)
            shared |= {"tools": functions, "tool_choice": forced}
            shared["parallel"] = parallel is not False  # true is OpenAI's default
        elif choice != "none" and tools_left([], choice)[1]:
            raise InputError("tool_choice requires a call, but there are no tools", "send tools")
        effort = effort or (self.reasoning or {}).get("effort")
        if effort == "none":
            shared["reasons"] = False
        told = {} if effort in (None, "none") else {"reasoning_effort": effort}
        shared["chat_template_kwargs"] = {**told, **(self.chat_template_kwargs or {})} or None
        return Record(messages=known(messages), form=CHAT, **shared)

    def _shared(self) -> dict[str, Any]:
        """Fields of a record that have nothing to do with its prompt. Raises InputError."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        # clients of llama.cpp send a negative seed for a random one
        seed = None if self.seed is None or self.seed < 0 else self.seed & 0xFFFFFFFF
        wanted = {key: getattr(self, key) for key in RequestFields.__struct_fields__}
        if wanted["repeat_penalty"] is None:
            wanted["repeat_penalty"] = self.repetition_penalty
        if wanted["top_p"] == 0:  # clients mean greedy decoding
            wanted["top_p"] = MIN_TOP_P
        if self.max_tokens == -1:  # clients of llama.cpp send it for as many as fit
            wanted["max_tokens"] = MAX_TOKENS
        thinking, reasoning = self.thinking or {}, self.reasoning or {}
        budgets = self.reasoning_budget, thinking.get("budget_tokens"), reasoning.get("max_tokens")
        wanted["reasoning_budget"] = next((each for each in budgets if each is not None), None)
        told = self.enable_thinking, self.think, reasoning.get("enabled")
        if False in told or thinking.get("type") == "disabled":
            wanted["reasons"] = False
        return {**wanted, "id": "", "stop": stop, "seed": seed, "language": self._language()}

    def _language(self) -> Language | None:
        """The language of the answer, by `response_format` or another API's field for it. Raises InputError."""
        found = [each for each in map(format_language, self._forms()) if each is not None]
        if len(found) + (self.grammar is not None) > 1:
            raise InputError("an answer can follow only one schema or grammar", "keep one of them")
        return found[0] if found else None

    def _forms(self) -> Iterator[dict[str, Any] | None]:
        """The forms that any API's fields demand of the answer, each as a `response_format`. Raises InputError."""
        yield self.response_format
        if self.json_schema is not None:
            yield _schema_form(self.json_schema)
        for kind, value in (self.structured_outputs or {}).items():
            if value not in (None, False):
                yield _schema_form(value) if kind == "json" else {"type": kind, kind: value}


def _schema_form(schema: Schema | str) -> dict[str, Any]:
    """The `response_format` for a schema, which may be written as text. Raises InputError."""
    try:
        read = msgspec.json.decode(schema, type=Schema) if isinstance(schema, str) else schema
    except (msgspec.MsgspecError, RecursionError):
        raise InputError("what json_schema holds is no JSON schema", "send an object") from None
    return {"type": "json_schema", "schema": read}


class ChatBody(Body, kw_only=True):
    """The body of a chat completion."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    add_special_tokens: Any = None  # the template writes them
    prediction: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens

    def records(self) -> list[Record]:
        return [self._record(self.messages)]

    def _record(self, messages: list[dict[str, Any]]) -> Record:
        record = self._chat(
            messages,
            tools=self.tools,
            choice=self.tool_choice,
            parallel=self.parallel_tool_calls,
            effort=self.reasoning_effort,
        )
        if self.prediction is not None:
            if self.prediction.get("content") is None:
                raise InputError("prediction has no content", "send the text")
            record.prediction = content_text(self.prediction["content"])
        if self.logprobs:
            record.logprobs = self.top_logprobs or 0
        return record


class CompletionBody(Body, kw_only=True):
    """The body of a completion."""

    prompt: str | list[str | int | list[int]]
    suffix: str | None = None
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None

    @property
    def _prompts(self) -> list[Any]:
        """The prompts: a list of token ids is one, a list of lists several."""
        if isinstance(self.prompt, str) or (self.prompt and isinstance(self.prompt[0], int)):
            return [self.prompt]
        return list(self.prompt)

    @property
    def n_prompts(self) -> int:
        return len(self._prompts)

    def records(self) -> list[Record]:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise InputError("best_of is not supported", "use n")
        if not self._prompts:
            raise InputError("the prompt is empty")
        # "" means no suffix: editors that build their own infill prompt send it
        suffix = self.suffix or None
        if self.echo and suffix is not None:
            raise InputError("echo and suffix do not go together", "leave echo out")
        shared = self._shared() | {"echo": self.echo or None, "suffix": suffix}
        shared["logprobs"] = self.logprobs
        return [Record(form=COMPLETION, **shared, **_prompt(item)) for item in self._prompts]


def _prompt(prompt: Any) -> dict[str, Any]:
    """One prompt, a text or token ids, as fields of a record. Raises InputError."""
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if isinstance(prompt, list) and all(type(item) is int for item in prompt):
        return {"tokens": prompt}
    raise InputError("a prompt is neither text nor a list of token ids")


_KINDS: dict[str, type[Body]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
}


def read_body(path: str, data: bytes | msgspec.Raw) -> Body:
    """The body of a request to `path`. Raises InputError."""
    kind = _KINDS.get(path)
    if kind is None:
        raise InputError(f"url is {path[:80]!r}", f"use {' or '.join(_KINDS)}")
    return decoded(kind, data)


def decoded(kind: type[AnyBody], data: bytes | msgspec.Raw) -> AnyBody:
    """A body of this type, whose members have their types at any depth. Raises InputError, also for what it refuses."""
    try:
        given = msgspec.json.decode(bytes(data).removeprefix(BOM_UTF8))
        body = msgspec.convert(given, kind, str_keys=True)
        msgspec.convert(body, Inside, from_attributes=True)
    except RecursionError:
        raise InputError("the body is nested too deep") from None
    except msgspec.ValidationError as error:
        raise InputError(f"the body cannot be understood: {error}") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InputError(f"the body is not JSON in UTF-8: {error}") from None
    if isinstance(body, Body):
        body.refuse(given)
    return body


def records_of(body: Body) -> list[Record]:
    """A record without an id for each prompt of a body. Raises InputError, whatever is wrong with the body."""
    try:
        return body.records()
    except KeyError as error:
        raise InputError(f"the body lacks {str(error)[:200]}") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError("the body cannot be understood") from error
    except RecursionError:
        raise InputError("the body is nested too deep") from None


# -- messages in -----------------------------------------------------------------------------------

_ROLES = ("system", "developer", "user", "assistant", "tool")


def known(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, a refusal as content. Raises InputError for a role that OpenAI does not have."""
    found = []
    for message in messages:
        role = message.get("role")
        if isinstance(role, str) and role not in _ROLES:
            raise InputError(f"a message has the role {role[:40]!r}", f"use {', '.join(_ROLES)}")
        if message.get("function_call"):
            raise InputError("function_call is not supported", "use tool_calls")
        refused = message.get("content") is None and message.get("refusal")
        found.append({**message, "content": refused} if refused else message)
    return found


def check_names(names: Iterable[str]) -> None:
    """Raise InputError where two tools share a name: their calls could not be told apart."""
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(f"{count} tools are named {name[:80]!r}", "tool names must be unique")
