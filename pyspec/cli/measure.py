"""`pyspec measure`: says in a sentence what drafts gain here, for your model: in edits of a text, and in free chat."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from statistics import geometric_mean
from time import perf_counter

import click
import msgspec

from pyspec.chat.talk import LlamaChat
from pyspec.cli.command import command, option, tell
from pyspec.cli.opening import open_model
from pyspec.cli.options import DraftOptions, EngineOptions, ModelOptions
from pyspec.engine.options import OFF, AnswerOptions, Speculation
from pyspec.errors import EngineError
from pyspec.machine.machine import Watch
from pyspec.sampling.options import Sampling
from pyspec.screen import run_progress
from pyspec.text.parts import Result, result_of

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

Report = Callable[[int, int, str], None]  # takes steps done, steps in all, and the current one


class GainFigures(msgspec.Struct, frozen=True):
    """Speeds with drafts over those without, as geometric means. temperature: of chats; edits are made at 0."""

    edits: float
    chat: float
    draft: str
    temperature: float
    plain: float = 0.0  # tokens a second without drafts

    @property
    def sentence(self) -> str:
        used = "lookup" if self.draft == "none" else self.draft.replace("+", " + ")
        return (
            f"here: {self.edits:.1f} times for edits, {self.chat:.1f} for chat; using {used}; "
            f"temperature 0 for edits, {self.temperature:g} for chat"
        )


EXAMPLES = [
    ("pyspec measure -m llama3.1:8b", "What drafts gain for this model here"),
    ("pyspec measure -m llama3.1:8b --draft llama3.2:1b", "The same with a draft of your choice"),
]


@dataclass(frozen=True)
class GainOptions:
    """How to measure."""

    # fmt: off
    temperature: float = option("Measuring", "--temp", type=click.FloatRange(min=0.0), default=0.8,
        help="Temperature of the chats; edits are made at 0.")
    max_tokens: int = option("Measuring", "-n", "--max-tokens", type=click.IntRange(min=8), default=96,
        help="Longest answer, tokens.")
    seconds: float = option("Measuring", "--seconds", type=click.FloatRange(min=1.0), default=60.0,
        help="Time to measure, roughly.")
    as_json: bool = option("Output", "--json", is_flag=True, help="Print one JSON object instead of the sentence.")
    # fmt: on


def measure_gains(model: LlamaChat, how: GainOptions, report: Report) -> GainFigures:
    """Answer each prompt with drafts and without; the very first does not count. Raises EngineError for too short answers."""
    model.thinking = False
    chatty = Sampling(temperature=how.temperature, seed=1)
    draws = {"edits": Sampling(temperature=0.0), "chat": chatty}
    runs = [run for pair in zip(EDITS, CHATS) for run in zip(draws, pair)]
    start = perf_counter()
    _answer(model, EDITS[0], draws["edits"], Speculation(), 16)
    gains: dict[str, list[float]] = {"edits": [], "chat": []}
    plain = []
    for done, (use, text) in enumerate(runs):
        if perf_counter() - start > how.seconds and all(gains.values()):
            break
        report(done, len(runs), use)
        ways = (Speculation(), OFF) if done % 2 == 0 else (OFF, Speculation())
        rates = {
            way.enabled: _answer(model, text, draws[use], way, how.max_tokens).rate for way in ways
        }
        if min(rates.values()) > 0.0:
            gains[use].append(rates[True] / rates[False])
            plain.append(rates[False])
    if not all(gains.values()):
        raise EngineError("the model's answers are too short to be timed", "give another model")
    edits, chat = (geometric_mean(gains[use]) for use in ("edits", "chat"))
    return GainFigures(edits, chat, model.draft, how.temperature, round(geometric_mean(plain), 2))


def _answer(model: LlamaChat, text: str, sampling: Sampling, way: Speculation, most: int) -> Result:
    prompt = model.prompt([{"role": "user", "content": text}])
    options = AnswerOptions(sampling, replace(way, verification=None), most)
    with closing(model.answer(prompt, options)) as pieces:
        return result_of(list(pieces), model.stats)


@command(examples=EXAMPLES)
def measure(options: GainOptions, models: ModelOptions, engine: EngineOptions) -> None:
    """Measure what drafts gain for MODEL in edits and in chat, and say it in a sentence.

    What is learned meanwhile, such as decode times, is kept for later runs.
    """
    opener = partial(open_model, models.steady(), DraftOptions(), engine)
    with closing(LlamaChat(opener, called=models.model)) as model, run_progress() as report:
        watch = Watch()
        found = measure_gains(model, options, report)
        others = watch.others() if watch.busy(int(model.llm.n_threads)) else 0.0
    if others:
        tell(f"other programs used {others:.1f} processors meanwhile; measure again", err=True)
    tell(msgspec.json.encode(found) if options.as_json else found.sentence)
