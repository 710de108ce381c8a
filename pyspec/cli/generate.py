"""`pyspec generate`: one prompt, one answer on stdout, one sentence about it on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from pyspec.chat.files import Dialogue, last_model
from pyspec.cli.command import TEXT, command, option
from pyspec.cli.options import (
    DialogueOptions,
    DraftOptions,
    EngineOptions,
    ModelOptions,
    SamplerOptions,
    ShownOptions,
    open_model,
)
from pyspec.cli.streams import console_of, exit_code, file_text, interruptible, prompt_text
from pyspec.display import (
    STATS_HELP,
    PromptStatus,
    counted,
    print_tokens,
    safe,
    stats_line,
    verdict,
)
from pyspec.errors import OptionError
from pyspec.llama import Piece, SpeculativeLlama, stream_text
from pyspec.mirror import PromptCache
from pyspec.sampling import Constraint, bounded, schema_grammar

_FILE = click.Path(path_type=Path, dir_okay=False)

MAX_INPUT = 1 << 20
"""Bytes of a prompt that are read unless --max-input says otherwise."""

EXAMPLES = [
    ('pyspec generate "Write a haiku about the sea."', "The default model"),
    ('cat report.txt | pyspec generate "Summarize:"', "A prompt, and what is piped behind it"),
    ('pyspec generate -m llama3.2:3b --draft llama3.2:1b "Why?"', "Models that ollama fetched"),
    ('pyspec generate -c "And shorter?"', "Go on with the last answer"),
    ('pyspec generate --json-schema schema.json "Name a city."', "JSON of a schema"),
]


@dataclass(frozen=True)
class PromptOptions(DialogueOptions):
    """Where the prompt comes from, and what it belongs to."""

    # fmt: off
    more: str | None = option("Prompt", "-p", "--prompt", type=TEXT, metavar="TEXT", help="The prompt, as PROMPT.")
    file: Path | None = option("Prompt", "-f", "--file", type=click.Path(path_type=Path),
        help="Read the prompt, or what follows it, from a file; - is stdin.")
    raw: bool = option("Prompt", "--raw", is_flag=True, help="Give the prompt as it is, without a chat template.")
    max_input: int = option("Prompt", "--max-input", type=click.IntRange(min=1), default=MAX_INPUT, metavar="N",
        help="Most bytes of a prompt.")
    prompt_cache: Path | None = option("Prompt", "--prompt-cache", type=_FILE,
        help="Keep what was read of the prompt in this file; the same beginning is then not read again.")
    # fmt: on

    def text(self, prompt: str | None) -> str:
        """The whole prompt, with the argument. Raises OptionError where there is none, or one twice."""
        if prompt is not None and self.more is not None:
            raise OptionError("there is a prompt twice", "give it as PROMPT or with -p")
        return prompt_text(self.more if prompt is None else prompt, self.file, self.max_input)


@dataclass(frozen=True)
class ShapeOptions:
    """What an answer must look like, and where it ends."""

    # fmt: off
    max_tokens: int = option("Answer", "-n", "--max-tokens", aliases=("--n-predict", "--predict"), default=512,
        metavar="N", help="Most tokens of the answer; -1 for as many as fit.")
    stop: tuple[str, ...] = option("Answer", "--stop", aliases=("-r", "--reverse-prompt"), multiple=True, type=TEXT,
        help="End the answer before this text; may be given more than once.")
    json_schema: str | None = option("Answer", "--json-schema", aliases=("-j",), type=TEXT, metavar="FILE|JSON",
        help="Answer with JSON of this schema; {} for any JSON.")
    json_schema_file: Path | None = option("Answer", "--json-schema-file", aliases=("-jf",), type=_FILE,
        help="The same, from a file.")
    grammar: str | None = option("Answer", "--grammar", type=TEXT, metavar="GBNF",
        help="Answer with text of this grammar.")
    grammar_file: Path | None = option("Answer", "--grammar-file", type=_FILE, help="The same, from a file.")
    # fmt: on

    def __post_init__(self) -> None:
        if self.max_tokens < -1:
            hint = "use 0 or more, or -1 for as many tokens as fit"
            raise OptionError(f"-n is {self.max_tokens}", hint)

    def gbnf(self) -> str | None:
        """The grammar of it, or None. Raises InputError for one that cannot be read or is too large."""
        named = [name for name in _READERS if getattr(self, name) is not None]
        if len(named) > 1:
            names = ", ".join("--" + name.replace("_", "-") for name in named)
            raise OptionError("an answer has one shape", f"leave out all but one of {names}")
        return _READERS[named[0]](getattr(self, named[0])) if named else None


@dataclass(frozen=True)
class OutputOptions(ShownOptions):
    """What is printed, beside the text or instead of it."""

    # fmt: off
    tokens: bool = option("Output", "--tokens", is_flag=True, help="Say for each token where it came from.")
    as_json: bool = option("Output", "--json", is_flag=True, help="Print one JSON object instead of text.")
    # fmt: on


@command(examples=EXAMPLES, epilog=STATS_HELP)
@click.argument("prompt", required=False, type=TEXT)
def generate(
    prompt: str | None,
    asked: PromptOptions,
    shape: ShapeOptions,
    models: ModelOptions,
    drafts: DraftOptions,
    sampler: SamplerOptions,
    engine: EngineOptions,
    output: OutputOptions,
) -> int:
    """Answer PROMPT, the text of a file, or what is piped to stdin; where there are several, joined in this order."""
    text = asked.text(prompt)
    sampling, speculation, grammar = sampler.sampling(), drafts.speculation, shape.gbnf()
    if asked.going_on and models.model is None:
        models = replace(models, model=last_model())
    with open_model(models, drafts, engine) as llm:
        constraint = None if grammar is None else Constraint(llm, grammar)
        dialogue = Dialogue.begin(
            llm, asked.system, raw=asked.raw, going_on=asked.going_on, log=asked.log
        )
        tokens = dialogue.prompt(text)
        pieces, signals = [Piece("", (), "length")], list[int]()
        if shape.max_tokens != 0:
            answer = partial(
                stream_text, llm, tokens, sampling, max_tokens=shape.max_tokens, stop=shape.stop,
                speculation=speculation, grammar=constraint,
            )  # fmt: skip
            cache = PromptCache(llm, asked.prompt_cache)
            cache.restore(tokens)
            shown = not (output.as_json or output.tokens)
            pieces, signals = _answer(answer, llm.cancel, lambda: cache.keep(tokens), shown=shown)
        dialogue.keep(text, pieces, sampling.seed)
        _say(llm, pieces, output, shape.max_tokens)
    return exit_code(signals) if pieces[-1].finish_reason == "cancelled" else 0


def _answer(
    answer: Callable[..., Iterator[Piece]],
    cancel: Callable[[], None],
    was_read: Callable[[], None],
    *,
    shown: bool,
) -> tuple[list[Piece], list[int]]:
    """Generate, writing text to stdout as it comes unless it is printed later as a whole; with the signals that came."""
    pieces: list[Piece] = []
    reading = PromptStatus(Console(stderr=True))
    with interruptible(cancel) as signals:

        def progress(done: int, total: int) -> None:
            reading(done, total)
            if signals:  # one that came before the engine had begun
                cancel()

        on_terminal = sys.stdout.isatty()
        for piece in answer(progress=progress):
            if not pieces:
                reading.stop()
                was_read()
            pieces.append(piece)
            if shown and piece.text:
                sys.stdout.write(safe(piece.text) if on_terminal else piece.text)
                sys.stdout.flush()
    reading.stop()
    if shown:
        click.echo()
    return pieces, signals


def _say(
    llm: SpeculativeLlama, pieces: list[Piece], output: OutputOptions, max_tokens: int
) -> None:
    """Everything behind the answer."""
    if output.as_json:
        click.echo(json.dumps(_report(llm, pieces, output.tokens), ensure_ascii=False))
        return
    if output.tokens:
        tokens = [token for piece in pieces for token in piece.tokens]
        print_tokens(console_of(output.color), tokens, llm.piece)
    if cut := _cut(llm, pieces, max_tokens):
        click.echo(cut, err=True)
    if output.stats is False or not llm.last_speculation:
        return
    rate = llm.last_timings["tokens_per_second"]
    click.echo(verdict(llm.last_speculation, rate), err=True)
    if output.stats:
        click.echo(stats_line(llm.last_speculation, rate), err=True)


def _cut(llm: SpeculativeLlama, pieces: list[Piece], most: int) -> str:
    """Why an answer that did not end by itself ended, or nothing."""
    reason = pieces[-1].finish_reason
    if reason == "length" and most > 0:
        return f"stopped at {counted(most, 'token')}; -n {2 * most} allows more, -n -1 has no limit"
    if reason == "context":
        n_ctx = llm.n_ctx()
        return f"stopped: the context of {n_ctx} tokens is full; -c {2 * n_ctx} has more room"
    return ""


def _report(llm: SpeculativeLlama, pieces: list[Piece], with_tokens: bool) -> dict[str, Any]:
    block = dict(llm.last_speculation)
    block.pop("timings", None)
    prompt, answer = block.pop("prompt_tokens", 0), sum(len(piece.tokens) for piece in pieces)
    report: dict[str, Any] = {
        "text": "".join(piece.text for piece in pieces),
        "finish_reason": pieces[-1].finish_reason,
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
        },
        "speculation": block,
        "timings": llm.last_timings,
    }
    if with_tokens:
        report["tokens"] = [
            {
                "id": token.id,
                "text": llm.piece(token.id).decode("utf-8", "replace"),
                "source": token.source.label,
                "gap": round(token.gap, 4),
            }
            for piece in pieces
            for token in piece.tokens
        ]
    return report


def _schema(text: str) -> str:
    if not text.lstrip().startswith("{"):
        return _schema_file(Path(text))
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"the JSON schema is no JSON: {error}", "check its quotes") from None
    return schema_grammar(schema)


def _schema_file(path: Path) -> str:
    text = file_text(path)
    if not text.lstrip().startswith("{"):
        raise OptionError(f"{path} holds no JSON object", "a schema begins with {")
    return _schema(text)


_READERS: dict[str, Callable[[Any], str]] = {
    "json_schema": _schema,
    "json_schema_file": _schema_file,
    "grammar": bounded,
    "grammar_file": lambda path: bounded(file_text(path)),
}
