"""Turns messages into prompt tokens. All interfaces share this code.

A model file's template is an untrusted program, so a child process renders it (`render.py`). What users and tools write must stay
text. Usually it holds none of the vocabulary's control words, and the whole rendering is tokenized at once. Otherwise the
conversation is rendered a second time with a sign inside each such word. If the renderings differ only in the signs, then the
control words left whole in the second are the template's own: they become control tokens, and the text between them stays text.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from pyspec.errors import EngineError, InputError, OptionError
from pyspec.text.control import DEFAULT_SIGNS, Hider, Spot, unused_signs
from pyspec.text.forms import CHOICES, SAID, TemplateInput, in_forms, missing, shape_of, standard
from pyspec.text.prompts import PromptTokenizer, Rendering
from pyspec.text.render import Renderer
from pyspec.text.sources import NONE, PLAIN_STOP, TOOL_USE, choose, templates_of, variables_of

log = logging.getLogger("pyspec")

MOST_SPOTS = 64
"""Most words of a role that are tested one by one for a meaning to the template."""

PLAINLY = "this model has no chat template: turns are written as plain text, and an answer ends where the next would begin"
_CONVERSATION = ("messages", "tools")
# template variables that cannot be set as arguments

_MOST_SHAPES = 256
# shapes of conversations whose forms are remembered

_END = "\uf8d2"
# marks where an answer continues: what the template writes after it is cut

READ = "this model's chat template interprets some control words inside messages: there they become control tokens"


class Message(TypedDict, total=False):
    """One turn of a conversation, in OpenAI's form.

    Attributes:
        role: "system", "user", "assistant" or "tool".
        content: The text of the turn.
        reasoning_content: The model's reasoning before the content.
        tokens: Ids of an answer as it was generated, in place of its content. Never pass ids from an untrusted source.
    """

    role: str
    content: str
    reasoning_content: str
    tokens: Sequence[int]


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
        self._forms: dict[object, tuple[str, ...]] = {}
        self._openings: dict[str, str | None] = {}
        self._said: set[str] = set()

    def limit(self, most: int) -> None:
        """Refuse prompts that surely exceed `most` tokens (ContextOverflow) before they are tokenized."""
        self._opened().most = most

    @classmethod
    def of(cls, llm: Any) -> ChatTemplate:
        """Return the template of a model.

        Args:
            llm: A `SpeculativeLlama`, or any `llama_cpp.Llama`.

        Returns:
            The template that the model was opened with, or its file's own.
        """
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
        """Tokenize a conversation as a prompt.

        Args:
            messages: The turns, in OpenAI's form. A turn's `tokens` are used if the template writes its text as generated.
            answer: Whether the prompt opens the assistant's next turn.
            tools: The functions that may be called, in OpenAI's form.
            arguments: Further template variables, other than messages and tools.
            now: Time for the template's date, in seconds since 1970; None for the current time.
            goes_on: Whether the answer continues the last turn, which is the assistant's.

        Returns:
            Token ids.

        Raises:
            InputError: The template refuses the conversation.
            TemplateError: The template cannot be used.
        """
        tokens = self._opened()
        if self._lacks_one:
            self._say(PLAINLY)
        turns = [_with_content(tokens, message) for message in messages]
        try:
            name, asked = self._asked(turns, answer and not goes_on, tools, arguments)
            if goes_on:
                asked["messages"][-1]["content"] = (asked["messages"][-1]["content"] or "") + _END
            text, asked = self._rendered(name, asked, now)
            rendering = self._signed(name, asked, text, now)
            rendering = rendering.before(_END) if goes_on else rendering
        except RecursionError:
            raise InputError("the conversation is nested too deep") from None
        answers = [list(turn["tokens"]) for turn in turns if turn.get("tokens")]
        opening = self._opening(name, asked, now) if answers else None
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
        return self._rendered(*self._asked(messages, answer, tools, arguments), None)[0]

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

    # -- rendering ---------------------------------------------------------------------------------

    def _asked(
        self,
        messages: Sequence[Mapping[str, Any]],
        answer: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        arguments: Mapping[str, Any] | None,
    ) -> tuple[str, TemplateInput]:
        """Return the name of the template to use, and its input."""
        name = TOOL_USE if tools and TOOL_USE in self.sources else next(iter(self.sources))
        asked = {
            "messages": standard(messages), "tools": list(tools) if tools else None, "documents": None,
            "add_generation_prompt": answer, **self.arguments, **_variables(arguments),
        }  # fmt: skip
        return name, asked

    def _rendered(
        self, name: str, asked: TemplateInput, now: float | None
    ) -> tuple[str, TemplateInput]:
        """Return the text, and the conversation in the form that the template accepted.

        The form is remembered only for conversations of this shape, so that earlier requests never change a prompt.
        """
        refusal, best, kind = None, None, (name, shape_of(asked))
        seen: list[TemplateInput] = []
        for names in (self._forms.get(kind, ()), *CHOICES):
            tried = in_forms(asked, names)
            if tried in seen:
                continue
            seen.append(tried)
            try:
                text = self._renderer.render(name, tried, now)
            except InputError as error:
                refusal = refusal or error
                continue
            lost = missing(text, asked)
            if best is None or lost < best[0]:
                best = lost, names, text, tried
            if not lost:
                break
        if best is None:
            raise refusal or InputError("the conversation cannot be rendered")
        if len(self._forms) >= _MOST_SHAPES:
            self._forms.clear()
        self._forms[kind] = best[1]
        for each in best[1]:
            if each in SAID and not self.is_plain:
                self._say(SAID[each])
        return best[2], best[3]

    def _signed(self, name: str, asked: TemplateInput, text: str, now: float | None) -> Rendering:
        """Return the rendering with signs in all words that must stay text."""
        vocabulary, source = self._opened().vocabulary, self.sources[name]
        defined = {word: i for word, i in vocabulary.defined.items() if word in source}
        hider = Hider(vocabulary.control, defined, DEFAULT_SIGNS)
        if hider.hide(asked) == asked:
            return Rendering(text, text, hider.signs)
        hider.signs = unused_signs(text, asked)

        def shown(only: set[Spot] | None = None) -> str | None:
            """Render with signs, in these spots only if given; None if more than the signs changed."""
            try:
                found = self._renderer.render(name, hider.hide(asked, only), now)
            except InputError:
                return None
            for sign in hider.signs:  # where a template writes JSON in ASCII
                found = found.replace(f"\\u{ord(sign):04x}", sign)
            return found if hider.bare(found) == text else None

        found = shown()
        if found is None:
            spots = hider.spots
            # some of the words mean something to the template, such as the end of reasoning
            for role in {spot.role for spot in spots}:
                group = {spot for spot in spots if spot.role == role}
                if len(group) <= MOST_SPOTS and shown(group) is None:
                    hider.spared |= {spot for spot in group if shown({spot}) is None}
            found = shown()
        if found is None or any(spot.role != "assistant" for spot in hider.spared):
            self._say(READ)
        return Rendering(text, text if found is None else found, hider.signs)

    def _say(self, note: str) -> None:
        if note not in self._said:
            self._said.add(note)
            log.warning("%s", note)

    def _opening(self, name: str, asked: TemplateInput, now: float | None) -> str | None:
        """Return what the template writes in front of an answer; None if unknown."""
        key = repr((name, [(key, asked[key]) for key in asked if key not in ("messages", "tools")]))
        if key not in self._openings:
            self._openings[key] = self._tried_opening(name, asked, now)
        return self._openings[key]

    def _tried_opening(self, name: str, asked: TemplateInput, now: float | None) -> str | None:
        first = {**asked, "messages": [{"role": "user", "content": "x"}]}
        try:
            opened, first = self._rendered(name, {**first, "add_generation_prompt": True}, now)
            closed = self._renderer.render(name, {**first, "add_generation_prompt": False}, now)
        except InputError:
            return None
        return opened[len(closed) :] if opened.startswith(closed) else None


def _variables(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of a template's variables. Raises OptionError."""
    if not isinstance(given, (Mapping, type(None))):
        raise OptionError(f"the template variables are {str(given)[:40]!r}", "give a dict")
    made = dict(given or {})
    for name in made.keys() & _CONVERSATION:
        raise OptionError(f"{name} cannot be a template variable", "it comes from the conversation")
    return made


def _with_content(tokens: PromptTokenizer, message: Mapping[str, Any]) -> Mapping[str, Any]:
    if "tokens" not in message or "content" in message:
        return message
    return {**message, "content": tokens.text(tokens.without_end(message["tokens"]))}
