"""How a model marks its reasoning and its tool calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pyspec.text.calls import (
    BareCalls,
    CallForm,
    NamedCalls,
    ObjectCalls,
    PythonCalls,
    TaggedCalls,
)

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MARKS = (START, CHANNEL, MESSAGE, *ENDS, "<|constrain|>")  # marks of gpt-oss's channels
Start = Literal["inside", "behind", "free"]
"""Where an answer begins: inside reasoning that the prompt opened, behind reasoning, or free to begin some."""


@dataclass(frozen=True)
class Reasoning:
    """The marks around reasoning."""

    open: tuple[str, ...]  # what begins it; the first is how the family writes it
    close: tuple[str, ...]  # what ends it
    anywhere: bool = False  # whether it may begin later in the answer, by marks that nobody writes
    dropped: tuple[str, ...] = ()  # marks around the content, which are not shown

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks; they must be shown even if they are control tokens."""
        return (*self.open, *self.close, *self.dropped)

    def start(self, prompt: str) -> Start:
        """Return where an answer to this prompt begins."""
        text = prompt.rstrip()
        if any(text.endswith(mark.rstrip()) for mark in self.close):
            return "behind"
        return "inside" if any(text.endswith(mark.rstrip()) for mark in self.open) else "free"


def _tags(name: str, *dropped: str) -> Reasoning:
    return Reasoning((f"<{name}>",), (f"</{name}>",), dropped=dropped)


THINK = _tags("think")

_REASONINGS: tuple[tuple[str, Reasoning], ...] = (
    ("<|START_THINKING|>", Reasoning(
        ("<|START_THINKING|>",), ("<|END_THINKING|>",), anywhere=True,
        dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    )),
    ("<|channel>", Reasoning(("<|channel>thought", "<|channel>"), ("<channel|>",), anywhere=True)),
    ("[THINK]", Reasoning(("[THINK]",), ("[/THINK]",))),
    ("<seed:think>", _tags("seed:think")),
    ("<mm:think>", _tags("mm:think")),
    ("[BEGIN FINAL RESPONSE]", Reasoning(
        ("Here are my reasoning steps:",), ("[BEGIN FINAL RESPONSE]",), dropped=("[END FINAL RESPONSE]",)
    )),
    ("<|open|>", Reasoning(
        ("<|open|>think<|sep|>",), ("<|close|>think<|sep|>",), anywhere=True,
        dropped=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    )),
    ("<|content|>", Reasoning(
        ("<|think|>",), ("<|end|>",), anywhere=True, dropped=("<|begin|>assistant", "<|content|>")
    )),
    (":opensource", _tags("think:opensource", "<tool_calls:opensource>")),
    ("\u25c1think\u25b7", Reasoning(("\u25c1think\u25b7",), ("\u25c1/think\u25b7",))),
    ("<thought>", _tags("thought")),
    ("<response>", _tags("think", "<response>", "</response>")),
    ("<think>", THINK),
    ("</think>", THINK),
)  # fmt: skip
"""Strings that a template contains if its model reasons like this; the first match counts, else the vocabulary's tokens."""


_QUIET: tuple[tuple[str, str, Any], ...] = (
    (r"\benable_thinking\b", "enable_thinking", False),
    (r"\{%-?\s*(?:el)?if\b[^%]*(?<![_.'\"])\bthinking\b(?![_'\"])", "thinking", False),
    (r"\bthinking_mode\b[^%]*[\"']disabled[\"']", "thinking_mode", "disabled"),
    (r"\bthinking_budget\b", "thinking_budget", 0),
    (r"\breasoning_effort\b", "reasoning_effort", "low"),
)
"""A pattern for templates that read a variable, the variable, and its value for no reasoning, or as little as possible."""


def quiet_arguments(template: str) -> dict[str, Any]:
    """Return the variables that make a template ask for no reasoning; empty if it has none."""
    found = next(({name: value} for read, name, value in _QUIET if re.search(read, template)), {})
    name, words = known_efforts(template) or ("", [])
    return {name: words[0]} if name in found else found


EFFORTS = ("no_think", "none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Words for the amount of reasoning, from the least to the most."""

_TAKEN = re.compile(r"\b(reasoning_effort|thinking_effort)\s+not\s+in\s*\[([^\]]*)\]")


def known_efforts(template: str) -> tuple[str, list[str]] | None:
    """Return a template's variable for the amount of reasoning, and the words it takes, the least first; None if it takes any."""
    found = _TAKEN.search(template)
    quoted = re.findall(r"[\w-]+", found[2]) if found else []
    words = [word for word in EFFORTS if word in quoted]
    return (found[1], words) if found and words else None


def nearest_effort(effort: str, words: Sequence[str]) -> str:
    """Return the one of `words` nearest to an effort; of two equally near, the higher."""
    place = EFFORTS.index(effort)
    return min(words, key=lambda word: (abs(EFFORTS.index(word) - place), -EFFORTS.index(word)))


HERMES = ObjectCalls("<tool_call>", "</tool_call>")
MISTRAL_LIST = ObjectCalls("[TOOL_CALLS]", listed=True, short_ids=True)
MISTRAL = NamedCalls(
    "[TOOL_CALLS]",
    head=r"(?P<name>[^\[\s]+)\s*(?:\[CALL_ID\](?P<id>[^\[]*))?(?:\[ARGS\])?",
    written="[TOOL_CALLS]NAME[ARGS]",
    others=("[CALL_ID]", "[ARGS]"),
    listed=True,
    short_ids=True,
)
MISTRAL_IDS = replace(MISTRAL, written="[TOOL_CALLS]NAME[CALL_ID]@[ARGS]")
LLAMA = BareCalls("<|python_tag|>", arguments="parameters")
_SEP = "<\uff5ctool\u2581sep\uff5c>"
DEEPSEEK = NamedCalls(
    "<\uff5ctool\u2581call\u2581begin\uff5c>",
    "<\uff5ctool\u2581call\u2581end\uff5c>",
    ("<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>"),
    head=rf"(?:\w+{_SEP}(?P<name>[^\n{{]+?)\s*```(?:json)?|(?P<other>[^\n]+?){_SEP})",
    written=f"<\uff5ctool\u2581call\u2581begin\uff5c>NAME{_SEP}",
    others=(_SEP,),
    behind="```",
)
DEEPSEEK_FENCED = replace(DEEPSEEK, written=f"{DEEPSEEK.open}function{_SEP}NAME\n```json\n")
KIMI = NamedCalls(
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    head=r"(?P<id>(?:functions\.)?(?P<name>[^:\s]+)(?::\d+)?)\s*<\|tool_call_argument_begin\|>",
    written="<|tool_call_begin|>functions.NAME:#<|tool_call_argument_begin|>",
    others=("<|tool_call_argument_begin|>",),
)
SOLAR = NamedCalls(
    "<|tool_call:begin|>",
    "<|tool_call:end|>",
    ("<|tool_calls|>", "<|calls|>"),
    head=r"(?P<id>[^<]*)<\|tool_call:name\|>(?P<name>[^<]+)<\|tool_call:args\|>",
    written="<|tool_call:begin|>#<|tool_call:name|>NAME<|tool_call:args|>",
    others=("<|tool_call:name|>", "<|tool_call:args|>"),
)
GEMMA = NamedCalls(
    "<|tool_call>",
    "<tool_call|>",
    head=r"call:\s*(?P<name>[^\s<]+)",
    written="<|tool_call>call:NAME",
    quote='<|"|>',
)
PYTHON = PythonCalls("<|tool_call_start|>", "<|tool_call_end|>")


def _keys(end: str = "") -> TaggedCalls:
    """`<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`. end: suffix of each tag's name."""
    return TaggedCalls(
        "", f"</tool_call{end}>", (f"<tool_call{end}>", f"</tool_calls{end}>" if end else ""),
        name_end=f"<tool_sep{end}>" if end else "\n", key_open=f"<arg_key{end}>", key_ends=(f"</arg_key{end}>",),
        value_open=f"<arg_value{end}>", value_close=f"</arg_value{end}>",
    )  # fmt: skip


def _invokes(first: str, last: str, tag: str = "") -> TaggedCalls:
    """`<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>` between marks. tag: prefix of the tags' names."""
    text = '" string="true">' if tag else ""
    return TaggedCalls(
        f'<{tag}invoke name="', f"</{tag}invoke>", (first, last), name_end='">',
        key_open=f'<{tag}parameter name="', key_ends=(text, '" string="false">', '">') if tag else ('">',),
        value_close=f"</{tag}parameter>", text_key=text,
    )  # fmt: skip


QWEN_CODER = TaggedCalls(
    "<function=", "</function>", ("<tool_call>", "</tool_call>"), name_end=">",
    key_open="<parameter=", key_ends=(">",), value_close="</parameter>", lines=True,
)  # fmt: skip
SEED = replace(QWEN_CODER, section=("<seed:tool_call>", "</seed:tool_call>"), lines=False)
GLM = _keys()
MINIMAX = _invokes("<minimax:tool_call>", "</minimax:tool_call>")
_DSML = "\uff5cDSML\uff5c"
DSML = _invokes(f"<{_DSML}function_calls>", f"</{_DSML}function_calls>", _DSML)
DSML_TOOLS = replace(DSML, section=(f"<{_DSML}tool_calls>", f"</{_DSML}tool_calls>"))
PARAMS = TaggedCalls(
    '<function name="', "</function>", name_end='">', key_open='<param name="', key_ends=('">',), value_close="</param>"
)  # fmt: skip

_FORMS: tuple[tuple[tuple[str, ...], CallForm], ...] = (
    (("<|tool_calls_section_begin|>",), KIMI),
    ((DEEPSEEK.open, "```json"), DEEPSEEK_FENCED),
    ((DEEPSEEK.open,), DEEPSEEK),
    ((_DSML, "function_calls>"), DSML),
    ((_DSML, "tool_calls>"), DSML_TOOLS),
    (("[TOOL_CALLS]", "[CALL_ID]"), MISTRAL_IDS),
    (("[TOOL_CALLS]", "[ARGS]"), MISTRAL),
    (("[TOOL_CALLS]",), MISTRAL_LIST),
    (("<minimax:tool_call>",), MINIMAX),
    (("<seed:tool_call>",), SEED),
    (("<tool_call>", "<function="), QWEN_CODER),
    (("<tool_call>", "<arg_key>"), GLM),
    ((":opensource", "<arg_key"), _keys(":opensource")),
    (("<|tool_call>call:",), GEMMA),
    (("<tool_calls>",), ObjectCalls("<tool_calls>", "</tool_calls>", listed=True)),
    (("<tool_call>",), HERMES),
    (("<TOOLCALL>",), ObjectCalls("<TOOLCALL>", "</TOOLCALL>", listed=True)),
    (("<|tool_call_start|>",), PYTHON),
    (("<|tool_list_start|>",), PYTHON),
    (("List of tools: [", "<|im_start|>"), PYTHON),
    (("<|START_ACTION|>",), ObjectCalls(
        "<|START_ACTION|>", "<|END_ACTION|>", name="tool_name", arguments="parameters", listed=True)),
    (("<|tools_prefix|>",), ObjectCalls("<|tools_prefix|>", "<|tools_suffix|>", listed=True, keyed=True)),
    (("<|tool_call:begin|>",), SOLAR),
    (("<|tool_call|>",), ObjectCalls("<|tool_call|>", listed=True)),
    (("<|function_call|>",), ObjectCalls("<|function_call|>")),
    (('<function name="', "<param name="), PARAMS),
    (("<|python_tag|>",), LLAMA),
    (("<|start_header_id|>", '"parameters": '), LLAMA),
)  # fmt: skip
"""Strings that a template contains if its model writes calls in this form; the first match counts."""


@dataclass(frozen=True)
class Notation:
    """How a model writes its reasoning and its calls."""

    reasoning: Reasoning | None = None  # None if the model does not reason
    calls: CallForm = HERMES  # Hermes's if the template shows none
    channels: bool = False  # whether it writes gpt-oss's channels, which carry both

    @classmethod
    def of(cls, template: str, is_token: Callable[[str], bool] = lambda _: False) -> Notation:
        """Return the notation of a template. is_token: whether a text is one token of the vocabulary."""
        if "<|channel|>" in template and "<|message|>" in template:
            return cls(channels=True)
        calls = next((form for has, form in _FORMS if all(m in template for m in has)), HERMES)
        marked = (found for mark, found in _REASONINGS if mark in template)
        reasoning = next(marked, THINK if all(map(is_token, THINK.marks)) else None)
        return cls(reasoning, calls)

    def marks(self, *, tools: bool) -> tuple[str, ...]:
        """Return the marks that must be shown even if they are control tokens."""
        if self.channels:
            return MARKS
        calls: tuple[Any, ...] = self.calls.marks if tools else ()
        return (*(self.reasoning.marks if self.reasoning else ()), *calls)

    def start(self, prompt: str) -> Start:
        return self.reasoning.start(prompt) if self.reasoning is not None else "free"
