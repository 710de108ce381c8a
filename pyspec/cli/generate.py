"""`pyspec generate`: one prompt, one answer on stdout, one sentence about it on stderr."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyspec.chat import UNASKED
from pyspec.chat.dialogue import Exchange
from pyspec.cli.answering import (
    OutputOptions,
    answer_writer,
    conversation_of,
    keep_chat,
    say_answer,
    shown_answer,
)
from pyspec.cli.command import TEXT, command, option
from pyspec.cli.engine_options import EngineOptions
from pyspec.cli.options import (
    CacheOptions,
    DialogueOptions,
    DraftOptions,
    ModelOptions,
    SamplerOptions,
)
from pyspec.cli.streams import exit_code, file_text, prompt_text
from pyspec.engine.options import AnswerOptions
from pyspec.errors import OptionError

if TYPE_CHECKING:
    from pyspec.chat.conversation import LlamaChat
    from pyspec.grammar.languages import Constraint, Language
    from pyspec.screen.display import Screen
    from pyspec.text.parts import Piece
    from pyspec.text.result import Result

_FILE = click.Path(path_type=Path, dir_okay=False)

MAX_INPUT = 1 << 20
"""Largest prompt, bytes."""

INCOMPLETE = 3
"""Exit status where an answer that follows a schema or grammar was cut: what there is of it is not valid."""

_CUT = ("length", "context")
"""Ends of an answer that are not its own."""

EXAMPLES = [
    ('pyspec generate "Name three rivers."', "The default model"),
    ('cat report.txt | pyspec generate "Summarize:"', "The prompt, followed by piped text"),
    ('pyspec generate -m llama3.1:8b --draft llama3.2:1b "Why?"', "Models from ollama"),
    ('pyspec generate --continue "And shorter?"', "Continue from the last answer"),
    ('pyspec generate --json-schema schema.json "Name a city."', "JSON that follows a schema"),
]


@dataclass(frozen=True)
class PromptOptions(CacheOptions, DialogueOptions):
    """Where the prompt comes from, and which conversation it continues."""

    # fmt: off
    more: str | None = option("Conversation", "-p", "--prompt", type=TEXT, metavar="TEXT", help="The prompt; same as PROMPT.")
    file: Path | None = option("Conversation", "-f", "--file", type=click.Path(path_type=Path),
        metavar="FILE",
        help="The prompt, or more of it, from a file; - is stdin.")
    raw: bool = option("Conversation", "--raw", is_flag=True, help="Leave out the chat template.")
    # fmt: on

    def text(self, prompt: str | None, taken: str = "") -> str:
        """Return the whole prompt; `prompt` is the argument. Raises OptionError if there is none, or if it is given twice.

        taken: see `prompt_text`.
        """
        if prompt is not None and self.more is not None:
            raise OptionError("the prompt is given twice", "use either PROMPT or -p")
        return prompt_text(self.more if prompt is None else prompt, self.file, MAX_INPUT, taken)


@dataclass(frozen=True)
class ShapeOptions:
    """What an answer must look like, and where it ends."""

    # fmt: off
    max_tokens: int = option("Answer", "-n", "--max-tokens", aliases=("--n-predict", "--predict"), default=512,
        metavar="N", help="Longest answer, tokens; -1: what fits.")
    stop: tuple[str, ...] = option("Answer", "--stop", aliases=("-r", "--reverse-prompt"), multiple=True, type=TEXT,
        help="Stop before this text; repeat it for more.")
    json_schema: str | None = option("Answer", "--json-schema", aliases=("-j", "-jf", "--json-schema-file"), type=TEXT,
        metavar="FILE|JSON",
        help="JSON that follows this schema; {}: any.")
    grammar: str | None = option("Answer", "--grammar", type=TEXT, metavar="GBNF",
        help="Text that follows this grammar.")
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


def _one(words: Sequence[str]) -> str | None:
    """Return the prompt if there is one. Raises OptionError for several words, which a shell may have made of one text."""
    if len(words) > 1:
        whole = shlex.quote(" ".join(words))
        raise OptionError(f"the prompt has {len(words)} parts", f"put it between quotes: {whole}")
    return words[0] if words else None


def _sized(ctx: int) -> str:
    """Return what -c took, if it was given: without a number behind it, it means to go on."""
    return "" if ctx == ModelOptions.ctx else f"; -c {ctx} is the size of the context"


def _last_one(models: ModelOptions) -> ModelOptions:
    """Return the options with the model of the last answer, if they name none."""
    from pyspec.chat.files import last_model  # noqa: PLC0415 - only to go on

    return models if models.model is not None else replace(models, model=last_model())


def _opened(models: ModelOptions, drafts: DraftOptions, engine: EngineOptions) -> LlamaChat:
    from pyspec.chat.conversation import LlamaChat  # noqa: PLC0415 - loads llama.cpp
    from pyspec.cli.opening import open_model  # noqa: PLC0415 - as above

    opener = partial(open_model, models, drafts, engine)
    return LlamaChat(opener, called=models.model)


@command(examples=EXAMPLES)
@click.argument("prompt", nargs=-1, type=TEXT, metavar="[PROMPT]")
def generate(
    prompt: tuple[str, ...],
    request: PromptOptions,
    shape: ShapeOptions,
    models: ModelOptions,
    drafts: DraftOptions,
    sampler: SamplerOptions,
    engine: EngineOptions,
    output: OutputOptions,
) -> int:
    """Answer PROMPT, the text of a file, or text piped to stdin. If several are given, they are joined in this order."""
    text = request.text(_one(prompt), _sized(models.ctx))
    speculation, content = drafts.speculation, shape.language()
    sampler.sampling()  # refuses impossible numbers before anything is loaded
    models = _last_one(models) if request.going_on else models
    screen = _screen(output)
    from pyspec.text.parts import Piece  # noqa: PLC0415 - --help needs neither
    from pyspec.text.result import result_of  # noqa: PLC0415

    with closing(_opened(models, drafts, engine)) as model:
        if sentence := model.suggested.sentence(sampler.given):
            screen.note(sentence)
        sampling = sampler.sampling(suggested=model.suggested.values)
        _set_reasoning(model, output, screen)
        alone = request.system is None
        raw = request.raw or (model.template.is_plain and alone)
        conversation, path = conversation_of(model, request, raw)
        conversation.exchanges.append(Exchange(text))
        tokens = model.template.bare(text) if raw else model.prompt(conversation.messages())
        pieces, signals = [Piece((), "length")], list[int]()
        shaped = _shape(model, tokens, content, raw=raw)
        if shape.max_tokens != 0:
            options = AnswerOptions(
                sampling, speculation, shape.max_tokens, shape.stop,
                grammar=shaped, progress=screen.progress, reasoning=None if raw else model.limit,
            )  # fmt: skip
            with answer_writer(screen, output, model.piece) as write:
                pieces, signals = _here(model, request, tokens, options, screen, write, raw=raw)
        result = result_of(pieces, model.stats)
        if not raw:
            keep_chat(path, request, conversation, model, result, sampling.seed)
        say_answer(model.llm, result, output, shape.max_tokens, screen)
        if models.model is None and output.stats is not False and not output.as_json:
            _name_next_step(screen)
    return _status(result, signals, shaped=content is not None and shape.max_tokens != 0)


def _here(
    model: LlamaChat,
    request: PromptOptions,
    tokens: list[int],
    options: AnswerOptions,
    screen: Screen,
    write: Callable[[Piece], None],
    *,
    raw: bool,
) -> tuple[list[Piece], list[int]]:
    """Answer a prompt by the model in this process, and keep the processed prompt as soon as the answer begins."""
    from pyspec.engine.prompt_cache import PromptCache  # noqa: PLC0415 - loads llama.cpp

    cache = PromptCache(model.llm, request.prompt_cache)
    cache.restore(tokens)

    def begun() -> None:
        screen.progress.stop()
        cache.keep(tokens)

    return shown_answer(model.answer(tokens, options, chat=not raw), model.cancel, begun, write)


def _set_reasoning(model: LlamaChat, output: OutputOptions, screen: Screen) -> None:
    """Ask for as much reasoning as the user wants, and say where the model cannot be asked."""
    model.thinking = output.reasoning != UNASKED and output.reasoning_budget != 0
    model.budget = output.reasoning_budget
    if not (model.thinking or model.obeys):
        screen.note(f"{model.name} has no switch for its reasoning; --reasoning hide hides it")
    if output.reasoning_budget > 0 and not model.reasons:
        screen.note(f"{model.name} marks no reasoning, so --reasoning-budget has no effect")


def _screen(output: OutputOptions) -> Screen:
    from pyspec.cli.consoles import screen_of  # noqa: PLC0415 - rich takes 30 ms

    return screen_of(output.color)


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
        from pyspec.grammar.languages import Constraint  # noqa: PLC0415 - seldom needed

        return Constraint(content)
    return model.llm.speech.shape(prompt, content)


NEXT = "next: `pyspec chat` starts a chat; `pyspec draft -m YOUR_MODEL` finds a draft for your own model"
_TOLD = "named the next step"


def _name_next_step(screen: Screen) -> None:
    """After the default model's first answer, say what to try next: once per cache, and never if the cache is read-only."""
    from pyspec.machine.files import Stamp, recall, remember  # noqa: PLC0415 - once

    cache = Stamp("", 0, 0, 0)
    if recall(_TOLD, cache) is None:
        remember(_TOLD, cache, NEXT)
        if recall(_TOLD, cache) is not None:
            screen.note(NEXT)


def _schema(text: str) -> Language:
    if not text.lstrip().startswith("{"):
        return _schema_file(Path(text))
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(
            f"the JSON schema is not valid JSON: {error}", "check its quotes"
        ) from None
    from pyspec.grammar.schemas import of_schema  # noqa: PLC0415 - loads llguidance

    return of_schema(schema)


def _schema_file(path: Path) -> Language:
    text = file_text(path)
    if not text.lstrip().startswith("{"):
        raise OptionError(f"{path} does not contain a JSON object", "a schema begins with {")
    return _schema(text)


def _grammar(text: str) -> Language:
    from pyspec.grammar.languages import of_grammar  # noqa: PLC0415 - seldom needed

    return of_grammar(text)


_READERS: dict[str, Callable[[Any], Language]] = {
    "json_schema": _schema,
    "grammar": _grammar,
    "grammar_file": lambda path: _grammar(file_text(path)),
}
