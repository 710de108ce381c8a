"""How a `SpeculativeLlama` answers: one answer of its session, and answers as text."""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields, replace
from inspect import signature
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np

from pyspec.engine.options import AnswerOptions
from pyspec.errors import EngineError, InputEncoding, InputError
from pyspec.grammar.languages import Constraint
from pyspec.grammar.masks import MaskProcessor, Masks
from pyspec.llama.calls import Completion, IdStream
from pyspec.sampling.chain import MIN_TOP_P, ProcessorHook, error_behind, refuse
from pyspec.sampling.options import Sampling, check_bias, check_ranges
from pyspec.text.parts import AnswerPart, Piece, SpeculationBlock, Step, targets_own
from pyspec.text.prompts import FillIn
from pyspec.vocab import check_tokens

if TYPE_CHECKING:
    from pyspec.engine.answer_lock import AnswerLock
    from pyspec.engine.options import Speculation
    from pyspec.engine.session import Session
    from pyspec.text.completions import ChatCompletion


_FINISH_REASONS = {"length": "length", "context": "length", "cancelled": "cancelled"}
"""Finish reasons of a completion: a full context counts as length."""

NUMBERS = {f.name for f in fields(Sampling)} & {*signature(llama_cpp.Llama.generate).parameters} | {
    "temperature"
}
"""Fields of `Sampling` that llama-cpp-python has arguments for in all its calls."""


def sampling_of(given: Mapping[str, Any], seed: int, more: Mapping[str, Any]) -> Sampling:
    """The sampling that arguments of llama-cpp-python's and `more` fields ask for; clients send top_p 0 and more."""
    numbers = {name: given[name] for name in NUMBERS}
    numbers["top_p"] = min(max(numbers["top_p"], MIN_TOP_P), 1.0)
    numbers["min_p"] = min(max(numbers["min_p"], 0.0), 1.0)
    return Sampling(**numbers, **more, seed=seed)


def drawn_by(llm: Any, speculation: Speculation, bias: Any) -> dict[str, Any]:
    """Fields of `Sampling` for a call with this bias."""
    return {"noise": speculation.sampling or llm.noise, "logit_bias": check_bias(bias)}


class Answering:
    """The steps of one answer in the session of `llm`, a `SpeculativeLlama` whose fields follow; it begins with the first one."""

    def __init__(self, llm: Any, tokens: Sequence[int], options: AnswerOptions) -> None:
        self._llm, self._tokens, self._options = llm, tokens, options
        self._steps: Generator[Step, None, None] | None = None
        self._chain: Any = None

    def __iter__(self) -> Answering:
        return self

    def __next__(self) -> Step:
        try:
            if self._steps is None:
                self._steps = self._begin()
            step = next(self._steps)
        except EngineError as error:
            if (cause := error_behind(self._chain, error)) is error:
                raise
            raise cause from None
        self._llm.context_text.follow(self._run.tokens)
        if self._hook is not None and self._hook.error is not None:
            raise self._hook.error
        return step

    def _begin(self) -> Generator[Step, None, None]:
        llm, tokens, options = self._llm, self._tokens, self._options
        if not len(tokens):
            raise InputError("the prompt has no tokens", "give at least one, such as token_bos()")
        check_tokens(tokens, llm.n_vocab())
        lent = llm.answer_lock.lent
        session: Session = llm.session
        processors = [lent(each) for each in options.logits_processor or ()]
        self._hook = ProcessorHook(processors, tokens) if processors else None
        if llm.context_text.sees(tokens):  # a draft model does not, and would seldom be right
            looks_up = options.drafting in ("all", "lookup")
            options = replace(options, drafting="lookup" if looks_up else "nothing")
        self._options = options = options.settled(llm.verification)
        self._run, self._chain = options.begin(tokens, llm, self._hook)
        key = options.speculation.length, options.rule, options.sampling.draw
        self._policy = options.policy or llm.policies.of(*key)
        self._run.rows = llm.begin_rows(tokens, options, session.engine)
        self._policy.begin_sequence(self._run.seq)
        progress = None if options.progress is None else lent(options.progress)
        held = llm.context_text.begin(tokens, llm.decoded)
        least = llm.context_text.unreadable
        return session.steps(self._run, self._policy, held, progress, least)

    def close(self) -> None:
        """End the answer, however far it came: update what the context holds and what was done."""
        if self._steps is not None:
            self._steps.close()
            self._record()
        if self._chain is not None:
            self._chain.close()

    def _record(self) -> None:
        llm, session = self._llm, self._llm._session
        if session is None or session.in_flight is not None or not llm.answer_lock.holds:
            return  # closed late: the context is a newer answer's, or is being freed
        llm.context_text.adopt(session.tokens, session.held, llm.decoded)
        if session.tokens is self._run.tokens and (statistics := session.statistics) is not None:
            report = statistics.report(self._policy)
            block = self._options.block(statistics.tally, report, session.assembly.parts.names)
            llm.last_speculation = SpeculationBlock(block)
            llm.last_timings = {"load_ms": round(llm.load_ms, 2), **block["timings"]}
        if llm.pair_memory is not None:
            llm.pair_memory.temper = session.engine.temper()
            llm.pair_memory.keep_now_and_then()


def ids_of(
    llm: Any,
    tokens: Sequence[int],
    options: AnswerOptions,
    reset: bool,
    call: Completion,
    *,
    is_its: bool,
) -> IdStream:
    """Yield the ids of an answer.

    However it ends, the context holds no token that the caller has not seen, and not yet the last one: as in
    llama-cpp-python, where a token is decoded when the next one is asked for.
    """
    # criteria read tokens; logits are kept only for logprobs
    row = np.zeros(llm.n_vocab(), dtype=np.single)
    text = [*([] if reset else llm.input_ids[: llm.n_tokens].tolist()), *tokens]
    answer = Answering(llm, text, options)
    steps: Any = answer if is_its else llm.answer_lock.held(answer)
    seen, own = len(text) - 1, None
    try:
        for step in steps:
            own = llm.session.tokens
            for token in step.tokens:
                seen += 1
                if call.ends(llm.input_ids[:seen], row):
                    return
                yield token.id
            if step.finish_reason not in (None, "stop"):
                call.reason = _FINISH_REASONS[step.finish_reason]
    finally:
        steps.close()
        # closed late, the context may hold a newer answer's tokens
        if llm._session is not None and llm.session.tokens is own:
            llm.n_tokens = min(llm.n_tokens, seen)


def completion_of(
    llm: Any,
    given: dict[str, Any],
    samplers: Mapping[str, Any],
    speculation: Speculation,
    criteria: Any,
) -> Completion:
    """What llama-cpp-python's loop does not pass on of a call's arguments, which are taken out of `given`."""
    if (suffix := given.pop("suffix")) is not None:
        given["prompt"] = FillIn(llm).tokens(given["prompt"], suffix)
    keep_rows = given["logprobs"] is not None
    options = AnswerOptions(
        speculation=speculation,
        max_tokens=_whole(given["max_tokens"]),
        goes_on=True,  # half a character may need one token more than allowed
        keep_rows=keep_rows,
        prompt_rows=keep_rows and bool(given["echo"]) and not given["stream"],
    )
    drawn = drawn_by(llm, speculation, given.pop("logit_bias"))
    return Completion(options, {**drawn, **samplers}, criteria)


def _whole(most: Any) -> Any:
    """A whole number as an int, though it be a float, which llama-cpp-python takes."""
    return int(most) if isinstance(most, float) and most.is_integer() else most


def chunks_of(
    llm: Any, completion: Completion | None, chunks: Generator[Any, None, None]
) -> Generator[Any, None, None]:
    """Run llama-cpp-python's generator to its end under the lock; the last chunk says what was done."""
    with closing(llm.answer_lock.held(_to_the_end(completion, chunks))) as held:
        for chunk in held:
            yield marked(llm, chunk, None if completion is None else completion.reason)


def _to_the_end(
    completion: Completion | None, chunks: Generator[Any, None, None]
) -> Generator[Any, None, None]:
    try:
        yield from chunks
    except UnicodeEncodeError as error:
        what = f"the prompt is not UTF-8 at character {error.start}"
        raise InputEncoding(what, "decode it first") from error
    finally:
        if completion is not None:
            completion.close()


def marked(llm: Any, chunk: Any, reason: str | None = None) -> Any:
    """A chunk of a completion; the last one has what speculation did, and `reason` if that is why it ended."""
    if not (chunk["choices"] and chunk["choices"][0].get("finish_reason")):
        return chunk
    chunk["choices"][0]["finish_reason"] = reason or chunk["choices"][0]["finish_reason"]
    return {**chunk, "speculation": llm.last_speculation}


def chat_steps(
    llm: Any,
    chat: ChatCompletion,
    given: Mapping[str, Any],
    samplers: Mapping[str, Any],
    speculation: Speculation,
) -> Generator[Step, None, None]:
    """The steps of a chat by the model's own template."""
    seed = given["seed"]
    drawn = drawn_by(llm, speculation, given["logit_bias"])
    if seed is None:  # as llama-cpp-python gives a call without one
        seed = random.Random(llm._seed).randint(0, 2**32)  # noqa: S311
    check_ranges({"seed": seed})
    llm._seed = seed
    options = AnswerOptions(
        sampling_of(given, llm._seed, {**drawn, **samplers}),
        speculation,
        _whole(given["max_tokens"]),
        goes_on=True,
        grammar=chat.grammar,
        logits_processor=given["logits_processor"],
        keep_rows=bool(given["logprobs"]),
    )
    chat.fit(options.max_tokens)
    lock: AnswerLock = llm.answer_lock
    if not llm.is_plain:
        return lock.held(Answering(llm, chat.prompt, options))
    refuse(samplers)
    return lock.held(plain_steps(llm, chat.prompt, options))


def plain_steps(llm: Any, prompt: list[int], options: AnswerOptions) -> Generator[Step, None, None]:
    """The steps of llama-cpp-python's own `generate`."""
    numbers, grammar = vars(options.sampling), options.grammar
    processors = [llm.answer_lock.lent(each) for each in options.logits_processor or ()]
    if isinstance(grammar, Constraint):
        processors.append(MaskProcessor(Masks(grammar, llm)))
        grammar = None
    if (bias := options.sampling.logit_bias) is not None:
        added = np.zeros(llm.n_vocab(), np.single)
        added[list(bias)] = list(bias.values())
        processors.append(lambda _ids, scores: scores + added)
    llm.last_speculation = SpeculationBlock({})
    ids = llama_cpp.Llama.generate(
        llm,
        prompt,
        temp=numbers["temperature"],
        **{name: numbers[name] for name in NUMBERS - {"temperature"}},
        logits_processor=llama_cpp.LogitsProcessorList(processors),
        grammar=grammar,
    )
    for token in ids:
        ended = llama_cpp.llama_vocab_is_eog(llm._model.vocab, token)
        yield Step(targets_own([token]), "stop" if ended else None)


def stream_text(
    llm: Any,
    prompt: Sequence[int],
    options: Sampling | AnswerOptions | None = None,
    *,
    chat: bool = False,
    functions: Mapping[str, Any] | None = None,
    **more: Any,
) -> Generator[Piece, None, None]:
    """Answer a prompt of tokens as text. `llm.last_speculation` and `llm.last_timings` then tell what was done.

    Args:
        llm: A `SpeculativeLlama`.
        prompt: Ids of the prompt, such as `ChatTemplate.of(llm).prompt(messages)`.
        options: How the target chooses tokens, or all options.
        chat: Whether this is a chat prompt; reasoning is then not part of the text.
        functions: What a chat answer may call: the JSON schema of each function's parameters, by its name.
        more: Fields of `AnswerOptions`, such as max_tokens, stop, speculation and grammar.

    Yields:
        One piece per round; the last one has a finish_reason.

    Raises:
        PyspecError: As `SpeculativeLlama.steps` does.
    """
    from pyspec.text.answer import AnswerReader  # noqa: PLC0415 - who only names the class needs none

    own = AnswerOptions.of(options, **more)
    reader = AnswerReader(llm.piece, own.stop)
    if chat:
        name = str(len(prompt))  # a different name for each turn of a conversation
        reader = llm.speech.reader(prompt, own.stop, functions=functions, name=name)
    held: list[AnswerPart] = []  # of calls, which are complete at the end
    steps = llm.steps(prompt, own)
    with closing(steps):
        for step in steps:
            parts = reader.push([token.id for token in step.tokens])
            reason = "stop" if reader.done else step.finish_reason
            if reason is not None:
                parts += reader.finish()
            held += (part for part in parts if part.kind not in ("content", "reasoning"))
            parts = [part for part in parts if part.kind in ("content", "reasoning")]
            if reason is not None:
                yield Piece(step.tokens, reason, step.rows, [*parts, *held], reader.inside)
                return
            yield Piece(step.tokens, rows=step.rows, parts=parts)
