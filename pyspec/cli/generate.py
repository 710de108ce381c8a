"""`pyspec generate`: one prompt, one answer on stdout, one sentence about it on stderr."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from msgspec.structs import asdict

from pyspec.chat.conversation import Conversation, Exchange, LlamaChat, unended, why_cut
from pyspec.chat.files import held_with, last_model, load, new_path, newest, restore, save
from pyspec.chat.settings import HIDE, UNASKED
from pyspec.cli.command import TEXT, command, option, tell
from pyspec.cli.engine_options import EngineOptions
from pyspec.cli.options import (
    CacheOptions,
    DialogueOptions,
    DraftOptions,
    ModelOptions,
    ShownOptions,
    open_model,
)
from pyspec.cli.sampler_options import SamplerOptions
from pyspec.cli.streams import exit_code, file_text, interruptible, prompt_text, screen_of
from pyspec.errors import InputError, OptionError, PyspecError
from pyspec.grammar.gbnf import of_grammar
from pyspec.grammar.languages import Constraint, Language
from pyspec.grammar.schemas import of_schema
from pyspec.llama.options import AnswerOptions
from pyspec.llama.pieces import result_of
from pyspec.llama.prompt_cache import PromptCache
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.screen.display import STATS_HELP, Screen, stats_line, verdict
from pyspec.screen.token_view import TokenPaint, has_colour, print_legend
from pyspec.store.files import Stamp, recall, remember
from pyspec.text.parts import Piece
from pyspec.text.result import Result

_FILE = click.Path(path_type=Path, dir_okay=False)

MAX_INPUT = 1 << 20
"""Largest prompt without --max-input, bytes."""

INCOMPLETE = 3
"""Exit status where an answer that follows a schema or grammar was cut: what there is of it is not valid."""

_CUT = ("length", "context")
"""Ends of an answer that are not its own."""

EXAMPLES = [
    ('pyspec generate "Name three rivers."', "The default model"),
    ('cat report.txt | pyspec generate "Summarize:"', "The prompt, followed by piped text"),
    ('pyspec generate -m llama3.1:8b --draft llama3.2:1b "Why?"', "Models from ollama"),
    ('pyspec generate -c "And shorter?"', "Continue from the last answer"),
    ('pyspec generate --json-schema schema.json "Name a city."', "JSON that follows a schema"),
]


@dataclass(frozen=True)
class PromptOptions(CacheOptions, DialogueOptions):
    """Where the prompt comes from, and which conversation it continues."""

    # fmt: off
    more: str | None = option("Prompt", "-p", "--prompt", type=TEXT, metavar="TEXT", help="The prompt; same as PROMPT.")
    file: Path | None = option("Prompt", "-f", "--file", type=click.Path(path_type=Path),
        help="Read the prompt, or text to add to it, from a file; - is stdin.")
    raw: bool = option("Prompt", "--raw", is_flag=True, help="Send the prompt unchanged, without the chat template.")
    max_input: int = option("Prompt", "--max-input", type=click.IntRange(min=1), default=MAX_INPUT, metavar="N",
        help="Largest prompt, bytes.")
    # fmt: on

    def text(self, prompt: str | None, taken: str = "") -> str:
        """Return the whole prompt; `prompt` is the argument. Raises OptionError if there is none, or if it is given twice.

        taken: see `prompt_text`.
        """
        if prompt is not None and self.more is not None:
            raise OptionError("the prompt is given twice", "use either PROMPT or -p")
        given = self.more if prompt is None else prompt
        return prompt_text(given, self.file, self.max_input, taken)


@dataclass(frozen=True)
class ShapeOptions:
    """What an answer must look like, and where it ends."""

    # fmt: off
    max_tokens: int = option("Answer", "-n", "--max-tokens", aliases=("--n-predict", "--predict"), default=512,
        metavar="N", help="Longest answer, tokens; -1 for as many as fit.")
    stop: tuple[str, ...] = option("Answer", "--stop", aliases=("-r", "--reverse-prompt"), multiple=True, type=TEXT,
        help="Stop before this text; may be repeated.")
    json_schema: str | None = option("Answer", "--json-schema", aliases=("-j",), type=TEXT, metavar="FILE|JSON",
        help="Answer with JSON that follows this schema; {} allows any JSON.")
    json_schema_file: Path | None = option("Answer", "--json-schema-file", aliases=("-jf",), type=_FILE,
        help="The same, from a file.")
    grammar: str | None = option("Answer", "--grammar", type=TEXT, metavar="GBNF",
        help="Answer with text that follows this grammar.")
    grammar_file: Path | None = option("Answer", "--grammar-file", type=_FILE, help="The same, from a file.")
    # fmt: on

    def __post_init__(self) -> None:
        if self.max_tokens < -1:
            hint = "use 0 or more, or -1 for as many as fit"
            raise OptionError(f"-n is {self.max_tokens}", hint)

    def language(self) -> Language | None:
        """Return what the answer must look like, or None. Raises InputError if that cannot be read or used."""
        named = [name for name in _READERS if getattr(self, name) is not None]
        if len(named) > 1:
            names = ", ".join("--" + name.replace("_", "-") for name in named)
            raise OptionError(
                "an answer can follow only one schema or grammar", f"keep one of {names}"
            )
        return _READERS[named[0]](getattr(self, named[0])) if named else None


@dataclass(frozen=True)
class OutputOptions(ShownOptions):
    """What to print beside the text or instead of it."""

    # fmt: off
    tokens: bool = option("Output", "--tokens", is_flag=True, help="Colour each token by where it came from.")
    as_json: bool = option("Output", "--json", is_flag=True, help="Print one JSON object instead of text.")
    # fmt: on


FIRST = (
    "system going_on file raw max_tokens stop json_schema model draft ctx threads n_gpu_layers "
    "verify temperature top_p seed stats color tokens as_json"
)
"""Options that `--help` lists."""


def _one(words: Sequence[str]) -> str | None:
    """Return the prompt if there is one. Raises OptionError for several words, which a shell may have made of one text."""
    if len(words) > 1:
        whole = shlex.quote(" ".join(words))
        raise OptionError(f"the prompt has {len(words)} parts", f"put it between quotes: {whole}")
    return words[0] if words else None


def _sized(ctx: int) -> str:
    """Return what -c took, if it was given: without a number behind it, it means to go on."""
    return "" if ctx == ModelOptions.ctx else f"; -c {ctx} is the size of the context"


def _opened(
    asked: PromptOptions, models: ModelOptions, drafts: DraftOptions, engine: EngineOptions
) -> LlamaChat:
    opener = partial(open_model, models, drafts, engine, asked.memory)
    return LlamaChat(opener, called=models.model)


@command(examples=EXAMPLES, epilog=STATS_HELP, first=FIRST)
@click.argument("prompt", nargs=-1, type=TEXT, metavar="[PROMPT]")
def generate(
    prompt: tuple[str, ...],
    asked: PromptOptions,
    shape: ShapeOptions,
    models: ModelOptions,
    drafts: DraftOptions,
    sampler: SamplerOptions,
    engine: EngineOptions,
    output: OutputOptions,
) -> int:
    """Answer PROMPT, the text of a file, or text piped to stdin. If several are given, they are joined in this order."""
    text, screen = asked.text(_one(prompt), _sized(models.ctx)), screen_of(output.color)
    speculation, content = drafts.speculation, shape.language()
    sampler.sampling()  # refuses impossible numbers before anything is loaded
    if asked.going_on and models.model is None:
        models = replace(models, model=last_model())
    with closing(_opened(asked, models, drafts, engine)) as model:
        if told := model.suggested.sentence(sampler.given):
            screen.note(told)
        sampling = sampler.sampling(suggested=model.suggested.values)
        model.thinking = output.reasoning != UNASKED and output.reasoning_budget != 0
        model.budget = output.reasoning_budget
        if not (model.thinking or model.obeys):
            screen.note(f"{model.name} has no switch for its reasoning; --reasoning hide hides it")
        if output.reasoning_budget > 0 and not model.reasons:
            screen.note(f"{model.name} marks no reasoning, so --reasoning-budget has no effect")
        raw = asked.raw or (model.template.is_plain and asked.system is None)
        conversation, path = _conversation(model, asked, raw)
        conversation.exchanges.append(Exchange(text))
        tokens = model.template.bare(text) if raw else model.prompt(conversation.messages())
        pieces, signals = [Piece((), "length")], list[int]()
        shaped = _shape(model, tokens, content, raw=raw)
        if shape.max_tokens != 0:
            options = AnswerOptions(
                sampling, speculation, shape.max_tokens, shape.stop,
                grammar=shaped, progress=screen.progress, reasoning=None if raw else model.limit,
            )  # fmt: skip
            cache = PromptCache(model.llm, asked.prompt_cache)
            cache.restore(tokens)

            def begun() -> None:
                screen.progress.stop()
                cache.keep(tokens)

            answer = model.answer(tokens, options, chat=not raw)
            with _writer(screen, output, model.piece) as write:
                pieces, signals = _answer(answer, model.cancel, begun, write)
        said = result_of(pieces, model.stats)
        if path is not None and (said.text or said.reasoning):
            last = conversation.exchanges[-1]
            last.answer, last.seed = unended(said, model.piece), sampling.seed
            _keep(path, conversation, model)
        _say(model.llm, said, output, shape.max_tokens, screen)
        if models.model is None and output.stats is not False and not output.as_json:
            _name_next_step(screen)
    return _status(said, signals, shaped=content is not None and shape.max_tokens != 0)


def _status(answer: Result, signals: Sequence[int], *, shaped: bool) -> int:
    """Return the exit status. shaped: whether the answer had to follow a schema or grammar."""
    if answer.finish_reason == "cancelled":
        return exit_code(signals)
    return INCOMPLETE if shaped and answer.finish_reason in _CUT else 0


def _shape(
    model: LlamaChat, prompt: list[int], content: Language | None, *, raw: bool
) -> Constraint | None:
    """Return the grammar of the answer; if the model reasons first, it covers only the content after that."""
    if content is None:
        return None
    if raw:
        return Constraint(content)
    return model.llm.speech.shape(prompt, content)


def _conversation(
    model: LlamaChat, asked: PromptOptions, raw: bool
) -> tuple[Conversation, Path | None]:
    """Return the conversation and the file that keeps it. Raises InputError if there is nothing to continue."""
    if not asked.going_on:
        return Conversation(asked.system), new_path() if asked.log and not raw else None
    if raw:
        raise InputError(
            "without a chat template there is no conversation to continue", "leave out -c or --raw"
        )
    path = newest()
    saved = load(path)
    conversation, same = restore(saved, model)
    if not same and (note := held_with(saved, model)):
        tell(note, err=True)
    if asked.system is not None:
        conversation.system = asked.system
    return conversation, path


def _keep(path: Path, conversation: Conversation, model: LlamaChat) -> None:
    try:
        save(path, conversation, {}, model.target())
    except PyspecError as error:
        tell(f"the answer is not logged: {error}", err=True)


@contextmanager
def _writer(
    screen: Screen, output: OutputOptions, piece: Callable[[int], bytes]
) -> Iterator[Callable[[Piece], None]]:
    """Yield a function that shows a piece of the answer. A pipe gets plain text; --json prints everything at the end."""
    shown = output.reasoning != HIDE
    if output.as_json:
        yield lambda _: None
    elif output.tokens:
        paint = TokenPaint(piece, colour=has_colour(screen.out))

        def painted(said: Piece) -> None:
            paint.take(said.tokens)
            write(said.reasoning if shown else "", said.text)

        with screen.replying(wrap=output.wrap, paint=paint) as write:
            yield painted
        screen.out.file.write(paint.finish())
    elif screen.out.is_terminal:
        with screen.replying(wrap=output.wrap, reasoning=shown) as write:
            yield lambda said: write(said.reasoning, said.text)
    else:
        yield lambda said: _write(said.text)
        _write("\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _answer(
    answer: Iterable[Piece],
    cancel: Callable[[], None],
    begun: Callable[[], None],
    write: Callable[[Piece], None],
) -> tuple[list[Piece], list[int]]:
    pieces: list[Piece] = []
    with interruptible(cancel) as signals:
        for piece in answer:
            if not pieces:
                begun()
            pieces.append(piece)
            if piece.text or piece.reasoning:
                write(piece)
    return pieces, signals


def _say(
    llm: SpeculativeLlama, answer: Result, output: OutputOptions, max_tokens: int, screen: Screen
) -> None:
    if output.as_json:
        tell(json.dumps(_report(llm, answer, output.tokens), ensure_ascii=False))
        return
    if output.tokens:
        print_legend(screen.out, answer.tokens, llm.piece)
    longer = f"-n {2 * max_tokens} allows more, -n -1 has no limit"
    wider = f"-c {2 * llm.n_ctx()} has more room"
    if answer.finish_reason == "cancelled" and not answer.tokens:
        screen.note("stopped before the answer began")
    if cut := why_cut(answer, max_tokens, llm.n_ctx(), longer, wider):
        screen.note(cut)
    if output.stats is False or not answer.speculation:
        return
    screen.note(verdict(answer.speculation, answer.rate))
    if output.stats:
        screen.note(stats_line(answer.speculation, answer.rate))


NEXT = "next: `pyspec chat` starts a chat; `pyspec draft -m YOUR_MODEL` finds a draft for your own model"
_TOLD, _CACHE = "named the next step", Stamp("", 0, 0, 0)


def _name_next_step(screen: Screen) -> None:
    """After the default model's first answer, say what to try next: once per cache, and never if the cache is read-only."""
    if recall(_TOLD, _CACHE) is None:
        remember(_TOLD, _CACHE, NEXT)
        if recall(_TOLD, _CACHE) is not None:
            screen.note(NEXT)


def _report(llm: SpeculativeLlama, answer: Result, with_tokens: bool) -> dict[str, Any]:
    beside = ("timings", "prompt_tokens")
    block = {name: value for name, value in answer.speculation.items() if name not in beside}
    report: dict[str, Any] = {
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "usage": asdict(answer.usage),
        "speculation": block,
        "timings": llm.last_timings,
    }
    if answer.reasoning:
        report["reasoning"] = answer.reasoning
    if answer.reasoning_cut:
        report["reasoning_cut"] = True
    if with_tokens:
        report["tokens"] = [
            {"id": token.id, **token.described(llm.piece(token.id).decode("utf-8", "replace"))}
            for token in answer.tokens
        ]
    return report


def _schema(text: str) -> Language:
    if not text.lstrip().startswith("{"):
        return _schema_file(Path(text))
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(
            f"the JSON schema is not valid JSON: {error}", "check its quotes"
        ) from None
    return of_schema(schema)


def _schema_file(path: Path) -> Language:
    text = file_text(path)
    if not text.lstrip().startswith("{"):
        raise OptionError(f"{path} does not contain a JSON object", "a schema begins with {")
    return _schema(text)


_READERS: dict[str, Callable[[Any], Language]] = {
    "json_schema": _schema,
    "json_schema_file": _schema_file,
    "grammar": of_grammar,
    "grammar_file": lambda path: of_grammar(file_text(path)),
}
