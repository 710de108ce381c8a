"""What written answers call, and ten answers of each of eight families, those with control tokens for marks last.

Each is (what it is, the answer, its content, its calls as (name, arguments)). The tools are those of `FUNCTIONS`.
"""

from typing import Any

Example = tuple[str, str, str, list[tuple[str, dict[str, Any]]]]

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

PARIS = ("weather", {"city": "Paris"})
ROME = ("weather", {"city": "Rome", "days": 3})
NOW: tuple[str, dict[str, Any]] = ("now", {})
DEEP = ("weather", {"city": "Köln", "options": {"k": [1, None, True], "s": 'a "b" {c}'}})
CODE = ("write_file", {"path": "a.py", "text": "if x < 3:\n    print('</b>')\n"})

DEEP_JSON = '{"city": "Köln", "options": {"k": [1, null, true], "s": "a \\"b\\" {c}"}}'
CODE_JSON = '{"path": "a.py", "text": "if x < 3:\\n    print(\'</b>\')\\n"}'


def _same(what: str, answer: str) -> Example:
    """An answer without a call."""
    return what, answer, answer, []


HERMES: list[Example] = [
    ("one", '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>', "", [PARIS]),
    (
        "text before it",
        'Let me look.\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        "Let me look.", [PARIS],
    ),
    (
        "several",
        ('<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n<tool_call>\n'
        '{"name": "weather", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>'),
        "", [PARIS, ROME],
    ),
    ("nested", f'<tool_call>{{"name": "weather", "arguments": {DEEP_JSON}}}</tool_call>', "", [DEEP]),
    ("text around it", 'Now: <tool_call>{"name": "now", "arguments": {}}</tool_call>\nDone.', "Now:Done.", [NOW]),
    (
        "arguments first", '<tool_call>\n{"arguments": {"city": "Rome", "days": 3}, "name": "weather"}\n</tool_call>',
        "", [ROME],
    ),
    ("without its last mark", '<tool_call>\n{"name": "now"}\n', "", [NOW]),
    _same("cut in the arguments", 'So <tool_call>\n{"name": "weather", "arguments": {"city": "Par'),
    _same("cut in the name", '<tool_call>\n{"name": "wea'),
    _same("no JSON", "<tool_call>weather(Paris)</tool_call>"),
]  # fmt: skip

QWEN_CODER: list[Example] = [
    (
        "one", "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        "", [PARIS],
    ),
    (
        "text before it",
        "I will see.\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        "I will see.", [PARIS],
    ),
    (
        "several",
        ("<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
        "<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"),
        "", [PARIS, ROME],
    ),
    (
        "nested",
        ("<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n<parameter=options>\n"
        '{"k": [1, null, true], "s": "a \\"b\\" {c}"}\n</parameter>\n</function>\n</tool_call>'),
        "", [DEEP],
    ),
    (
        "lines of code",
        ("<tool_call>\n<function=write_file>\n<parameter=path>\na.py\n</parameter>\n<parameter=text>\nif x < 3:\n"
        "    print('</b>')\n\n</parameter>\n</function>\n</tool_call>"),
        "", [CODE],
    ),
    ("no arguments", "<tool_call>\n<function=now>\n</function>\n</tool_call>", "", [NOW]),
    ("without the outer mark", "<function=now>\n</function>\nok", "ok", [NOW]),
    _same("cut in a value", "<tool_call>\n<function=weather>\n<parameter=city>\nPar"),
    _same("cut between values", "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n"),
    _same("no function", "A <tool_call> is a mark."),
]  # fmt: skip

GLM: list[Example] = [
    ("one", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>", "", [PARIS]),
    ("in one line", "<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>", "", [PARIS]),
    (
        "text before it",
        "Let me see.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
        "Let me see.", [PARIS],
    ),
    (
        "several",
        ("<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>\n<tool_call>weather\n"
        "<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"),
        "", [PARIS, ROME],
    ),
    (
        "nested",
        ("<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Köln</arg_value>\n<arg_key>options</arg_key>\n"
        '<arg_value>{"k": [1, null, true], "s": "a \\"b\\" {c}"}</arg_value>\n</tool_call>'),
        "", [DEEP],
    ),
    (
        "lines of code",
        ("<tool_call>write_file\n<arg_key>path</arg_key>\n<arg_value>a.py</arg_value>\n<arg_key>text</arg_key>\n"
        "<arg_value>if x < 3:\n    print('</b>')\n</arg_value>\n</tool_call>"),
        "", [CODE],
    ),
    ("no arguments", "<tool_call>now\n</tool_call>", "", [NOW]),
    _same("cut in a value", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Pa"),
    _same("cut in a key", "<tool_call>weather\n<arg_key>ci"),
    _same("words behind the mark", "The <tool_call> mark\nbegins a call."),
]  # fmt: skip

LLAMA: list[Example] = [
    ("one", '{"name": "weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    ("behind the tag", '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    (
        "several",
        '{"name": "weather", "parameters": {"city": "Paris"}}; {"name": "weather", "parameters": {"city": "Rome", "days": 3}}',
        "", [PARIS, ROME],
    ),
    ("nested", f'{{"type": "function", "name": "weather", "parameters": {DEEP_JSON}}}', "", [DEEP]),
    ("text before the tag", 'I look it up.\n<|python_tag|>{"name": "now", "parameters": {}}', "I look it up.", [NOW]),
    ("built in", '<|python_tag|>weather.call(city="Rome", days=3)', "", [ROME]),
    _same("cut", '{"name": "weather", "parameters": {"ci'),
    _same("JSON that is an answer", '{"name": "Bob", "parameters": {}}'),
    _same("other JSON", '{"city": "Paris", "days": 3}'),
    _same("words", 'Say {"name": "now"} to me.'),
]  # fmt: skip

MISTRAL: list[Example] = [
    ("one", '[TOOL_CALLS]weather[ARGS]{"city": "Paris"}', "", [PARIS]),
    ("a list", '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris"}}]', "", [PARIS]),
    (
        "several", '[TOOL_CALLS]weather[ARGS]{"city": "Paris"}[TOOL_CALLS]weather[ARGS]{"city": "Rome", "days": 3}',
        "", [PARIS, ROME],
    ),
    (
        "several in a list",
        ('[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}, "id": "abcdef123"}, '
        '{"name": "weather", "arguments": {"city": "Rome", "days": 3}, "id": "abcdef124"}]'),
        "", [PARIS, ROME],
    ),
    ("with an id", f"[TOOL_CALLS]weather[CALL_ID]abcdef123[ARGS]{DEEP_JSON}", "", [DEEP]),
    ("text before it", "I look.[TOOL_CALLS]now[ARGS]{}", "I look.", [NOW]),
    ("without ARGS", f"[TOOL_CALLS]write_file{CODE_JSON}", "", [CODE]),
    (
        "cut in a list", '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "wea',
        ', {"name": "wea', [PARIS],
    ),
    _same("cut in the arguments", '[TOOL_CALLS]weather[ARGS]{"city": "P'),
    _same("no call", "[TOOL_CALLS] are a mark"),
]  # fmt: skip

_ALL, _ALL_END, _ONE, _END, _SEP = (
    f"<\uff5ctool\u2581{words}\uff5c>"
    for words in ("calls\u2581begin", "calls\u2581end", "call\u2581begin", "call\u2581end", "sep")
)

DEEPSEEK: list[Example] = [
    ("3.1", f'{_ALL}{_ONE}weather{_SEP}{{"city": "Paris"}}{_END}{_ALL_END}', "", [PARIS]),
    ("3", f'{_ALL}{_ONE}function{_SEP}weather\n```json\n{{"city": "Paris"}}\n```{_END}{_ALL_END}', "", [PARIS]),
    (
        "3.1, several",
        f'{_ALL}{_ONE}weather{_SEP}{{"city": "Paris"}}{_END}{_ONE}weather{_SEP}{{"city": "Rome", "days": 3}}{_END}{_ALL_END}',
        "", [PARIS, ROME],
    ),
    (
        "3, several",
        (f'{_ALL}{_ONE}function{_SEP}weather\n```json\n{{"city": "Paris"}}\n```{_END}\n{_ONE}function{_SEP}weather\n```json\n'
        f'{{"city": "Rome", "days": 3}}\n```{_END}{_ALL_END}'),
        "", [PARIS, ROME],
    ),
    ("nested", f"{_ALL}{_ONE}weather{_SEP}{DEEP_JSON}{_END}{_ALL_END}", "", [DEEP]),
    ("text before it", f"I look.\n\n{_ALL}{_ONE}now{_SEP}{{}}{_END}{_ALL_END}", "I look.", [NOW]),
    ("without the outer mark", f"{_ONE}write_file{_SEP}{CODE_JSON}{_END}", "", [CODE]),
    _same("cut in the arguments", f'{_ALL}{_ONE}weather{_SEP}{{"city": '),
    ("cut before the second", f'{_ALL}{_ONE}weather{_SEP}{{"city": "Paris"}}{_END}{_ONE}wea', f"{_ONE}wea", [PARIS]),
    _same("no call", f"{_ALL} is a mark"),
]  # fmt: skip

_KIMI, _KIMI_ARGS = "<|tool_call_begin|>", "<|tool_call_argument_begin|>"
_KIMI_END = "<|tool_call_end|>"
_KIMI_ALL, _KIMI_ALL_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"

KIMI: list[Example] = [
    (
        "one", f'{_KIMI_ALL}{_KIMI}functions.weather:0{_KIMI_ARGS}{{"city": "Paris"}}{_KIMI_END}{_KIMI_ALL_END}', "",
        [PARIS],
    ),
    (
        "without its space of names",
        f'{_KIMI_ALL}{_KIMI}weather:0{_KIMI_ARGS}{{"city": "Paris"}}{_KIMI_END}{_KIMI_ALL_END}', "", [PARIS],
    ),
    (
        "several",
        (f'{_KIMI_ALL}{_KIMI}functions.weather:0{_KIMI_ARGS}{{"city": "Paris"}}{_KIMI_END}{_KIMI}'
        f"functions.weather:1{_KIMI_ARGS}"
        f'{{"city": "Rome", "days": 3}}{_KIMI_END}{_KIMI_ALL_END}'),
        "", [PARIS, ROME],
    ),
    ("nested", f"{_KIMI_ALL}{_KIMI}functions.weather:0{_KIMI_ARGS}{DEEP_JSON}{_KIMI_END}{_KIMI_ALL_END}", "", [DEEP]),
    (
        "text before it", f"I look.{_KIMI_ALL}{_KIMI}functions.now:0{_KIMI_ARGS}{{}}{_KIMI_END}{_KIMI_ALL_END}",
        "I look.", [NOW],
    ),
    ("no arguments", f"{_KIMI_ALL}{_KIMI}functions.now:0{_KIMI_ARGS}{_KIMI_END}{_KIMI_ALL_END}", "", [NOW]),
    (
        "lines", f"{_KIMI_ALL}\n{_KIMI} functions.write_file:3 {_KIMI_ARGS} {CODE_JSON} {_KIMI_END}\n{_KIMI_ALL_END}",
        "", [CODE],
    ),
    _same("cut in the arguments", f"{_KIMI_ALL}{_KIMI}functions.weather:0{_KIMI_ARGS}{{"),
    _same("cut in the name", f"{_KIMI_ALL}{_KIMI}functions.wea"),
    _same("no call", f"The mark {_KIMI_ALL} begins them."),
]  # fmt: skip

_COMMENT, _FINAL = "<|channel|>commentary", "<|channel|>final<|message|>"
_THOUGHT, _NEXT = "<|channel|>analysis<|message|>Hm.<|end|>", "<|start|>assistant"

GPT_OSS: list[Example] = [
    (
        "one",
        f'{_THOUGHT}{_NEXT}{_COMMENT} to=functions.weather <|constrain|>json<|message|>{{"city": "Paris"}}<|call|>',
        "", [PARIS],
    ),
    (
        "whom in front",
        f'{_THOUGHT}{_NEXT} to=functions.weather{_COMMENT} json<|message|>{{"city": "Paris"}}<|call|>', "", [PARIS],
    ),
    ("whom first of all", f' to=functions.weather{_COMMENT} json<|message|>{{"city": "Paris"}}<|call|>', "", [PARIS]),
    (
        "several",
        (f'{_COMMENT} to=functions.weather<|message|>{{"city": "Paris"}}<|call|>{_NEXT}'
        f"{_COMMENT} to=functions.weather<|message|>"
        '{"city": "Rome", "days": 3}<|call|>'),
        "", [PARIS, ROME],
    ),
    ("nested", f"{_COMMENT} to=functions.weather <|constrain|>json<|message|>{DEEP_JSON}<|call|>", "", [DEEP]),
    (
        "text before it",
        f"{_COMMENT}<|message|>I look.<|end|>{_NEXT}{_COMMENT} to=functions.now<|message|>{{}}<|call|>", "I look.",
        [NOW],
    ),
    (
        "in the other channel", f"<|channel|>analysis to=functions.write_file code<|message|>{CODE_JSON}<|call|>", "",
        [CODE],
    ),
    ("an answer", f"{_THOUGHT}{_NEXT}{_FINAL}It rains.<|return|>", "It rains.", []),
    _same("cut in the arguments", f'{_COMMENT} to=functions.weather<|message|>{{"city"'),
    ("cut in the header", f"{_THOUGHT}{_NEXT}{_COMMENT} to=functions.wea", "", []),
]  # fmt: skip


FAMILIES = {
    "HERMES": HERMES, "QWEN_CODER": QWEN_CODER, "GLM": GLM, "LLAMA": LLAMA, "MISTRAL": MISTRAL,
    "DEEPSEEK": DEEPSEEK, "KIMI": KIMI, "GPT_OSS": GPT_OSS,
}  # fmt: skip
