"""Ten written answers of each of four families whose marks are control tokens, and what is in them; see call_examples."""

from __future__ import annotations

from helpers.called import CODE, CODE_JSON, DEEP, DEEP_JSON, NOW, PARIS, ROME, Example

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
    ("cut in the arguments", '[TOOL_CALLS]weather[ARGS]{"city": "P', '[TOOL_CALLS]weather[ARGS]{"city": "P', []),
    ("no call", "[TOOL_CALLS] are a mark", "[TOOL_CALLS] are a mark", []),
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
    ("cut in the arguments", f'{_ALL}{_ONE}weather{_SEP}{{"city": ', f'{_ALL}{_ONE}weather{_SEP}{{"city": ', []),
    ("cut before the second", f'{_ALL}{_ONE}weather{_SEP}{{"city": "Paris"}}{_END}{_ONE}wea', f"{_ONE}wea", [PARIS]),
    ("no call", f"{_ALL} is a mark", f"{_ALL} is a mark", []),
]  # fmt: skip

_KIMI, _KIMI_ARGS, _KIMI_END = (
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
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
    (
        "cut in the arguments", f"{_KIMI_ALL}{_KIMI}functions.weather:0{_KIMI_ARGS}{{",
        f"{_KIMI_ALL}{_KIMI}functions.weather:0{_KIMI_ARGS}{{", [],
    ),
    ("cut in the name", f"{_KIMI_ALL}{_KIMI}functions.wea", f"{_KIMI_ALL}{_KIMI}functions.wea", []),
    ("no call", f"The mark {_KIMI_ALL} begins them.", f"The mark {_KIMI_ALL} begins them.", []),
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
    (
        "cut in the arguments", f'{_COMMENT} to=functions.weather<|message|>{{"city"',
        f'{_COMMENT} to=functions.weather<|message|>{{"city"', [],
    ),
    ("cut in the header", f"{_THOUGHT}{_NEXT}{_COMMENT} to=functions.wea", "", []),
]  # fmt: skip
