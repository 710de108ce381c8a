"""`SpeculativeLlama`: llama-cpp-python's `Llama`, answering with speculative decoding."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from pyspec.assemble import Assembly, assemble
from pyspec.engine.session import UNLIMITED, Request
from pyspec.engine.side import Placement, address
from pyspec.mirror import Closed, Mirror, closed_error
from pyspec.policy.base import LengthPolicy
from pyspec.policy.cost import CostCurve
from pyspec.policy.learned import Learned
from pyspec.policy.lengths import Length, parse_length
from pyspec.profiles import load_profile, prior_curve, prior_learned
from pyspec.ranges import check_ranges
from pyspec.rules import Strict, Verification
from pyspec.sampling import ProcessorHook, Sampling, build_chain
from pyspec.speculation import OFF, Speculation, result_block
from pyspec.store import resolve
from pyspec.text import piece_reader
from pyspec.tokens import Step

__all__ = ["OFF", "Speculation", "SpeculativeLlama"]

log = logging.getLogger("pyspec")

_FINISH_REASONS = {"length": "length", "context": "length", "cancelled": "cancelled"}
"""What ended an answer, in the words of a completion: a full context is a length."""

_STRICT = Strict()
_DEFAULT_SAMPLING = Sampling()


@dataclass(frozen=True)
class _Call:
    """What llama-cpp-python's own signatures do not carry down to `generate`."""

    speculation: Speculation = field(default_factory=Speculation)
    max_tokens: int | None = None
    logit_bias: dict[int, float] | None = None
    logprobs: bool = False
    echo: bool = False
    ending: _Ending | None = None


class _Ending:
    """Stands for a call's stopping criteria in llama-cpp-python's own loop.

    That loop throws away the text of a generator which ends before it asked for the end, unless a criterion wants to stop
    there. This one does, where the answer ended by itself.
    """

    def __init__(self, criteria: Any) -> None:
        self.criteria = criteria
        self.reason: str | None = None
        """Why the answer ended; None where llama-cpp-python knows it."""

    def __call__(self, ids: Any, logits: Any) -> bool:
        wanted = self.criteria is not None and self.criteria(ids, logits)
        return bool(wanted) or self.reason is not None


def _file_of(model: str | os.PathLike[str]) -> str:
    """The file that a path or a name stands for; raises ModelNotFound where it is neither."""
    return str(model) if Path(model).exists() else str(resolve(model))


class SpeculativeLlama(Mirror):
    """A `llama_cpp.Llama` that drafts and verifies.

    draft: "auto" (a shipped draft that fits, with prompt lookup in front; lookup alone otherwise), "none", "lookup", the
        name or path of a draft GGUF, "lookup+NAME", a pyspec `Drafter`, or any `LlamaDraftModel` of llama-cpp-python.
    companion: "auto" (the shipped one that fits), "none", a name or a path.
    verification: `Strict()`, the target's own text, or `Margin()`, faster and a little different.
    length: how many drafted tokens are verified: "auto", "companion", "confidence:P" or "fixed:K".
    model_path: a file, or a name as the command line takes it; what is not here is fetched.
    draft_n_gpu_layers, draft_type_k, draft_type_v: offload and KV types of draft and companion; None follows the target.
    trust: skip the trial load of files not seen before. extra_buffers: "auto", "on" or "off", see `TargetLlama`.
    flash_attn: on unless you say False, as in llama.cpp's own programs; on a CPU it decodes 4 to 10 % faster.

    Everything else is llama-cpp-python's. Each result carries a `speculation` block; the last one is `last_speculation`.
    Pass `speculation=Speculation(...)` to a call to change it for that call, or `speculation=OFF`.
    Raises DraftMismatch before anything is generated if a draft speaks another vocabulary.
    """

    def __init__(
        self,
        model_path: str,
        *,
        draft: Any = "auto",
        companion: str = "auto",
        verification: Verification = _STRICT,
        length: str = "auto",
        draft_n_gpu_layers: int | None = None,
        draft_type_k: int | None = None,
        draft_type_v: int | None = None,
        **kwargs: Any,
    ) -> None:
        start = perf_counter()
        check_ranges({"draft_n_gpu_layers": draft_n_gpu_layers})
        self._bound, self._call = Speculation(), _Call()
        self._assembly: Assembly | None = None
        self._told: set[str] = set()
        foreign = kwargs.pop("draft_model", None)
        kwargs.setdefault("verbose", False)
        kwargs.setdefault("flash_attn", True)
        super().__init__(_file_of(model_path), **kwargs)
        self.piece = piece_reader(self._model.vocab)
        self.verification = verification
        self._length = parse_length(length)
        self._policies: dict[tuple[Length, str], LengthPolicy] = {}
        self.last_speculation: dict[str, Any] = {}
        self.last_timings: dict[str, float] = {}
        if not self._plain:
            chosen = foreign if foreign is not None and draft == "auto" else draft
            placement = Placement(draft_n_gpu_layers, type_k=draft_type_k, type_v=draft_type_v)
            self._assembly = assemble(self, chosen, companion, placement)
            self._measured = load_profile(self, self._assembly) is not None
            self._curve = prior_curve(self, self._assembly)
            for note in self._assembly.notes:
                self._tell(note)
        self.load_ms = 1e3 * (perf_counter() - start)

    # -- the calls that llama-cpp-python's users know ------------------------------------------------------------------

    def create_completion(
        self, *args: Any, speculation: Speculation | None = None, **kwargs: Any
    ) -> Any:
        """llama-cpp-python's `create_completion`; the result has a `speculation` block."""
        with self._binding(speculation):
            return super().create_completion(*args, **kwargs)

    def __call__(self, *args: Any, speculation: Speculation | None = None, **kwargs: Any) -> Any:
        """The same as `create_completion`."""
        return self.create_completion(*args, speculation=speculation, **kwargs)

    def create_chat_completion(
        self, *args: Any, speculation: Speculation | None = None, **kwargs: Any
    ) -> Any:
        """llama-cpp-python's `create_chat_completion`; the result has a `speculation` block."""
        with self._binding(speculation):
            result = super().create_chat_completion(*args, **kwargs)
        if isinstance(result, dict):
            return {**result, "speculation": self.last_speculation}
        return self._marked(result)

    @contextmanager
    def _binding(self, speculation: Speculation | None) -> Iterator[None]:
        """Bind `speculation` to the calls made inside: chat handlers call `create_completion` with arguments of their own."""
        outer = self._bound
        self._bound = speculation or outer
        try:
            yield
        finally:
            self._bound = outer

    def _marked(self, chunks: Any, ending: _Ending | None = None) -> Iterator[Any]:
        for chunk in chunks:
            if not chunk["choices"] or not chunk["choices"][0].get("finish_reason"):
                yield chunk
                continue
            if ending is not None and ending.reason is not None:
                chunk["choices"][0]["finish_reason"] = ending.reason
            yield {**chunk, "speculation": self.last_speculation}

    def _create_completion(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        bias = None if self._plain else kwargs.pop("logit_bias", None)
        ending = None if self._plain else _Ending(kwargs.pop("stopping_criteria", None))
        call = _Call(
            self._bound,
            kwargs.get("max_tokens"),
            {int(token): float(value) for token, value in bias.items()} if bias else None,
            kwargs.get("logprobs") is not None,
            bool(kwargs.get("echo")),
            ending,
        )
        if ending is not None:
            kwargs["stopping_criteria"] = ending
        chunks = super()._create_completion(*args, **kwargs)
        return self._marked(self._carrying(call, chunks), ending)

    def _carrying(self, call: _Call, chunks: Iterator[Any]) -> Iterator[Any]:
        """Run llama-cpp-python's generator with `call` in force whenever it runs."""
        while True:
            self._call, self._wants_logprobs = call, call.logprobs
            try:
                chunk = next(chunks)
            except StopIteration:
                return
            finally:
                self._call, self._wants_logprobs = _Call(), False
            yield chunk

    # -- generation ----------------------------------------------------------------------------------------------------

    def generate(
        self,
        tokens: Sequence[int],
        reset: bool = True,
        temp: float = 0.8,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        grammar: Any = None,
        tfs_z: float = 1.0,
        penalize_nl: bool = True,
        **options: Any,
    ) -> Generator[int, Sequence[int] | None, None]:
        """llama-cpp-python's `generate`: yields token ids, and ends after an end-of-generation token."""
        call = self._call
        if self._plain:
            yield from self._llama_generate(
                tokens, reset, temp, logits_processor, stopping_criteria, grammar, options
            )
            return
        sampling = Sampling(
            temperature=temp, seed=self._seed, logit_bias=call.logit_bias, **options
        )
        text = list(tokens) if reset else [*self.input_ids[: self.n_tokens].tolist(), *tokens]
        while True:
            steps = self.steps(
                text,
                sampling,
                max_tokens=call.max_tokens,
                speculation=call.speculation,
                grammar=grammar,
                logits_processor=logits_processor,
                keep_rows=call.logprobs,
                goes_on=True,  # half a character may need a token more than was allowed
            )
            more = yield from self._ids(steps, text, stopping_criteria)
            if more is None:
                return
            text = more  # the caller sent tokens of its own: go on from there

    def _llama_generate(
        self,
        tokens: Any,
        reset: bool,
        temp: float,
        processors: Any,
        criteria: Any,
        grammar: Any,
        options: Any,
    ) -> Generator[int, Sequence[int] | None, None]:
        self._tell(
            "logits_all or embedding was asked for: decoding plainly, as llama-cpp-python does"
        )
        self.last_speculation = {}
        plain: Generator[int, Sequence[int] | None, None] = super().generate(
            tokens,
            reset=reset,
            temp=temp,
            logits_processor=processors,
            stopping_criteria=criteria,
            grammar=grammar,
            **options,
        )
        return plain

    def steps(
        self,
        tokens: Sequence[int],
        sampling: Sampling = _DEFAULT_SAMPLING,
        *,
        max_tokens: int | None = None,
        speculation: Speculation | None = None,
        grammar: Any = None,
        logits_processor: Any = None,
        keep_rows: bool = False,
        goes_on: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Generator[Step, None, None]:
        """Answer the prompt `tokens` round by round; the layer under all the others.

        max_tokens: None or below 1 for as many as the context holds. keep_rows: keep logits of emitted tokens for logprobs.
        goes_on: do not end at max_tokens but go on without drafts until the generator is closed.
        progress(done, total) is called while the prompt is read. Closing the generator early keeps everything consistent.
        Raises ContextOverflow, EngineError or NumericError, and whatever a logits processor raises.
        """
        session = self._open().session
        speculation = speculation or self._bound
        hook = ProcessorHook(logits_processor, tokens) if logits_processor else None
        chain = build_chain(sampling, self, grammar, hook)
        rule = speculation.verification or self.verification
        if grammar is not None or hook is not None or sampling.shaped:
            rule = Strict()
        policy = self._policy(speculation, rule)
        request = Request(
            policy=policy,
            rule=rule,
            sampler=0 if chain is None else address(chain.sampler),
            sampled=sampling.temperature != 0.0,
            max_tokens=UNLIMITED if max_tokens is None or max_tokens < 1 else max_tokens,
            goes_on=goes_on,
            draft_max=speculation.longest,
            rows=[] if keep_rows else None,
            progress=progress,
            held=self._held(tokens),
        )
        self._keep_rows(len(tokens), request.rows)
        policy.begin_answer()
        try:
            for step in session.steps(tokens, request):
                self._follow(session.tokens)
                if hook is not None and hook.error is not None:
                    raise hook.error
                yield step
        finally:
            self._settle(policy, rule, speculation)
            if chain is not None:
                chain.close()

    def _open(self) -> Assembly:
        if self._assembly is None:
            raise closed_error()
        return self._assembly

    def _policy(self, speculation: Speculation, rule: Verification) -> LengthPolicy:
        """One policy for each length and rule, so that what it learns is of the rule in force."""
        length = parse_length(speculation.length) if speculation.length else self._length
        key = (length, rule.name)
        if key not in self._policies:
            curve, learned = self._believed()
            self._policies[key] = length.policy(curve, learned, self._open().has_companion)
        return self._policies[key]

    def _believed(self) -> tuple[CostCurve, Learned]:
        """A policy's beginnings: what a profile measured, or the curve of this object and the draft's prior."""
        measured = load_profile(self, self._assembly) if self._measured else None
        return measured or (self._curve, prior_learned(self._assembly))

    def _settle(self, policy: LengthPolicy, rule: Verification, speculation: Speculation) -> None:
        """After an answer, however it ended: what the KV holds, and what was done."""
        assembly = self._assembly
        if assembly is None:
            return
        self._adopt(assembly.session.tokens, assembly.session.held)
        report = assembly.session.report
        if report is not None:
            self.last_speculation = result_block(assembly, report, policy, rule, speculation)
            self.last_timings = {**report.timings.as_dict(), "load_ms": round(self.load_ms, 2)}

    def _ids(
        self, steps: Generator[Step, None, None], prompt: list[int], criteria: Any
    ) -> Generator[int, Sequence[int] | None, list[int] | None]:
        """Flatten steps to ids; returns the text to go on from if the caller sends tokens.

        However it ends, the context holds no token that the caller has not seen, and the last one not yet: as in
        llama-cpp-python, where a token is decoded when the next one is asked for.
        """
        text, ending = list(prompt), self._call.ending
        criteria = ending.criteria if ending is not None else criteria
        # criteria read tokens; logits are kept for logprobs alone
        row = np.zeros(self._n_vocab, dtype=np.single)
        seen = len(text) - 1
        try:
            for step in steps:
                for token in step.tokens:
                    seen = len(text)
                    if criteria is not None and criteria(self.input_ids[:seen], row):
                        return None
                    text.append(token.id)
                    sent = yield token.id
                    if sent:
                        return text + list(sent)
                if ending is not None and step.finish_reason not in (None, "stop"):
                    ending.reason = _FINISH_REASONS[step.finish_reason]
        finally:
            steps.close()
            self.n_tokens = min(self.n_tokens, seen)
        return None

    # -- the rest ------------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Stop the answer in flight, also while it reads the prompt; safe from any thread and from a signal handler."""
        if self._assembly is not None:
            self._assembly.session.cancel()

    def _tell(self, note: str) -> None:
        if note not in self._told:
            self._told.add(note)
            log.warning("%s", note)

    def close(self) -> None:
        """Free the models; calling it again does nothing."""
        assembly, self._assembly = getattr(self, "_assembly", None), None
        if assembly is not None:
            assembly.close()
        if hasattr(self, "_stack"):
            super().close()
            # llama-cpp-python goes on to use the freed model where it is not told otherwise
            self._model = self._ctx = self._batch = self.tokenizer_ = Closed()

    def __enter__(self) -> SpeculativeLlama:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "a SpeculativeLlama holds contexts and cannot be pickled; make one in each process"
        )
