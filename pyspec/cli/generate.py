"""`pyspec generate`: one prompt, one answer on stdout, one line of statistics on stderr."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, BinaryIO

import click
from rich.console import Console

from pyspec.cli.interrupt import interruptible
from pyspec.cli.options import (
    model_options,
    open_model,
    sampling,
    sampling_options,
    speculation,
    speculation_options,
)
from pyspec.cli.show import stats_line
from pyspec.display import safe, token_text
from pyspec.errors import InputEncoding, InputTooLong, OptionError
from pyspec.llama import SpeculativeLlama
from pyspec.stream import Piece, stream_text
from pyspec.template import PLAIN, ChatTemplate, Message

MAX_INPUT = 1 << 20
"""Bytes of a prompt that are read unless --max-input says otherwise."""


@click.command()
@click.argument("prompt", required=False)
@click.option(
    "-f", "--file", type=click.Path(path_type=Path), help="Read the prompt from a file; - is stdin."
)
@model_options
@speculation_options
@sampling_options
@click.option(
    "-n",
    "--max-tokens",
    type=int,
    default=512,
    show_default=True,
    help="Most tokens of the answer; -1 for as many as fit.",
)
@click.option("-s", "--system", help="System text.")
@click.option("--raw", is_flag=True, help="Give the prompt as it is, without a chat template.")
@click.option(
    "--stop", multiple=True, help="End the answer before this text; may be given more than once."
)
@click.option("--tokens", is_flag=True, help="Say for each token where it came from.")
@click.option("--stats/--no-stats", default=True, help="A line of statistics on stderr.")
@click.option(
    "--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@click.option(
    "--max-input", type=click.IntRange(min=1), default=MAX_INPUT, show_default=True, help="Bytes."
)
def generate(prompt: str | None, file: Path | None, max_input: int, **options: Any) -> None:
    """Answer PROMPT, or the text of a file, or stdin (-)."""
    if options["max_tokens"] < -1:
        raise OptionError(
            f"-n is {options['max_tokens']}", "use 0 or more, or -1 for as many tokens as fit"
        )
    text = _prompt_text(prompt, file, max_input)
    choice = sampling(options)
    with open_model(options) as llm:
        pieces = _answer(llm, text, options, choice)
        if options["as_json"]:
            click.echo(json.dumps(_report(llm, pieces, options), ensure_ascii=False))
        elif options["tokens"]:
            _print_tokens(llm, pieces, options["color"])
        if options["stats"] and not options["as_json"]:
            click.echo(stats_line(llm.last_speculation, llm.last_timings), err=True)
    if pieces[-1].finish_reason == "cancelled":
        sys.exit(130)


def _prompt_text(prompt: str | None, file: Path | None, limit: int) -> str:
    if (prompt is None) == (file is None):
        raise OptionError("give either a prompt or -f FILE", "`-` as the prompt reads stdin")
    if prompt is not None and prompt != "-":
        try:
            prompt.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputEncoding(
                f"the prompt is not UTF-8 at character {error.start}", "check the terminal"
            ) from error
        return prompt
    if file is not None and str(file) != "-":
        try:
            with file.open("rb") as stream:
                return _read(stream, limit, str(file))
        except OSError as error:
            raise OptionError(
                f"{file} cannot be read: {error.strerror}", "name a readable text file"
            ) from error
    return _read(sys.stdin.buffer, limit, "stdin")


def _read(stream: BinaryIO, limit: int, name: str) -> str:
    data = stream.read(limit + 1)
    if len(data) > limit:
        raise InputTooLong(f"{name} holds more than {limit} bytes", "raise --max-input")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputEncoding(
            f"{name} is not UTF-8 at byte {error.start}, line {line}", "convert it first"
        ) from error


def _prompt_tokens(llm: SpeculativeLlama, text: str, options: dict[str, Any]) -> list[int]:
    template = ChatTemplate.of(llm)
    if options["raw"] or template.format is PLAIN:
        tokens: list[int] = llm.tokenize(
            text.encode(), add_bos=bool(llm._model.add_bos_token()), special=False
        )
        return tokens or [llm.token_bos()]
    system = (
        [Message(role="system", content=options["system"])] if options["system"] is not None else []
    )
    return template.prompt([*system, Message(role="user", content=text)])


def _answer(llm: SpeculativeLlama, text: str, options: dict[str, Any], choice: Any) -> list[Piece]:
    """Generate, writing text to stdout as it comes unless it is printed later as a whole."""
    tokens = _prompt_tokens(llm, text, options)
    quiet = options["as_json"] or options["tokens"]
    if options["max_tokens"] == 0:
        return [Piece("", (), "length")]
    pieces = []
    on_terminal = sys.stdout.isatty()
    with interruptible(llm.cancel):
        stream = stream_text(
            llm,
            tokens,
            choice,
            max_tokens=options["max_tokens"],
            stop=options["stop"],
            speculation=speculation(options),
        )
        for piece in stream:
            pieces.append(piece)
            if not quiet and piece.text:
                sys.stdout.write(safe(piece.text) if on_terminal else piece.text)
                sys.stdout.flush()
    if not quiet:
        click.echo()
    return pieces


def _report(llm: SpeculativeLlama, pieces: list[Piece], options: dict[str, Any]) -> dict[str, Any]:
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
    if options["tokens"]:
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


def _print_tokens(llm: SpeculativeLlama, pieces: list[Piece], color: str) -> None:
    tokens = [token for piece in pieces for token in piece.tokens]
    console = Console(no_color=color == "never", force_terminal=True if color == "always" else None)
    coloured = console.color_system is not None and not console.no_color
    console.print(token_text(tokens, llm.piece, coloured), soft_wrap=True, end="")
