"""`pyspec generate`: one prompt, one answer on stdout, one sentence about it on stderr."""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyspec.chat import HIDE, UNASKED
from pyspec.chat.dialogue import (
    MAX_TEXT,
    Conversation,
    Exchange,
    last_model,
    new_path,
    newest,
    unended,
    why_cut,
)
from pyspec.cli.command import TEXT, command, option, tell
from pyspec.cli.options import (
    CacheOptions,
    DialogueOptions,
    DraftOptions,
    EngineOptions,
    ModelOptions,
    SamplerOptions,
    ShownOptions,
)
from pyspec.engine.options import AnswerOptions
from pyspec.errors import InputError, OptionError
from pyspec.machine.files import read_stream, read_text
from pyspec.sampling.options import suggestion
from pyspec.text.parts import Piece, Result, result_of

if TYPE_CHECKING:
    from pyspec.chat.talk import Chat, LlamaChat
    from pyspec.grammar.languages import Constraint, Language
    from pyspec.screen import Screen

_FILE = click.Path(path_type=Path, dir_okay=False)

_NOTICE_S = 2.0  # how long to wait silently for stdin if there is a prompt already
INCOMPLETE = 3  # exit status where an answer that follows a schema or grammar was cut: what there is of it is not valid
_CUT = ("length", "context")  # ends of an answer that are not its own

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

    def text(self, words: Sequence[str]) -> str:
        """Return the whole prompt. words: the arguments; a shell may have made several of one text.

        Raises OptionError if there is none, or more than one.
        """
        if len(words) > 1:
            hint = f"put it between quotes: {shlex.quote(' '.join(words))}"
            raise OptionError(f"the prompt has {len(words)} parts", hint)
        if words and self.more is not None:
            raise OptionError("the prompt is given twice", "use either PROMPT or -p")
        return prompt_text(words[0] if words else self.more, self.file, MAX_TEXT)


@dataclass(frozen=True)
class ShapeOptions:
    """What an answer must look like, and where it ends."""

    # fmt: off
    max_tokens: int = option("Answer", "-n", "--max-tokens", aliases=("--n-predict", "--predict"), default=512,
        type=click.IntRange(min=-1), metavar="N", help="Longest answer, tokens; -1: what fits.")
    stop: tuple[str, ...] = option("Answer", "--stop", aliases=("-r", "--reverse-prompt"), multiple=True, type=TEXT,
        help="Stop before this text; repeat it for more.")
    json_schema: str | None = option("Answer", "--json-schema", aliases=("-j", "-jf", "--json-schema-file"), type=TEXT,
        metavar="FILE|JSON",
        help="JSON that follows this schema; {}: any.")
    grammar: str | None = option("Answer", "--grammar", type=TEXT, metavar="GBNF",
        help="Text that follows this grammar.")
    grammar_file: Path | None = option("Answer", "--grammar-file", type=_FILE, help="The same, from a file.")
    # fmt: on

    def language(self) -> Language | None:
        """Return what the answer must look like, or None. Raises InputError if that cannot be read or used."""
        given = (self.json_schema, self.grammar, self.grammar_file)
        if len(given) - given.count(None) > 1:
            raise OptionError("an answer can follow only one schema or grammar", "keep one")
        if self.json_schema is not None:
            return _schema(self.json_schema)
        grammar = self.grammar if self.grammar_file is None else read_text(self.grammar_file)
        if grammar is None:
            return None
        from pyspec.grammar.languages import of_grammar  # noqa: PLC0415 - seldom needed

        return of_grammar(grammar)


@dataclass(frozen=True)
class OutputOptions(ShownOptions):
    """What to print beside the text or instead of it."""

    # fmt: off
    tokens: bool = option("Output", "--tokens", is_flag=True, help="Colour each token by its source.")
    as_json: bool = option("Output", "--json", is_flag=True, help="One JSON object instead of text.")
    # fmt: on


def prompt_text(prompt: str | None, file: Path | None, limit: int) -> str:
    """Join the prompt, the file and piped stdin, as far as given, with blank lines between.

    `-` as prompt or file means stdin. Raises OptionError if there is no prompt, InputEncoding, or InputTooLong above `limit`
    bytes each.
    """
    dashes = (prompt == "-") + (str(file) == "-")
    from_file = read_text(file, limit) if file is not None and str(file) != "-" else None
    parts = [prompt if prompt != "-" else None, from_file]
    if dashes or _piped():
        if parts[0] or parts[1]:
            _say_waiting(sys.stdin.buffer)
        parts.append(read_stream(sys.stdin.buffer, limit, "stdin"))
    texts = [part for part in parts if part is not None and part.strip()]
    if not texts:
        hint = 'give one: pyspec generate "...", -f FILE, or a pipe to stdin'
        raise OptionError("there is no prompt", hint)
    return "\n\n".join([part.rstrip("\n") for part in texts[:-1]] + texts[-1:])


def _piped() -> bool:
    """Whether stdin may bring text: not if it is a terminal, or a device such as /dev/null."""
    try:
        return not stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode)
    except (OSError, ValueError):  # no descriptor
        return False


def _say_waiting(stream: Any) -> None:
    """Wait for the first byte, and say so after a while."""
    sentence = "waiting for the rest of the prompt on stdin (use </dev/null if there is none)"
    timer = threading.Timer(_NOTICE_S, tell, (sentence,), {"err": True})
    timer.daemon = True
    timer.start()
    try:
        stream.peek(1)
    finally:
        timer.cancel()


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
    text = request.text(prompt)
    speculation, content = drafts.speculation, shape.language()
    sampler.sampling()  # refuses impossible numbers before anything is loaded
    if request.going_on and models.model is None:
        models = replace(models, model=last_model())
    from pyspec.chat.talk import Chat, LlamaChat  # noqa: PLC0415 - loads llama.cpp
    from pyspec.cli.opening import exit_code, interruptible, open_model  # noqa: PLC0415 - as above
    from pyspec.screen import new_screen  # noqa: PLC0415 - rich takes 30 ms

    screen, opener = new_screen(), partial(open_model, models, drafts, engine)
    with closing(LlamaChat(opener, called=models.model)) as model:
        if sentence := suggestion(model.suggested, sampler.given):
            screen.note(sentence)
        sampling = sampler.sampling(suggested=model.suggested)
        model.thinking = output.reasoning != UNASKED and output.reasoning_budget != 0
        model.budget = output.reasoning_budget
        alone = request.system is None
        raw = request.raw or (model.template.is_plain and alone)
        talk = Chat(model, screen, interruptible, conversation=Conversation(request.system))
        _continue(talk, request, raw)
        talk.conversation.exchanges.append(Exchange(text))
        tokens = model.template.bare(text) if raw else model.prompt(talk.conversation.messages())
        pieces, signals = [Piece((), "length")], list[int]()
        if shape.max_tokens != 0:
            options = AnswerOptions(
                sampling, speculation, shape.max_tokens, shape.stop,
                grammar=_shape(model, tokens, content, raw=raw), progress=screen.progress, reasoning=None if raw else model.limit,
            )  # fmt: skip
            with _writer(screen, output, model.piece) as write:
                pieces, signals = _show(talk, request, tokens, options, write, raw=raw)
        result = result_of(pieces, model.stats)
        _keep(talk, result, sampling.seed)
        _report(model.llm, result, output, shape.max_tokens, screen)
    if result.finish_reason == "cancelled":
        return exit_code(signals)
    shaped = content is not None and shape.max_tokens != 0
    return INCOMPLETE if shaped and result.finish_reason in _CUT else 0


def _show(
    talk: Chat,
    request: PromptOptions,
    tokens: list[int],
    options: AnswerOptions,
    write: Callable[[Piece], None],
    *,
    raw: bool,
) -> tuple[list[Piece], list[int]]:
    """Show an answer, and keep the processed prompt as soon as it begins; returns its pieces, and the signals that came."""
    from pyspec.engine.kept import PromptCache  # noqa: PLC0415 - loads llama.cpp

    cache = PromptCache(talk.model.llm, request.prompt_cache)
    cache.restore(tokens)
    pieces: list[Piece] = []
    with talk.guard(talk.model.cancel) as signals:
        for piece in talk.model.answer(tokens, options, chat=not raw):
            if not pieces:
                talk.screen.progress.stop()
                cache.keep(tokens)
            pieces.append(piece)
            write(piece)
    return pieces, signals


def _continue(talk: Chat, request: PromptOptions, raw: bool) -> None:
    """Open the newest chat if it is to go on, and the log unless without a template. Raises InputError if there is none."""
    if raw and request.going_on:
        hint = "leave out --continue or --raw"
        raise InputError("without a chat template there is no conversation to continue", hint)
    talk.log = new_path() if request.log and not raw else None
    if request.going_on:
        talk.open(newest(), request.system)


def _keep(talk: Chat, answer: Result, seed: int) -> None:
    """Add an answer, unless empty, to its conversation and the log."""
    if answer.text or answer.reasoning:
        last = talk.conversation.exchanges[-1]
        last.answer = unended(answer, talk.model.piece)
        last.seed = answer.speculation.get("seed", seed)
        talk.keep()


@contextmanager
def _writer(
    screen: Screen, output: OutputOptions, piece: Callable[[int], bytes]
) -> Iterator[Callable[[Piece], None]]:
    """Yield a function that shows a piece of the answer. A pipe gets plain text; --json prints everything at the end."""
    shown = output.reasoning != HIDE
    if output.as_json:
        yield lambda _: None
    elif output.tokens or sys.stdout.isatty():
        with screen.replying(reasoning=shown, tokens=piece if output.tokens else None) as write:
            yield write
    else:
        yield lambda part: _write(part.text)
        _write("\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _report(
    llm: Any, answer: Result, output: OutputOptions, max_tokens: int, screen: Screen
) -> None:
    """Report on an answer that was shown. llm: the model that gave it."""
    if output.as_json:
        tell(json.dumps(_as_json(llm, answer, output.tokens), ensure_ascii=False))
        return
    if output.tokens:
        from pyspec.screen import print_legend  # noqa: PLC0415 - as above

        print_legend(screen.out, answer.tokens)
    longer = f"-n {2 * max_tokens} allows more, -n -1 has no limit"
    wider = f"-c {2 * llm.n_ctx()} has more room"
    if answer.finish_reason == "cancelled" and not answer.tokens:
        screen.note("stopped before the answer began")
    if cut := why_cut(answer, max_tokens, llm.n_ctx(), longer, wider):
        screen.note(cut)
    if output.stats is not False:
        screen.stats(answer, counts=bool(output.stats))


def _as_json(llm: Any, answer: Result, with_tokens: bool) -> dict[str, Any]:
    from msgspec.structs import asdict  # noqa: PLC0415 - seldom needed

    beside = ("timings", "prompt_tokens")
    block = {name: value for name, value in answer.speculation.items() if name not in beside}
    report = {
        "text": answer.text, "finish_reason": answer.finish_reason, "usage": asdict(answer.usage), "speculation": block,
        "timings": llm.last_timings,
    }  # fmt: skip
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


def _schema(text: str) -> Language:
    """Read a schema, or the file that has it."""
    if not text.lstrip().startswith("{"):
        path, text = text, read_text(Path(text))
        if not text.lstrip().startswith("{"):
            raise OptionError(f"{path} does not contain a JSON object", "a schema begins with {")
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "check its quotes"
        raise OptionError(f"the JSON schema is not valid JSON: {error}", hint) from None
    from pyspec.grammar.schemas import of_schema  # noqa: PLC0415 - loads llguidance

    return of_schema(schema)
