"""Begins an answer from a record: its prompt as tokens, its options and its reader."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pyspec.engine.answer import Answer
from pyspec.engine.options import AnswerOptions, Speculation
from pyspec.errors import ContextOverflow, OptionError, PyspecError
from pyspec.grammar.languages import Constraint, of_grammar
from pyspec.requests.records import COMPLETION, SAMPLER_FIELDS, Record, SpeculationBody, failed
from pyspec.sampling.options import MAX_TOKENS, Sampling, check_ranges, derive_seed
from pyspec.sampling.verification import MARGIN_OPTIONS, Margin, Strict, Verification
from pyspec.text.answer import AnswerReader, ReasoningLimit, Speech
from pyspec.text.messages import SYSTEM_ROLES, from_outside
from pyspec.text.parts import RecordResult, common_prefix
from pyspec.text.prompts import FillIn, OtherFile
from pyspec.text.stream import check_stops
from pyspec.text.template import ChatTemplate
from pyspec.vocab import check_tokens

_FORMAT_TOKENS = 64  # upper estimate of a chat template's tokens
_BYTES_A_TOKEN = 3  # low, so that estimates of prompts are rarely too short


@dataclass(frozen=True)
class Settings:
    """Defaults for options that a record does not set.

    Attributes:
        sampling: How the target chooses tokens. Its seed is the batch's. Each record's seed is derived from that and the
            record's id, so that neither order nor neighbours matter.
        rule: `Strict()` or `Margin()`, by which drafted tokens are accepted.
        max_tokens: Maximal tokens of an answer; None or -1 for as many as fit.
        system: System prompt of chats.
        stop: Strings that end an answer.
        raw: Whether prompts are used without the chat template.
        timeout: Time limit of an answer in seconds, from the start of its prefill.
        reasoning_budget: Maximal tokens of reasoning; None or -1 for no limit.

    Raises:
        OptionError: A value is outside its range.
    """

    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.0, seed=0))
    rule: Verification = field(default_factory=Strict)
    max_tokens: int | None = 512
    system: str | None = None
    stop: tuple[str, ...] = ()
    raw: bool = False
    timeout: float | None = None
    reasoning_budget: int | None = None

    def __post_init__(self) -> None:
        check_ranges({"timeout": self.timeout, "max_tokens": self.max_tokens})
        check_stops(self.stop)

    def guess(self, record: Record) -> int:
        """An upper estimate of a record's tokens, prompt and answer."""
        texts = [record.prompt or "", record.system or self.system or ""]
        texts += map(str, record.messages or ())
        size = sum(len(text.encode()) for text in texts)
        return size // _BYTES_A_TOKEN + _FORMAT_TOKENS + self.most(record)

    def most(self, record: Record) -> int:
        """Maximal tokens of a record's answer."""
        most = self.max_tokens if record.max_tokens is None else record.max_tokens
        return MAX_TOKENS if most is None or most < 0 else most


class AnswerMaker:
    """Makes answers, which have yet to run, for one target. n_ctx: tokens of a sequence. drafts: names of draft and companion."""

    def __init__(
        self,
        target: Any,
        settings: Settings,
        n_ctx: int,
        drafts: tuple[str, str] = ("none", "none"),
    ) -> None:
        self._target, self._drafts, self._settings, self._n_ctx = target, drafts, settings, n_ctx
        self._template = ChatTemplate.of(target)
        self._template.limit(n_ctx)
        self._speech = Speech.of(target)

    @cached_property
    def public(self) -> list[int]:
        """The prefix that all chats with only a user's text share: the template's and the server's own text."""
        chats = [[{"role": "user", "content": text}] for text in "ab"]
        try:
            first, second = (self._tokens(Record(id="", messages=turns)) for turns in chats)
        except PyspecError:
            return []
        return first[: common_prefix(first, second)]

    def make(self, index: int, record: Record) -> Answer | RecordResult:
        """An answer, or the result of a record that has an error or does not fit."""
        if record.error is not None:
            return failed(index, record, record.error)
        try:
            return self.answer(index, record)
        except Exception as error:  # noqa: BLE001 - a faulty record must not end the others
            return failed(index, record, error)

    def answer(self, index: int, record: Record) -> Answer:
        """The answer of a record. Raises InputError, OptionError or ContextOverflow."""
        record.check()
        tokens = self._tokens(record)
        if len(tokens) > self._n_ctx:
            raise ContextOverflow(self._n_ctx, len(tokens))
        settings, wanted = self._settings, self._settings.most(record)
        functions = {tool["name"]: tool.get("parameters") for tool in record.tools or ()}
        stop = settings.stop if record.stop is None else tuple(record.stop)
        content, limit = record.language, None
        if content is None and record.grammar is not None:
            content = of_grammar(record.grammar)
        if self._is_chat(record):
            stop, most = (*stop, *self._template.stop), self._budget(record)
            limit = most if most is None else ReasoningLimit(most, functions, record.goes_on)
            forced = record.tool_choice
            reader = self._speech.reader(
                tokens, stop, functions=functions, name=record.id, goes_on=record.goes_on, forced=forced is not None,
            )  # fmt: skip
            grammar = self._speech.shape(tokens, content, functions, forced, record.parallel)
        else:
            reader = AnswerReader(self._speech.piece, stop)
            grammar = None if content is None else Constraint(content)
        sampling, drafting = self._sampling(record), _speculation(record.speculation, settings.rule)
        echo = ""
        if record.echo:
            echo = self.text(tokens) if record.prompt is None else record.prompt
        rows = record.logprobs is not None
        options = AnswerOptions(
            sampling, drafting, wanted, stop, grammar=grammar, reasoning=limit, keep_rows=rows,
            prompt_rows=rows and bool(echo),
        )  # fmt: skip
        need = min(len(tokens) + wanted, self._n_ctx)
        return Answer(
            index, record, tokens, options, reader, need, timeout=settings.timeout, drafts=self._drafts,
            alternatives=record.logprobs, echo=echo, predicted=self._predicted(record.prediction),
        )  # fmt: skip

    def count(self, record: Record) -> int:
        """Count a prompt's tokens, also beyond the context; far beyond, a lower bound. Raises InputError or OptionError."""
        record.check()
        try:
            return len(self._tokens(record))
        except ContextOverflow as error:
            return error.need

    def text(self, tokens: list[int]) -> str:
        """The text of tokens, with the names of control tokens. Raises InputError for an id that is none."""
        data: bytes = self._target.tokenizer_.detokenize(tokens, special=True)
        return data.decode("utf-8", "replace")

    def _predicted(self, text: str | None) -> list[int]:
        """Tokens of a predicted answer, at most n_ctx."""
        if not text:
            return []
        data = text.encode("utf-8", "replace")
        tokens = list(self._target.tokenizer_.tokenize(data, add_bos=False, special=False))
        return tokens[: self._n_ctx]

    def _is_chat(self, record: Record) -> bool:
        """Whether the chat template applies. For a model without one, a prompt without system prompt is a text to continue."""
        if record.messages is not None or record.form == COMPLETION:
            return record.messages is not None
        alone = self._template.is_plain and self._system(record) is None
        return record.tokens is None and not (self._settings.raw or alone)

    def _budget(self, record: Record) -> int | None:
        """Maximal tokens of reasoning; None for no limit."""
        own = record.reasoning_budget
        most = self._settings.reasoning_budget if own is None else own
        return None if most is None or most < 0 else most

    def _sampling(self, record: Record) -> Sampling:
        base = self._settings.sampling
        own = {name: getattr(record, name) for name in SAMPLER_FIELDS}
        own = {name: value for name, value in own.items() if value is not None}
        noise = record.sampling or base.noise
        for token in own.get("logit_bias", ()):
            if not 0 <= token < self._target.n_vocab():
                raise OptionError(f"logit_bias names token {token}", "there is no such token")
        # derived from the record's id, so that neither order nor neighbours matter
        seed = derive_seed(base.seed, record.id) if record.seed is None else record.seed
        return replace(base, seed=seed, noise=noise, **own).seeded()

    def _tokens(self, record: Record) -> list[int]:
        if record.tokens is not None:
            check_tokens(record.tokens, self._target.n_vocab())
            return list(record.tokens)
        if record.suffix is not None:
            return self._filling(record, record.suffix)
        if record.messages is None and not self._is_chat(record):
            return self._template.bare(record.prompt or "")
        turns = record.messages
        if turns is None:
            turns = [{"role": "user", "content": record.prompt or ""}]
        system = self._system(record)
        if system is not None and not any(turn.get("role") in SYSTEM_ROLES for turn in turns):
            turns = [{"role": "system", "content": system}, *turns]
        if len(turns) > self._n_ctx:  # each turn has at least one token
            raise ContextOverflow(self._n_ctx, len(turns), counted=False)
        tools = [{"type": "function", "function": function} for function in record.tools or ()]
        budget = self._budget(record)
        arguments = self._speech.arguments(record.chat_template_kwargs or {}, budget)
        if record.reasons is False or budget == 0:
            arguments = {**self._speech.quiet, **arguments}
        return self._template.prompt(
            from_outside(turns), tools=tools, arguments=arguments, goes_on=record.goes_on
        )

    def _filling(self, record: Record, suffix: str) -> list[int]:
        """The prompt of an infill. It leaves room for the answer, at most a quarter of the context."""
        fill_in, prompt = FillIn(self._target), record.prompt or ""
        if record.others is None:
            return fill_in.tokens(prompt, suffix)
        room = self._n_ctx - min(self._settings.most(record), self._n_ctx // 4)
        return fill_in.fitting(prompt, suffix, [OtherFile(*each) for each in record.others], room)

    def _system(self, record: Record) -> str | None:
        return self._settings.system if record.system is None else record.system


def _speculation(body: SpeculationBody | None, rule: Verification) -> Speculation:
    """A record's options of speculation. rule: the default rule. Raises OptionError."""
    if body is None:
        return Speculation(verification=rule)
    named = {name: getattr(body, name) for name in MARGIN_OPTIONS}
    own: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    if own and body.verify != "margin":
        message = f"speculation has {', '.join(own)}, which belong to the margin rule"
        raise OptionError(message, 'add "verify": "margin"')
    if body.verify is not None:
        rule = Margin(**own) if body.verify == "margin" else Strict()
    return Speculation(
        body.enabled is not False, rule, length=body.length, draft_max=body.draft_max
    )
