"""Answers with calls in the notations of eight families, those with control tokens for marks last.

Each is (what it is, the answer, its content, its calls as (name, arguments)). The tools are those of `FUNCTIONS`.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

Call = tuple[str, dict[str, Any]]
Example = tuple[str, str, str, list[Call]]

FUNCTIONS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "hourly": {"type": "boolean"},
            "options": {"type": "object"},
        },
        "required": ["city"],
    },
    "now": {"type": "object", "properties": {}},
    "write_file": {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}},
}  # fmt: skip

PARIS: Call = ("weather", {"city": "Paris"})
ROME: Call = ("weather", {"city": "Rome", "days": 3})
NOW: Call = ("now", {})
DEEP: Call = ("weather", {"city": "Köln", "options": {"k": [1, None, True], "s": 'a "b" {c}'}})
CODE: Call = ("write_file", {"path": "a.py", "text": "if x < 3:\n    print('</b>')\n"})
WRITTEN = {
    "one": [PARIS], "several": [PARIS, ROME], "nested": [DEEP], "lines of code": [CODE], "no arguments": [NOW],
}  # fmt: skip
"""Calls that each family is shown to write."""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _bare(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _hermes(name: str, arguments: dict[str, Any], _n: int) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {_json(arguments)}}}\n</tool_call>'


def _qwen_coder(name: str, arguments: dict[str, Any], _n: int) -> str:
    told = (f"<parameter={k}>\n{_bare(v)}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{''.join(told)}</function>\n</tool_call>"


def _glm(name: str, arguments: dict[str, Any], _n: int) -> str:
    told = (f"<arg_key>{k}</arg_key>\n<arg_value>{_bare(v)}</arg_value>\n" for k, v in arguments.items())  # fmt: skip
    return f"<tool_call>{name}\n{''.join(told)}</tool_call>"


def _llama(name: str, arguments: dict[str, Any], _n: int) -> str:
    return f'{{"name": "{name}", "parameters": {_json(arguments)}}}'


def _mistral(name: str, arguments: dict[str, Any], _n: int) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{_json(arguments)}"


_ALL, _ALL_END, _ONE, _END, _SEP = (
    f"<\uff5ctool\u2581{words}\uff5c>"
    for words in ("calls\u2581begin", "calls\u2581end", "call\u2581begin", "call\u2581end", "sep")
)


def _deepseek(name: str, arguments: dict[str, Any], _n: int) -> str:
    return f"{_ONE}{name}{_SEP}{_json(arguments)}{_END}"


_KIMI, _KIMI_ARGS, _KIMI_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"  # fmt: skip
_KIMI_ALL, _KIMI_ALL_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"


def _kimi(name: str, arguments: dict[str, Any], n: int) -> str:
    return f"{_KIMI}functions.{name}:{n}{_KIMI_ARGS}{_json(arguments)}{_KIMI_END}"


_COMMENT, _FINAL = "<|channel|>commentary", "<|channel|>final<|message|>"
_THOUGHT, _NEXT = "<|channel|>analysis<|message|>Hm.<|end|>", "<|start|>assistant"


def _gpt_oss(name: str, arguments: dict[str, Any], _n: int) -> str:
    return f"{_COMMENT} to=functions.{name} <|constrain|>json<|message|>{_json(arguments)}<|call|>"


Writer = Callable[[str, dict[str, Any], int], str]
_FAMILIES: dict[str, tuple[Writer, str, str, str]] = {
    "HERMES": (_hermes, "", "\n", ""), "QWEN_CODER": (_qwen_coder, "", "\n", ""), "GLM": (_glm, "", "\n", ""),
    "LLAMA": (_llama, "", "; ", ""), "MISTRAL": (_mistral, "", "", ""), "DEEPSEEK": (_deepseek, _ALL, "", _ALL_END),
    "KIMI": (_kimi, _KIMI_ALL, "", _KIMI_ALL_END), "GPT_OSS": (_gpt_oss, "", _NEXT, ""),
}  # fmt: skip
"""How a family writes one call, and what it writes before, between and behind calls."""


def written(family: str, calls: Sequence[Call]) -> str:
    write, first, between, last = _FAMILIES[family]
    return first + between.join(write(*call, n) for n, call in enumerate(calls)) + last


def _examples(family: str) -> list[Example]:
    made = [(what, written(family, calls), "", calls) for what, calls in WRITTEN.items()]
    if family not in ("LLAMA", "GPT_OSS"):  # whose text is told from calls in other ways
        made.append(("text before it", f"I look.\n\n{written(family, [NOW])}", "I look.", [NOW]))
    cut = written(family, [PARIS]).partition("ris")[0]
    return [*made, _same("cut in the arguments", cut)]


def _same(what: str, answer: str) -> Example:
    """An answer without a call."""
    return what, answer, answer, []


_FENCED = "\n".join(
    f"{_ONE}function{_SEP}weather\n```json\n{_json(arguments)}\n```{_END}" for _, arguments in (PARIS, ROME)
)  # fmt: skip
_LISTED = '{"name": "weather", "arguments": {"city": "Paris"}'

OTHERS: dict[str, list[Example]] = {
    "HERMES": [
        ("text around it", 'Now: <tool_call>{"name": "now", "arguments": {}}</tool_call>\nDone.', "Now:Done.", [NOW]),
        ("arguments first", '<tool_call>\n{"arguments": {"city": "Paris"}, "name": "weather"}\n</tool_call>', "", [PARIS]),
        ("without its last mark", '<tool_call>\n{"name": "now"}\n', "", [NOW]),
        _same("cut in the name", '<tool_call>\n{"name": "wea'),
        _same("arguments that are a list", '<tool_call>{"name": "now", "arguments": "[1]"}</tool_call>'),
        _same("no JSON", "<tool_call>weather(Paris)</tool_call>"),
    ],
    "QWEN_CODER": [
        ("without the outer mark", "<function=now>\n</function>\nok", "ok", [NOW]),
        _same("cut between values", "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n"),
        _same("no function", "A <tool_call> is a mark."),
    ],
    "GLM": [
        ("in one line", "<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>", "", [PARIS]),
        _same("cut in a key", "<tool_call>weather\n<arg_key>ci"),
        _same("words behind the mark", "The <tool_call> mark\nbegins a call."),
    ],
    "LLAMA": [
        ("behind the tag", '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
        ("with its type", '{"type": "function", "name": "weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
        ("text before the tag", 'I look it up.\n<|python_tag|>{"name": "now", "parameters": {}}', "I look it up.", [NOW]),
        ("built in", '<|python_tag|>weather.call(city="Rome", days=3)', "", [ROME]),
        _same("JSON that is an answer", '{"name": "Bob", "parameters": {}}'),
        _same("other JSON", '{"city": "Paris", "days": 3}'),
        _same("words", 'Say {"name": "now"} to me.'),
    ],
    "MISTRAL": [
        ("several in a list", f'[TOOL_CALLS] [{_LISTED}, "id": "abcdef123"}}, {_LISTED}}}]', "", [PARIS, PARIS]),
        ("with an id", '[TOOL_CALLS]weather[CALL_ID]abcdef123[ARGS]{"city": "Paris"}', "", [PARIS]),
        ("without ARGS", '[TOOL_CALLS]weather{"city": "Paris"}', "", [PARIS]),
        ("cut in a list", f'[TOOL_CALLS][{_LISTED}}}, {{"name": "wea', ', {"name": "wea', [PARIS]),
        _same("no call", "[TOOL_CALLS] are a mark"),
    ],
    "DEEPSEEK": [
        ("3, several", f"{_ALL}{_FENCED}{_ALL_END}", "", [PARIS, ROME]),
        ("without the outer mark", f"{_ONE}now{_SEP}{{}}{_END}", "", [NOW]),
        ("cut before the second", f"{_ALL}{_deepseek(*PARIS, 0)}{_ONE}wea", f"{_ONE}wea", [PARIS]),
        _same("no call", f"{_ALL} is a mark"),
    ],
    "KIMI": [
        ("without its space of names", f'{_KIMI}weather:0{_KIMI_ARGS}{{"city": "Paris"}}{_KIMI_END}', "", [PARIS]),
        ("no object", f"{_KIMI_ALL}{_KIMI}functions.now:0{_KIMI_ARGS}{_KIMI_END}{_KIMI_ALL_END}", "", [NOW]),
        ("lines", f"{_KIMI_ALL}\n{_KIMI} functions.now:3 {_KIMI_ARGS} {{}} {_KIMI_END}\n{_KIMI_ALL_END}", "", [NOW]),
        _same("cut in the name", f"{_KIMI_ALL}{_KIMI}functions.wea"),
        _same("no call", f"The mark {_KIMI_ALL} begins them."),
    ],
    "GPT_OSS": [
        ("behind a thought", f"{_THOUGHT}{_NEXT}{_gpt_oss(*PARIS, 0)}", "", [PARIS]),
        ("whom in front", f'{_NEXT} to=functions.weather{_COMMENT} json<|message|>{{"city": "Paris"}}<|call|>', "", [PARIS]),
        ("whom first of all", f' to=functions.weather{_COMMENT} json<|message|>{{"city": "Paris"}}<|call|>', "", [PARIS]),
        ("text before it", f"{_COMMENT}<|message|>I look.<|end|>{_NEXT}{_gpt_oss(*NOW, 0)}", "I look.", [NOW]),
        ("a line behind it", f"{_gpt_oss(*PARIS, 0)}\n", "", [PARIS]),
        ("in the other channel", "<|channel|>analysis to=functions.now code<|message|>{}<|call|>", "", [NOW]),
        ("an answer", f"{_THOUGHT}{_NEXT}{_FINAL}It rains.<|return|>", "It rains.", []),
        ("cut in the header", f"{_THOUGHT}{_NEXT}{_COMMENT} to=functions.wea", "", []),
    ],
}  # fmt: skip
"""Further answers: in other forms, cut elsewhere, and none of a call."""

FAMILIES = {family: [*_examples(family), *OTHERS[family]] for family in _FAMILIES}
