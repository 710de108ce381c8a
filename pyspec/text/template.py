"""Turns messages into prompt tokens. All interfaces share this code.

A model file's template is an untrusted program, so a child process renders it (`render.py`). What users and tools write must stay
text. If it holds characters that control words begin or end with, the conversation is rendered again with stand-ins for them
(`Veil`): control words in that rendering are the template's own and become control tokens; the text between them stays text.
If a template reads words in what others wrote, it finds none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from time import time
from typing import Any

from pyspec.errors import EngineError, InputError, OptionError
from pyspec.text.messages import (
    CHOICES,
    WARNINGS,
    TemplateInput,
    filled,
    in_forms,
    probe_of,
    standard,
    unused_digits,
    written,
)
from pyspec.text.notation import Notation, Reasoning
from pyspec.text.prompts import PromptTokenizer, Rendering, Veil, veiled
from pyspec.text.render import (
    NONE,
    PLAIN_STOP,
    TOOL_USE,
    Renderer,
    choose,
    missing,
    templates_of,
    variables_of,
)

log = logging.getLogger("pyspec")

PLAINLY = "this model has no chat template: turns are written as plain text, and an answer ends where the next would begin"
_CONVERSATION = ("messages", "tools")  # template variables that cannot be set as arguments
_MAX_SHAPES = 256  # shapes of conversations whose forms are remembered

READ = "this model's chat template interprets some words that users or tools wrote: it is shown them as plain text"


class ChatTemplate:
    """Turns messages into prompt tokens for one model. Close it before the model is freed.

    Args:
        llm: A `llama_cpp.Llama`.
        choice: None for the file's own template, one of its names, a path, or "none" for plain text.
        arguments: Template variables for all conversations.
        renderer: A child process to use; if not given, a new one.

    Attributes:
        name: Name of the template in force: the file's "default" or another of its names, a path, or "none".
        sources: The template's text by name, including "tool_use" if the file has it.
        stop: Texts that end an answer.

    Raises:
        OptionError: There is no such template, or a variable cannot be set.
    """

    def __init__(
        self,
        llm: Any,
        choice: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        renderer: Renderer | None = None,
    ) -> None:
        self.arguments = _variables(arguments)
        self.sources, self.name = choose(templates_of(llm.metadata), choice)
        self._lacks_one = self.is_plain and choice is None
        self.stop = PLAIN_STOP if self.is_plain else ()
        self._tokens: PromptTokenizer | None = PromptTokenizer(llm)
        self._renderer = renderer or Renderer()
        variables = variables_of(llm)
        for name, source in self.sources.items():
            self._renderer.add(name, source, variables)
        known = "\n".join(self.sources.values())
        notation = Notation.of(known)
        self._unwritten = None if "tool_calls" in known else notation.calls
        """How the model writes calls, if its template does not write them."""
        self._reasoning = notation.reasoning
        self._forms: dict[bytes, tuple[str, ...] | None] = {}
        self._turn_marks: dict[str, frozenset[str]] = {}
        self._openings: dict[str, str | None] = {}
        self._noted_once: set[str] = set()

    def limit(self, most: int) -> None:
        """Refuse prompts that surely exceed `most` tokens (ContextOverflow) before they are tokenized."""
        self._opened().most = most

    @classmethod
    def of(cls, llm: Any) -> ChatTemplate:
        """Return the template that a `llama_cpp.Llama` was opened with, or its file's own."""
        known = getattr(llm, "template", None)
        return known if isinstance(known, cls) else cls(llm)

    @property
    def is_plain(self) -> bool:
        """Whether the model has no template, or none is wanted."""
        return self.name == NONE

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        answer: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
        now: float | None = None,
        goes_on: bool = False,
    ) -> list[int]:
        """Return a conversation's token ids.

        Args:
            messages: The turns, in OpenAI's form. A turn's `tokens` are used if the template writes its text as generated.
            answer: Whether the prompt opens the assistant's next turn.
            tools: The functions that may be called, in OpenAI's form.
            arguments: Further template variables, other than messages and tools.
            now: Time for the template's date, in seconds since 1970; None for the current time.
            goes_on: Whether the answer continues the last turn, which is the assistant's.

        Raises:
            InputError: The template refuses the conversation.
            TemplateError: The template cannot be used.
        """
        tokens = self._opened()
        # once for all renderings of the prompt: midnight may fall between two
        now = time() if now is None else now
        if self._lacks_one:
            self._say(PLAINLY)
        turns = [_with_content(tokens, self._spoken(message)) for message in messages]
        try:
            name, inputs = self._input_of(turns, answer and not goes_on, tools, arguments)
            end = unused_digits(written(inputs)) if goes_on else ""
            if end:  # what the template writes behind it is cut
                inputs["messages"][-1]["content"] = (inputs["messages"][-1]["content"] or "") + end
            text, inputs = self._rendered(name, inputs, now)
            rendering = self._veiled(name, inputs, text, now)
            rendering = rendering.before(end) if end else rendering
        except RecursionError:
            raise InputError("the conversation is nested too deep") from None
        answers = [list(turn["tokens"]) for turn in turns if turn.get("tokens")]
        opening = self._opening(name, inputs, now) if answers else None
        kept = [] if opening is None else tokens.kept(rendering, opening, answers)
        return tokens.prompt(rendering, kept)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        answer: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text that `prompt` tokenizes. Raises InputError or TemplateError."""
        turns = list(map(self._spoken, messages))
        return self._rendered(*self._input_of(turns, answer, tools, arguments), time())[0]

    def bare(self, text: str) -> list[int]:
        """Return token ids of a text without the template; at least one."""
        return self._opened().bare(text)

    def close(self) -> None:
        """End the rendering child and release the vocabulary. No prompts can be made after that."""
        self._renderer.close()
        self._tokens = None

    def _opened(self) -> PromptTokenizer:
        if self._tokens is None:
            raise EngineError("the model was closed", "load it again")
        return self._tokens

    def _spoken(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a turn with its calls as generated text and tokens, if the template would leave them out."""
        if (
            self._unwritten is None
            or not isinstance(message, Mapping)
            or not message.get("tool_calls")
        ):
            return message
        (turn,) = standard([message])
        parts = self._unwritten.spoken([call["function"] for call in turn["tool_calls"]])
        if parts is None:
            return message
        parts = [turn["content"] or "", *parts]
        del turn["tool_calls"]
        return {**turn, "content": "".join(parts), "tokens": self._opened().alternating(parts)}

    # -- rendering ---------------------------------------------------------------------------------

    def _input_of(
        self,
        messages: Sequence[Mapping[str, Any]],
        answer: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        arguments: Mapping[str, Any] | None,
    ) -> tuple[str, TemplateInput]:
        """Return the name of the template to use, and its input."""
        name = TOOL_USE if tools and TOOL_USE in self.sources else next(iter(self.sources))
        inputs = {
            "messages": standard(messages), "tools": list(tools) if tools else None, "documents": None,
            "add_generation_prompt": answer, **self.arguments, **_variables(arguments),
        }  # fmt: skip
        return name, inputs

    def _rendered(self, name: str, inputs: TemplateInput, now: float) -> tuple[str, TemplateInput]:
        """Return the text, and the conversation in the form that the template accepted."""
        probe = probe_of(inputs)
        key = sha256(repr((name, probe)).encode("utf-8", "replace")).digest()
        if key not in self._forms:
            if len(self._forms) >= _MAX_SHAPES:
                self._forms.clear()
            self._forms[key] = self._first_complete(name, filled(probe), now)
        forms = self._forms[key]
        if forms is not None:
            with suppress(InputError):  # it refuses some of the words
                return self._noted(forms, inputs, name, now)
        return self._noted(self._first_complete(name, inputs, now) or (), inputs, name, now)

    def _first_complete(
        self, name: str, inputs: TemplateInput, now: float
    ) -> tuple[str, ...] | None:
        """Return the first forms in which the template writes all of a conversation, or else most; None if it refuses all."""
        best: tuple[int, tuple[str, ...]] | None = None
        seen: list[TemplateInput] = []
        for names in CHOICES:
            tried = in_forms(inputs, names)
            if tried in seen:
                continue
            seen.append(tried)
            try:
                lost = missing(self._renderer.render(name, tried, now), inputs)
            except InputError:
                continue
            if best is None or lost < best[0]:
                best = lost, names
            if not lost:
                break
        return best[1] if best else None

    def _noted(
        self, forms: Sequence[str], inputs: TemplateInput, name: str, now: float
    ) -> tuple[str, TemplateInput]:
        """Render a conversation in these forms, and say what they change. Returns the text and the changed conversation."""
        changed = in_forms(inputs, forms)
        text = self._renderer.render(name, changed, now)
        for each in forms:
            if each in WARNINGS and not self.is_plain:
                self._say(WARNINGS[each])
        return text, changed

    def _veiled(self, name: str, inputs: TemplateInput, text: str, now: float) -> Rendering:
        """Return the rendering with breaks inside all words that must stay text.

        If a user says `<|im_end|>`, then `text` has the word twice: once in the user's words and once behind them, where the
        template ends the turn. The first one has breaks inside, and the second has none. `prompts.py` shows each step. A request
        that holds no character of a control word needs no breaks.

        Raises InputError if the template takes the user's word for its own, or leaves out texts without such words.
        """
        tokens, source = self._opened(), self.sources[name]
        defined = [word for word in tokens.defined if word in source]
        veil = Veil(tokens.control, defined, self._around(name), text, source, written(inputs))
        veil.hide(inputs)
        if not veil.hid:
            return Rendering(text)

        def render(changed: Mapping[str, Any]) -> str | None:
            try:
                return self._renderer.render(name, changed, now)
            except InputError:
                return None

        told = (each for each in self._reasoned(inputs) if each != inputs)
        same = next((each for each in told if render(each) == text), inputs)
        found = veiled(veil, same, text, render)
        shown = veil.read(found) if found is not None else None
        if shown is None or missing(shown.text, inputs) > missing(text, inputs):
            raise InputError(
                "the model's chat template takes words of this conversation for its own marks, and leaves out texts without them",
                "leave out what looks like control words",
            )
        if shown.text != text:
            self._say(READ)
        return shown

    def _reasoned(self, inputs: TemplateInput) -> Iterator[TemplateInput]:
        """Yield a conversation whose reasoning is in fields: behind a veil, templates find no marks in what the model said.

        They differ in the white space that they leave between reasoning and content.
        """
        if self._reasoning is None:
            return
        for space in ("\n", "", None):
            turns = [_parted(turn, self._reasoning, space) for turn in inputs["messages"]]
            yield {**inputs, "messages": turns}

    def _around(self, name: str) -> frozenset[str]:
        """Return the words around a user's turn, and those that end an answer; all single-token words if that is unknown."""
        if name not in self._turn_marks:
            tokens = self._opened()
            _, inputs = self._input_of([{"role": "user", "content": "x"}], False, None, None)
            known = {*tokens.control, *tokens.defined}
            with suppress(InputError):
                text, _ = self._rendered(name, inputs, time())
                known = {word for word in known if word in text}
            self._turn_marks[name] = frozenset(known) | tokens.ends
        return self._turn_marks[name]

    def _say(self, note: str) -> None:
        if note not in self._noted_once:
            self._noted_once.add(note)
            log.warning("%s", note)

    def _opening(self, name: str, inputs: TemplateInput, now: float) -> str | None:
        """Return what the template writes in front of an answer; None if unknown."""
        key = repr(
            (name, [(key, inputs[key]) for key in inputs if key not in ("messages", "tools")])
        )
        if key not in self._openings:
            found = None
            first = {**inputs, "messages": [{"role": "user", "content": "x"}], "tools": None}
            with suppress(InputError):
                opened, first = self._rendered(name, {**first, "add_generation_prompt": True}, now)
                closed = self._renderer.render(name, {**first, "add_generation_prompt": False}, now)
                found = opened[len(closed) :] if opened.startswith(closed) else None
            self._openings[key] = found
        return self._openings[key]


def _variables(variables: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of a template's variables. Raises OptionError."""
    if not isinstance(variables, (Mapping, type(None))):
        raise OptionError(f"the template variables are {str(variables)[:40]!r}", "give a dict")
    made = dict(variables or {})
    for name in made.keys() & _CONVERSATION:
        raise OptionError(f"{name} cannot be a template variable", "it comes from the conversation")
    return made


def _parted(turn: dict[str, Any], marks: Reasoning, space: str | None) -> dict[str, Any]:
    """Return a turn with its reasoning apart. space: characters to strip between that and the content; None for white space."""
    content = turn["content"]
    told = turn["role"] == "assistant" and isinstance(content, str) and "thinking" not in turn
    if not told or marks.close[0] not in content:
        return turn
    first, *_, last = content.split(marks.close[0])
    thoughts = first.split(marks.open[0])[-1].strip(space)
    fields = {"thinking": thoughts, "reasoning_content": thoughts}
    return {**turn, **fields, "content": last.lstrip(space)}


def _with_content(tokens: PromptTokenizer, message: Mapping[str, Any]) -> Mapping[str, Any]:
    if "tokens" not in message or "content" in message:
        return message
    return {**message, "content": tokens.text(tokens.without_end(message["tokens"]))}
