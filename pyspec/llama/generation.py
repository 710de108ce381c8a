"""How a `SpeculativeLlama` answers: the engine's rounds under llama-cpp-python's own loop for completions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from time import perf_counter
from types import MappingProxyType
from typing import Any
from weakref import ref

import numpy as np
from llama_cpp import LogitsProcessorList

from pyspec.draft.lengths import parse_length
from pyspec.draft.simple import LengthPolicy
from pyspec.engine.assembly import Assembly
from pyspec.engine.models import SideOptions
from pyspec.engine.options import AnswerOptions, Speculation
from pyspec.engine.profiles import PairMemory
from pyspec.engine.runs import Run
from pyspec.engine.selection import Parts, choose_parts, may_use_head
from pyspec.engine.session import Session
from pyspec.engine.target import SNAPSHOTS
from pyspec.engine.tensor_places import Overrides
from pyspec.errors import InputEncoding, InputError, OptionError
from pyspec.llama.mirror import ClosedHandle, Mirror, closed_error
from pyspec.llama.options import MORE_SAMPLERS, Completion, IdStream, ThreadOptions
from pyspec.sampling.chain import ProcessorHook, Sampling, in_force, refuse
from pyspec.sampling.limits import check_bias, check_ranges
from pyspec.sampling.options import ANY_SEED, Noise, check_noise
from pyspec.sampling.verification import Verification, check_rule
from pyspec.screen.notebook import SpeculationBlock
from pyspec.text.answer import AnswerReader
from pyspec.text.parts import AnswerPart, Piece, Step
from pyspec.text.prompts import FillIn
from pyspec.vocab.tokenizer import check_tokens, piece_reader

log = logging.getLogger("pyspec")

_FINISH_REASONS = {"length": "length", "context": "length", "cancelled": "cancelled"}
"""Finish reasons of a completion: a full context counts as length."""

_GREEDY = Sampling(temperature=0.0)


class Generation(Mirror):
    """A `Llama` whose answers come from a session; `SpeculativeLlama` has the public names and signatures."""

    def __init__(
        self,
        model_path: str,
        *,
        draft: Any,
        companion: str,
        verification: Verification,
        length: str,
        sampling: Noise,
        draft_n_gpu_layers: int | str | None,
        draft_type_k: int | None,
        draft_type_v: int | None,
        draft_devices: str | Sequence[str] | None,
        draft_n_cpu_moe: int,
        draft_override_tensor: Overrides | None,
        wait: bool | float,
        memory: bool,
        **kwargs: Any,
    ) -> None:
        start = perf_counter()
        # refuse invalid options before loading the model
        check_ranges({"wait": wait})
        side_options = SideOptions.of(
            draft_n_gpu_layers, draft_devices, (draft_type_k, draft_type_v),
            draft_n_cpu_moe, draft_override_tensor,
        )  # fmt: skip
        check_rule(verification)
        check_noise(sampling)
        self._noise = sampling
        self._has_seed = kwargs.get("seed", ANY_SEED) not in (None, ANY_SEED, -1)
        self._length = parse_length(length)
        self._in_force = ThreadOptions()
        self._session: Session | None = None
        self.pair_memory: PairMemory | None = None
        self._noted: set[str] = set()
        kwargs.setdefault("snapshots", 0 if draft == "none" else SNAPSHOTS)
        kwargs.setdefault("head", may_use_head(draft))
        super().__init__(model_path, wait=wait, **kwargs)
        self.piece = piece_reader(self._model.vocab)
        self.verification = verification
        self.last_speculation = SpeculationBlock({})
        self.last_timings: dict[str, float] = {}
        if not self._plain:
            try:
                self._assemble(choose_parts(self, draft, companion), memory, side_options)
            except BaseException:
                self.close()  # the exception's traceback keeps this object, and with it the target's memory
                raise
        self.load_ms = 1e3 * (perf_counter() - start)

    def _assemble(self, parts: Parts, memory: bool, side_options: SideOptions) -> None:
        parts.remember(memory)
        self._parts = parts
        assembly = Assembly(self, parts, side_options)
        self._session = Session(assembly)
        self.pair_memory = kept = PairMemory(self, assembly.sides)
        kept.kept_by(self)
        self._policies = kept.begin(self, assembly.sides, self._length)
        self.curve, assembly.engine.temper = self._policies.curve, kept.temper
        for note in assembly.notes:
            self._note(note)

    # -- under llama-cpp-python's completions --------------------------------------------------------------------------

    @contextmanager
    def binding(
        self,
        speculation: Speculation | None = None,
        samplers: Mapping[str, Any] = MappingProxyType({}),
        on_token: Callable[[int], bool] | None = None,
    ) -> Iterator[None]:
        """Apply a call's options to the calls made inside: chat handlers call `create_completion` with arguments of their own."""
        if speculation is not None and not isinstance(speculation, Speculation):
            raise OptionError(f"speculation is {speculation!r}", "give Speculation(...) or OFF")
        force = self._in_force
        outer = force.speculation, force.samplers, force.on_token
        force.speculation, force.on_token = speculation or outer[0], on_token or outer[2]
        force.samplers = {**outer[1], **samplers}
        try:
            yield
        finally:
            force.speculation, force.samplers, force.on_token = outer

    def _marked(self, chunk: Any, completion: Completion | None = None) -> Any:
        """A chunk of a completion; adds why it ended and what speculation did to the last one."""
        ended = chunk["choices"] and chunk["choices"][0].get("finish_reason")
        if ended and completion is not None and completion.reason is not None:
            chunk["choices"][0]["finish_reason"] = completion.reason
        return {**chunk, "speculation": self.last_speculation} if ended else chunk

    def _create_completion(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        lent = self.answer_lock.lent
        if kwargs.get("stopping_criteria") is not None:
            kwargs["stopping_criteria"] = lent(kwargs["stopping_criteria"])
        if self._plain:
            if (processors := kwargs.get("logits_processor")) is not None:
                kwargs["logits_processor"] = LogitsProcessorList(map(lent, processors))
            refuse(self._in_force.samplers)
            return self._chunks(None, super()._create_completion(*args, **kwargs))
        if (suffix := kwargs.pop("suffix", None)) is not None:
            kwargs["prompt"] = FillIn(self).tokens(kwargs["prompt"], suffix)
        keep_rows = kwargs.get("logprobs") is not None
        most = kwargs.get("max_tokens")
        if isinstance(most, float) and most.is_integer():
            most = int(most)
        options = AnswerOptions(
            Sampling(
                logit_bias=check_bias(kwargs.pop("logit_bias", None)),
                noise=self._noise_in_force,
                chance=kwargs.get("seed") is None and not self._has_seed,
                **self._in_force.samplers,
            ),
            self._in_force.speculation,
            most,
            goes_on=True,  # half a character may need one token more than allowed
            keep_rows=keep_rows,
            prompt_rows=keep_rows and bool(kwargs.get("echo")),
        )
        completion = Completion(options, kwargs.pop("stopping_criteria", None))
        completion.on_token = self._in_force.on_token
        chunks = super()._create_completion(*args, stopping_criteria=completion, **kwargs)
        return self._chunks(completion, chunks)

    def set_seed(self, seed: int) -> None:
        """Set the seed of later answers, as in llama-cpp-python. Raises OptionError."""
        check_ranges({"seed": seed})
        self._has_seed |= self._in_force.completion is None  # llama-cpp-python sets one inside
        super().set_seed(seed)

    @property
    def _noise_in_force(self) -> Noise:
        return self._in_force.speculation.sampling or self._noise

    def _chunks(
        self, completion: Completion | None, chunks: Generator[Any, None, None]
    ) -> Generator[Any, None, None]:
        """Run llama-cpp-python's generator to its end under the lock, with `completion` in force."""
        lock, ends = self.answer_lock, [each.close for each in (completion, chunks) if each]
        with lock.taken() as me, lock.ending(me, *ends):
            while True:
                with lock.step(me):
                    self._in_force.completion = completion
                    try:
                        chunk = next(chunks)
                    except StopIteration:
                        return
                    except UnicodeEncodeError as error:
                        raise InputEncoding(
                            f"the prompt is not UTF-8 at character {error.start}",
                            "decode it first",
                        ) from error
                    finally:
                        self._in_force.completion = None
                yield self._marked(chunk, completion)

    @property
    def _wants_logprobs(self) -> bool:
        completion = self._in_force.completion
        return completion is not None and completion.options.keep_rows

    def _generate(
        self, tokens: Sequence[int], sampling: Sampling, reset: bool, criteria: Any, **changes: Any
    ) -> IdStream:
        """Begin an answer: the running completion's first one is its own; a helper such as a drafter may ask for others."""
        call = self._in_force.completion
        from_call: tuple[str, ...] = ("logit_bias", "noise", "chance", *MORE_SAMPLERS)
        is_its = call is not None and call.answer is None
        if call is None or not is_its:
            own = None if criteria is None else self.answer_lock.lent(criteria)
            from_call = ("noise",)
            call = Completion(AnswerOptions(Sampling(noise=self._noise_in_force), goes_on=True), own)  # fmt: skip
        before = {name: getattr(call.options.sampling, name) for name in from_call}
        options = replace(call.options, sampling=replace(sampling, **before), **changes)
        ids = self._ids(tokens, options, reset, call, is_its=is_its)
        call.answer = ref(ids)
        return ids

    def _ids(
        self,
        tokens: Sequence[int],
        options: AnswerOptions,
        reset: bool,
        call: Completion,
        *,
        is_its: bool,
    ) -> IdStream:
        """Yield the ids of an answer; tokens that the caller sends become part of the sequence.

        However it ends, the context holds no token that the caller has not seen, and not yet the last one: as in
        llama-cpp-python, where a token is decoded when the next one is asked for.
        """
        # criteria read tokens; logits are kept only for logprobs
        row = np.zeros(self._n_vocab, dtype=np.single)
        text = [*([] if reset else self.input_ids[: self.n_tokens].tolist()), *tokens]
        goes_on = True
        while goes_on:
            answer = self._answer(text, options)
            steps = answer if is_its else self.answer_lock.held(answer)
            seen, goes_on, own = len(text) - 1, False, None
            try:
                for step in steps:
                    own = self.session.tokens
                    for token in step.tokens:
                        seen += 1
                        if call.ends(token.id, self.input_ids[:seen], row):
                            return
                        sent = yield token.id
                        if sent:
                            text, goes_on = [*self.input_ids[:seen].tolist(), token.id, *sent], True
                            break
                    if goes_on:
                        break
                    if step.finish_reason not in (None, "stop"):
                        call.reason = _FINISH_REASONS[step.finish_reason]
            finally:
                steps.close()
                # closed late, the context may hold a newer answer's tokens
                if self._session is not None and self._session.tokens is own:
                    self.n_tokens = min(self.n_tokens, seen)

    def steps(
        self, tokens: Sequence[int], options: Sampling | AnswerOptions | None = None, **more: Any
    ) -> Generator[Step, None, None]:
        """Answer a prompt round by round; the layer below all others. The generator may be closed early.

        Args:
            tokens: Ids of the prompt, at least one.
            options: How the target chooses tokens, or all options.
            more: Fields of `AnswerOptions`, such as max_tokens and speculation.

        Raises:
            InputError: The prompt is empty, or the grammar cannot be used.
            ContextOverflow: The prompt is longer than the context.
            EngineError: llama.cpp failed, or a logit is not finite (`NumericError`).
        """
        if not isinstance(options, AnswerOptions):
            more["speculation"] = more.get("speculation") or self._in_force.speculation
        return self.answer_lock.held(self._answer(tokens, AnswerOptions.of(options, **more)))

    def _answer(self, tokens: Sequence[int], options: AnswerOptions) -> Generator[Step, None, None]:
        if not len(tokens):
            raise InputError("the prompt has no tokens", "give at least one, such as token_bos()")
        check_tokens(tokens, self._n_vocab)
        lent = self.answer_lock.lent
        processors = [lent(each) for each in options.logits_processor or ()]
        hook = ProcessorHook(processors, tokens) if processors else None
        loop, cheap = self.session.loop, self._policies.rows_are_cheap
        if self._sees(tokens):  # a draft model does not, and would seldom be right
            looks_up = options.drafting in ("all", "lookup")
            options = replace(options, drafting="lookup" if looks_up else "nothing")
        options = options.settled(self.verification, by_model=loop.draft_model, cheap=cheap)
        run, chain = options.begin(tokens, self, self.verification, hook)
        with in_force(chain):
            session, rule = self.session, options.rule(self.verification)
            key = options.speculation.length, rule, options.sampling.draw
            policy = options.policy or self._policies.of(*key)
            run.rows = self._begin_rows(tokens, options, session.engine)
            policy.begin_answer()
            progress = None if options.progress is None else lent(options.progress)
            try:
                for step in session.steps(
                    run, policy, self._begin(tokens), progress, self.unreadable
                ):
                    self._follow(run.tokens)
                    if hook is not None and hook.error is not None:
                        raise hook.error
                    yield step
            finally:
                self._record_speculation(run, policy, options)

    @property
    def session(self) -> Session:
        """The session that holds the context's tokens. Raises EngineError once this is closed."""
        if self._session is None:
            raise closed_error()
        return self._session

    @property
    def assembly(self) -> Assembly:
        """The loaded models and their engine. Raises EngineError once this is closed."""
        return self.session.assembly

    def new_policy(
        self, speculation: Speculation | None = None, sampling: Sampling = _GREEDY
    ) -> LengthPolicy:
        """A policy for `steps` that has learned nothing yet, for the length that `speculation` or this object names.

        sampling: of the answers it is for; less is accepted above temperature 0.
        """
        speculation = speculation or Speculation()
        rule = AnswerOptions(sampling, speculation).rule(self.verification)
        return self._policies.new(speculation.length, rule, sampling.draw)

    def _record_speculation(self, run: Run, policy: LengthPolicy, options: AnswerOptions) -> None:
        """After an answer, however it ended, update what the KV holds and what was done."""
        session = self._session
        if session is None or session.in_flight is not None or not self.answer_lock.holds:
            return  # closed late: the context is a newer answer's, or is being freed
        statistics = session.statistics if session.tokens is run.tokens else None
        self._adopt(session.tokens, session.held)
        if statistics is not None:
            names = session.assembly.draft, session.assembly.companion
            report = statistics.report(policy)
            block = options.block(statistics.tally, report, names, self.verification)
            self.last_speculation = SpeculationBlock(block)
            self._note(session.assembly.hint())
            self.last_timings = {"load_ms": round(self.load_ms, 2), **block["timings"]}
        if self.pair_memory is not None:
            self.pair_memory.temper = session.engine.temper
            self.pair_memory.keep_now_and_then()

    # -- the rest ------------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Stop the answer in flight, even while it reads the prompt; safe from any thread and from a signal handler."""
        session = self._session  # another thread may close this object meanwhile
        if session is not None:
            session.cancel()
            self.answer_lock.drop()

    def _note(self, note: str) -> None:
        if note and note not in self._noted:
            self._noted.add(note)
            log.warning("%s", note)

    def close(self) -> None:
        """Free the models; may be called twice. Raises EngineBusy inside an answer of its own."""
        session = getattr(self, "_session", None)
        lock = nullcontext() if session is None else self.answer_lock.freeing(session.engine.cancel)
        with lock:
            self._session = None
            if session is not None:
                if self.pair_memory is not None:
                    self.pair_memory.keep()
                session.close()
            if hasattr(self, "_stack"):
                super().close()
                # llama-cpp-python would go on using the freed model
                self._model = self._ctx = self._batch = self.tokenizer_ = ClosedHandle()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stream_text(
    llm: Generation,
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
            if reason is None:
                yield Piece(step.tokens, rows=step.rows, parts=parts)
                continue
            yield Piece(step.tokens, reason, step.rows, [*parts, *held], reader.inside)
            return
