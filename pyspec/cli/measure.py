"""`pyspec measure`: says in a sentence what drafts gain here, for your model."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click
import msgspec

from pyspec.chat.conversation import LlamaChat
from pyspec.cli.command import command, option, tell
from pyspec.cli.consoles import run_progress, screen_of
from pyspec.cli.engine_options import EngineOptions
from pyspec.cli.gains import GainFigures, GainPlan, keep_gains, kept_gains, measure_gains
from pyspec.cli.opening import open_model
from pyspec.cli.options import DraftOptions, ModelOptions
from pyspec.hub.locate import resolve
from pyspec.machine.files import stamp
from pyspec.machine.watch import Watch
from pyspec.sampling.chain import Sampling

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
    kept: bool = option("Measuring", "--kept", is_flag=True, help="Say what was found before, and measure nothing.")
    as_json: bool = option("Output", "--json", is_flag=True, help="Print one JSON object instead of the sentence.")
    # fmt: on


@command(examples=EXAMPLES)
def measure(options: GainOptions, models: ModelOptions, engine: EngineOptions) -> int:
    """Measure what drafts gain for MODEL in edits and in chat, and say it in a sentence.

    What is learned meanwhile, such as decode times, is kept for later runs.
    """
    if options.kept:
        found = kept_gains(stamp(resolve(models.model)))
        if found is None:
            tell("this model was not measured yet; leave out --kept to measure it", err=True)
            return 1
        say_gains(found, options.as_json)
        return 0
    opener = partial(open_model, models.steady(), DraftOptions(), engine)
    with closing(LlamaChat(opener, called=models.model)) as model, run_progress() as report:
        watch = Watch()
        plan = replace(GainPlan(), max_tokens=options.max_tokens, seconds=options.seconds)
        plan = replace(plan, chat=Sampling(temperature=options.temperature, seed=1))
        found = measure_gains(model, plan, report)
        others = watch.others() if watch.busy(int(model.llm.n_threads)) else 0.0
        target = stamp(Path(model.llm.model_path))
    if others:
        tell(f"not kept, since other programs used {others:.1f} processors meanwhile", err=True)
    else:
        keep_gains(target, found)
    say_gains(found, options.as_json)
    return 0


def say_gains(found: GainFigures, as_json: bool) -> None:
    """Print what was found: an object, or the sentence, folded on a terminal."""
    if as_json:
        tell(msgspec.json.encode(found))
    else:
        screen_of("auto").out.print(found.sentence, markup=False, soft_wrap=not sys.stdout.isatty())
