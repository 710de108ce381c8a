"""Ten written answers of each of five ways to mark reasoning: what the prompt ends with, the answer, and what is in it.

Each is (what it is, the prompt's end, the answer, its reasoning, its content, whether it was cut inside).
"""

Example = tuple[str, str, str, str, str, bool]


def _tagged(first: str, last: str) -> list[Example]:
    """Of a family that writes reasoning between two marks at the beginning."""
    return [
        ("marked", "", f"{first}Hm.{last}Yes.", "Hm.", "Yes.", False),
        ("on lines of its own", "", f"{first}\nHm.\nOh.\n{last}\n\nYes.\n", "Hm.\nOh.", "Yes.\n", False),
        ("opened by the prompt", f"{first}\n", f"Hm.\n{last}\n\nYes.", "Hm.", "Yes.", False),
        ("opened twice", first, f"{first}\nHm.{last}Yes.", "Hm.", "Yes.", False),
        ("closed by the prompt", f"{first}\n\n{last}\n\n", "Yes.", "", "Yes.", False),
        ("empty", "", f"{first}\n\n{last}\n\nYes.", "", "Yes.", False), ("none", "", " Yes.\n", "", " Yes.\n", False),
        ("cut", "", f"{first}Hm", "Hm", "", True), ("cut, opened by the prompt", first, "Hm, ", "Hm,", "", True),
        ("half of its last mark", first, f"Hm.{last[:-1]}", f"Hm.{last[:-1]}", "", True),
    ]  # fmt: skip


THINK = [
    *_tagged("<think>", "</think>")[:-1],
    ("a mark in words", "", "Write <think> first.", "", "Write <think> first.", False),
]
BRACKETS = _tagged("[THINK]", "[/THINK]")
COHERE = [
    *_tagged("<|START_THINKING|>", "<|END_THINKING|>")[:-1],
    ("with marks of the content", "",
     "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>", "Hm.", "Yes.", False),
]  # fmt: skip
_SAID = "<|channel>thought\n"
GEMMA: list[Example] = [
    ("marked", "", f"{_SAID}Hm.\n<channel|>Yes.", "Hm.", "Yes.", False),
    ("two of them", "", f"{_SAID}Hm.<channel|>Yes. {_SAID}Oh.<channel|>No.", "Hm.\n\nOh.", "Yes. No.", False),
    ("opened by the prompt", _SAID, "Hm.<channel|>Yes.", "Hm.", "Yes.", False),
    ("closed by the prompt", f"{_SAID}<channel|>", "Yes.", "", "Yes.", False),
    ("empty", "", f"{_SAID}<channel|>Yes.", "", "Yes.", False), ("none", "", "Yes.", "", "Yes.", False),
    ("without its name", "", "<|channel>Hm.<channel|>Yes.", "Hm.", "Yes.", False),
    ("behind content", "", f"So. {_SAID}Hm.<channel|>Yes.", "Hm.", "So. Yes.", False),
    ("cut", "", f"{_SAID}Hm", "Hm", "", True),
    ("cut in the second", "", f"{_SAID}Hm.<channel|>Yes.{_SAID}O", "Hm.\n\nO", "Yes.", True),
]  # fmt: skip
_THINKS, _SAYS = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
_NEXT = "<|start|>assistant"
CHANNELS: list[Example] = [
    ("marked", _NEXT, f"{_THINKS}Hm.<|end|>{_NEXT}{_SAYS}Yes.<|return|>", "Hm.", "Yes.", False),
    (
        "two of them", _NEXT, f"{_THINKS}Hm.<|end|>{_NEXT}{_THINKS}Oh.<|end|>{_NEXT}{_SAYS}Yes.", "Hm.\n\nOh.",
        "Yes.", False,
    ),
    ("none", _NEXT, f"{_SAYS}Yes.<|return|>", "", "Yes.", False),
    ("a preamble", _NEXT, f"<|channel|>commentary<|message|>So.<|end|>{_NEXT}{_SAYS}Yes.", "", "So.\n\nYes.", False),
    ("without a channel", _NEXT, "<|message|>Yes.<|return|>", "", "Yes.", False),
    ("no marks at all", _NEXT, "Yes.", "", "Yes.", False), ("cut", _NEXT, f"{_THINKS}Hm", "Hm", "", True),
    ("cut behind it", _NEXT, f"{_THINKS}Hm.<|end|>", "Hm.", "", False),
    ("cut in a header", _NEXT, f"{_THINKS}Hm.<|end|>{_NEXT}<|channel|>fin", "Hm.", "", False),
    ("cut in the content", _NEXT, f"{_THINKS}Hm.<|end|>{_NEXT}{_SAYS}Ye", "Hm.", "Ye", False),
]  # fmt: skip

FAMILIES = {
    "<think>": THINK, "[THINK]": BRACKETS, "<|START_THINKING|>": COHERE, "<|channel>": GEMMA,
    "<|channel|><|message|>": CHANNELS,
}  # fmt: skip
"""By what is in the family's template."""
