"""How a model marks its reasoning and its tool calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pyspec.text.calls.form import CallForm
from pyspec.text.calls.named import NamedCalls, SpokenCalls
from pyspec.text.calls.objects import BareCalls, ObjectCalls
from pyspec.text.calls.tagged import TaggedCalls
from pyspec.text.calls.values import GemmaCalls, PythonCalls
from pyspec.text.channels import MARKS
from pyspec.text.reasoning import Reasoning, Start, reasoning_of

HERMES = ObjectCalls("<tool_call>", "</tool_call>")
MISTRAL_LIST = ObjectCalls("[TOOL_CALLS]", listed=True, short_ids=True)
MISTRAL = NamedCalls(
    "[TOOL_CALLS]",
    "",
    r"(?P<name>[^\[\s]+)\s*(?:\[CALL_ID\](?P<id>[^\[]*))?(?:\[ARGS\])?",
    "[TOOL_CALLS]NAME[ARGS]",
    others=("[CALL_ID]", "[ARGS]"),
    listed=True,
    short_ids=True,
)
MISTRAL_IDS = replace(MISTRAL, written="[TOOL_CALLS]NAME[CALL_ID]@[ARGS]")
LLAMA = BareCalls("<|python_tag|>", arguments="parameters")
FUNCTIONARY = NamedCalls("<function=", "</function>", r"(?P<name>[^>\s]+)>", "<function=NAME>")
FUNCTIONARY_SPOKEN = SpokenCalls(">>>", "", "", ">>>NAME\n")
_SEP = "<\uff5ctool\u2581sep\uff5c>"
_DEEPSEEK_SECTION = (
    "<\uff5ctool\u2581calls\u2581begin\uff5c>",
    "<\uff5ctool\u2581calls\u2581end\uff5c>",
)
DEEPSEEK = NamedCalls(
    "<\uff5ctool\u2581call\u2581begin\uff5c>",
    "<\uff5ctool\u2581call\u2581end\uff5c>",
    rf"(?:\w+{_SEP}(?P<name>[^\n{{]+?)\s*```(?:json)?|(?P<other>[^\n]+?){_SEP})",
    f"<\uff5ctool\u2581call\u2581begin\uff5c>NAME{_SEP}",
    section=_DEEPSEEK_SECTION,
    others=(_SEP,),
    behind="```",
)
DEEPSEEK_FENCED = replace(DEEPSEEK, written=f"{DEEPSEEK.open}function{_SEP}NAME\n```json\n")
KIMI = NamedCalls(
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    r"(?P<id>(?:functions\.)?(?P<name>[^:\s]+)(?::\d+)?)\s*<\|tool_call_argument_begin\|>",
    "<|tool_call_begin|>functions.NAME:#<|tool_call_argument_begin|>",
    section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    others=("<|tool_call_argument_begin|>",),
)
SOLAR = NamedCalls(
    "<|tool_call:begin|>",
    "<|tool_call:end|>",
    r"(?P<id>[^<]*)<\|tool_call:name\|>(?P<name>[^<]+)<\|tool_call:args\|>",
    "<|tool_call:begin|>#<|tool_call:name|>NAME<|tool_call:args|>",
    section=("<|tool_calls|>", "<|calls|>"),
    others=("<|tool_call:name|>", "<|tool_call:args|>"),
)


def _functions(first: str, last: str, *, lines: bool) -> TaggedCalls:
    """`<function=NAME><parameter=KEY>VALUE</parameter></function>` between marks."""
    return TaggedCalls(
        first, last, "<function=", ">", "<parameter=", (">",), "</parameter>", "</function>",
        lines=lines,
    )  # fmt: skip


def _keys(end: str = "") -> TaggedCalls:
    """`<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`. end: suffix of each tag's name."""
    return TaggedCalls(
        f"<tool_call{end}>", f"</tool_calls{end}>" if end else "", "", f"<tool_sep{end}>" if end else "\n",
        f"<arg_key{end}>", (f"</arg_key{end}>",), f"</arg_value{end}>", f"</tool_call{end}>",
        value_open=f"<arg_value{end}>",
    )  # fmt: skip


def _invokes(first: str, last: str, tag: str = "") -> TaggedCalls:
    """`<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>` between marks. tag: prefix of the tags' names."""
    text = '" string="true">'
    return TaggedCalls(
        first, last, f'<{tag}invoke name="', '">', f'<{tag}parameter name="',
        (text, '" string="false">', '">') if tag else ('">',),
        f"</{tag}parameter>", f"</{tag}invoke>", text_key=text if tag else "",
    )  # fmt: skip


QWEN_CODER = _functions("<tool_call>", "</tool_call>", lines=True)
SEED = _functions("<seed:tool_call>", "</seed:tool_call>", lines=False)
GLM = _keys()
MINIMAX = _invokes("<minimax:tool_call>", "</minimax:tool_call>")
_DSML = "\uff5cDSML\uff5c"
DSML = _invokes(f"<{_DSML}function_calls>", f"</{_DSML}function_calls>", _DSML)
DSML_TOOLS = _invokes(f"<{_DSML}tool_calls>", f"</{_DSML}tool_calls>", _DSML)
PARAMS = TaggedCalls(
    "", "", '<function name="', '">', '<param name="', ('">',), "</param>", "</function>"
)

_KNOWN: tuple[tuple[tuple[str, ...], CallForm], ...] = (
    (("<|tool_calls_section_begin|>",), KIMI),
    ((DEEPSEEK.open, "```json"), DEEPSEEK_FENCED),
    ((DEEPSEEK.open,), DEEPSEEK),
    ((_DSML, "function_calls>"), DSML),
    ((_DSML, "tool_calls>"), DSML_TOOLS),
    (("[TOOL_CALLS]", "[CALL_ID]"), MISTRAL_IDS),
    (("[TOOL_CALLS]", "[ARGS]"), MISTRAL),
    (("[TOOL_CALLS]",), MISTRAL_LIST),
    ((">>>${recipient}",), FUNCTIONARY_SPOKEN),
    (("<minimax:tool_call>",), MINIMAX),
    (("<seed:tool_call>",), SEED),
    (("<tool_call>", "<function="), QWEN_CODER),
    (("<tool_call>", "<arg_key>"), GLM),
    ((":opensource", "<arg_key"), _keys(":opensource")),
    (("<function=", "</function>"), FUNCTIONARY),
    (("<|tool_call>call:",), GemmaCalls()),
    (("<tool_calls>",), ObjectCalls("<tool_calls>", "</tool_calls>", listed=True)),
    (("<tool_call>",), HERMES),
    (("<TOOLCALL>",), ObjectCalls("<TOOLCALL>", "</TOOLCALL>", listed=True)),
    (("<|tool_call_start|>",), PythonCalls()),
    (("<|tool_list_start|>",), PythonCalls()),
    (("List of tools: [", "<|im_start|>"), PythonCalls()),
    (
        ("<|START_ACTION|>",),
        ObjectCalls("<|START_ACTION|>", "<|END_ACTION|>", "tool_name", "parameters", listed=True),
    ),
    (
        ("<|tools_prefix|>",),
        ObjectCalls("<|tools_prefix|>", "<|tools_suffix|>", listed=True, keyed=True),
    ),
    (("<|tool_call:begin|>",), SOLAR),
    (("<|tool_call|>",), ObjectCalls("<|tool_call|>", listed=True)),
    (("<|function_call|>",), ObjectCalls("<|function_call|>")),
    (('<function name="', "<param name="), PARAMS),
    (("<|python_tag|>",), LLAMA),
    (("<|start_header_id|>", '"parameters": '), LLAMA),
)
"""Strings that a template contains if its model writes calls in this form; the first match counts."""


@dataclass(frozen=True)
class Notation:
    """How a model writes its reasoning and its calls."""

    reasoning: Reasoning | None = None
    """None if the model does not reason."""
    calls: CallForm = HERMES
    """Hermes's if the template shows none."""
    channels: bool = False
    """Whether it writes gpt-oss's channels, which carry both."""

    @classmethod
    def of(cls, template: str, is_token: Callable[[str], bool] = lambda _: False) -> Notation:
        """Return the notation of a template. is_token: whether a text is one token of the vocabulary."""
        if "<|channel|>" in template and "<|message|>" in template:
            return cls(channels=True)
        calls = next((form for has, form in _KNOWN if all(m in template for m in has)), HERMES)
        return cls(reasoning_of(template, is_token), calls)

    @property
    def always_calls(self) -> bool:
        """Whether the model uses its form of calls even without tools."""
        return isinstance(self.calls, SpokenCalls)

    def marks(self, *, tools: bool) -> tuple[str, ...]:
        """Return the marks that must be shown even if they are control tokens."""
        if self.channels:
            return MARKS
        calls: tuple[Any, ...] = self.calls.marks if tools or self.always_calls else ()
        return (*(self.reasoning.marks if self.reasoning else ()), *calls)

    def start(self, prompt: str) -> Start:
        """Return where an answer to this prompt begins."""
        return self.reasoning.start(prompt) if self.reasoning is not None else "free"
