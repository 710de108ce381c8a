"""What drafts gain for one model on this machine, in the two uses that differ most: edits of a text, and free chat."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import geometric_mean
from time import perf_counter

import msgspec

from pyspec.chat.conversation import LlamaChat
from pyspec.errors import EngineError
from pyspec.llama.options import OFF, AnswerOptions, Speculation
from pyspec.machine.files import Stamp, recall_as, remember_json
from pyspec.sampling.chain import Sampling
from pyspec.text.result import Result, result_of

_TEXTS = (
    """Anna keeps the light on the north shore. Each evening she climbs the ninety steps, trims the wick and writes the wind
into the book. In winter nobody comes for weeks, and Anna reads the old entries aloud to the dog.""",
    """The meeting is on Monday at nine in room four. Please bring the plan of the second quarter, the list of open orders
and the names of those who will travel. Whoever cannot come on Monday writes to the office before noon.""",
    """def area(width, height):
    if width < 0 or height < 0:
        raise ValueError("sizes are not negative")
    return width * height


def volume(width, height, depth):
    return area(width, height) * depth""",
)
_CHANGES = (
    "Write this text again, with Mara in place of Anna:",
    "Write this text again, with Thursday in place of Monday:",
    "Write this code again, with the name breadth in place of width:",
)
EDITS = tuple(f"{change}\n\n{text}" for change, text in zip(_CHANGES, _TEXTS))
CHATS = (
    "Why does bread rise?",
    "I have a free afternoon in a small town by the sea. What could I do?",
    "Explain to a child what a shadow is.",
)
"""Prompts of each use; nothing is tuned for them."""


Report = Callable[[int, int, str], None]
"""Takes how far a measurement is: steps done, steps in all, and the current one."""


class GainFigures(msgspec.Struct, frozen=True):
    """Speeds with drafts over those without, as geometric means. temperature: of chats; edits are made at 0."""

    edits: float
    chat: float
    draft: str
    temperature: float
    plain: float = 0.0
    """Tokens a second without drafts."""

    @property
    def sentence(self) -> str:
        used = "lookup" if self.draft == "none" else self.draft.replace("+", " + ")
        return (
            f"here: {self.edits:.1f} times for edits, {self.chat:.1f} for chat; using {used}; "
            f"temperature 0 for edits, {self.temperature:g} for chat"
        )


@dataclass(frozen=True)
class GainPlan:
    """How long answers are, how many prompts each use has, how chats are drawn, and after how long no more are asked."""

    max_tokens: int = 96
    seconds: float = 60.0
    prompts: int = 3
    chat: Sampling = Sampling(seed=1)


def measure_gains(model: LlamaChat, plan: GainPlan, report: Report) -> GainFigures:
    """Answer each prompt with drafts and without, one after the other; the first answer of all is not counted.

    Raises EngineError if an answer is too short to be timed.
    """
    model.thinking = False
    greedy = Sampling(temperature=0.0)
    pairs = list(zip(EDITS, CHATS))[: plan.prompts]
    runs = [
        use for edit, chat in pairs for use in (("edits", edit, greedy), ("chat", chat, plan.chat))
    ]
    start = perf_counter()
    _answer(model, EDITS[0], greedy, Speculation(), 16)
    gains: dict[str, list[float]] = {"edits": [], "chat": []}
    plain = []
    for done, (use, text, sampling) in enumerate(runs):
        if perf_counter() - start > plan.seconds and all(gains.values()):
            break
        report(done, len(runs), use)
        ways = (Speculation(), OFF) if done % 2 == 0 else (OFF, Speculation())
        rates = {
            way.enabled: _answer(model, text, sampling, way, plan.max_tokens).rate for way in ways
        }
        if min(rates.values()) > 0.0:
            gains[use].append(rates[True] / rates[False])
            plain.append(rates[False])
    if not all(gains.values()):
        raise EngineError("the model's answers are too short to be timed", "give another model")
    edits, chat = (geometric_mean(gains[use]) for use in ("edits", "chat"))
    return GainFigures(
        edits, chat, model.draft, plan.chat.temperature, round(geometric_mean(plain), 2)
    )


def _answer(model: LlamaChat, text: str, sampling: Sampling, way: Speculation, most: int) -> Result:
    prompt = model.prompt([{"role": "user", "content": text}])
    options = AnswerOptions(sampling, replace(way, verification=None), most)
    with closing(model.answer(prompt, options)) as pieces:
        return result_of(list(pieces), model.stats)


# -- what is kept ------------------------------------------------------------------------------------------------------

_KIND = "gains 1"


def keep_gains(target: Stamp, found: GainFigures) -> None:
    """Keep what was found for a state of the target's file."""
    remember_json(_KIND, target, found)


def kept_gains(target: Stamp) -> GainFigures | None:
    """Return what was found before, None if nothing was."""
    return recall_as(_KIND, target, GainFigures)
