"""What of llama-cpp-python's fields a `SpeculativeLlama` keeps itself: the text in the context, and its logits."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from pyspec.engine.answer_lock import AnswerLock
from pyspec.engine.handle import Engine
from pyspec.engine.options import AnswerOptions
from pyspec.engine.target import TargetLlama
from pyspec.errors import EngineError, InputError
from pyspec.machine.devices import layer_devices
from pyspec.text.parts import common_prefix


class ScoreRows:
    """Stands for an [n_tokens, n_vocab] array of which only a few rows were kept, from the position `first` on.

    Reading a row costs nothing; only converting it to an array allocates all of it, with zeros for the rows that were not kept.
    """

    def __init__(self, first: int, rows: list[npt.NDArray[np.float32]], n_vocab: int) -> None:
        self._first, self._rows, self._n_vocab = first, rows, n_vocab

    @property
    def shape(self) -> tuple[int, int]:
        """[n_tokens, n_vocab]."""
        return self._first + len(self._rows), self._n_vocab

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> npt.NDArray[np.float32]:
        index = key[0] if isinstance(key, tuple) else key
        if not isinstance(index, (int, np.integer)):
            part: npt.NDArray[np.float32] = np.asarray(self)[key]
            return part
        kept = int(index) - self._first if index >= 0 else len(self._rows) + int(index)
        if not 0 <= kept < len(self._rows):
            return np.zeros(self._n_vocab, dtype=np.float32)
        return self._rows[kept]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        whole = np.zeros(self.shape, dtype=np.float32)
        if self._rows:
            whole[self._first :] = self._rows
        return whole if dtype is None else whole.astype(dtype)

    @property
    def last(self) -> npt.NDArray[np.float32] | None:
        """The last row kept, [n_vocab], or None."""
        return self._rows[-1] if self._rows else None

    def copy(self) -> npt.NDArray[np.float32]:
        """One row of zeros: a saved state keeps no logits, and one row fits a `llama_cpp.Llama` with any number of them."""
        return np.zeros((1, self._n_vocab), dtype=np.float32)


_NUMBERS = count(1)
NEVER_DECODED = (1, 1)  # llama.cpp's counters before the first decode, and after they were reset


class ClosedHandle:
    """Stands for what `close` freed: any use raises a clear error."""

    def __getattr__(self, name: str) -> Any:
        raise closed_error()


def closed_error() -> EngineError:
    return EngineError("this SpeculativeLlama is closed", "create a new one")


class ContextText:
    """The ids of what a context holds, and which of its positions hold no tokens but an image's rows or the like."""

    def __init__(self) -> None:
        self.ids: npt.NDArray[np.intc] = np.zeros(0, dtype=np.intc)
        self.n_tokens = self.n_vocab = 0
        self.at_rest = NEVER_DECODED
        self._foreign: list[tuple[int, int]] = []
        self._left: list[int] = []  # tokens that the last answer left in the KV

    def hold(self, tokens: Sequence[int]) -> None:
        """Note that the context now holds these tokens, and nothing else."""
        self.ids[: len(tokens)] = tokens
        self.n_tokens, self._foreign, self._left = len(tokens), [], []

    def sees(self, tokens: Sequence[int]) -> bool:
        """Whether a text goes on from an image in the context."""
        if not self._foreign:
            return False
        return common_prefix(self.ids[: self.n_tokens].tolist(), tokens) >= self._foreign[0][1]

    def stand_in(self, end: int) -> None:
        """Give positions up to `end` ids that no other such rows have, so that a text never takes them for its own."""
        number = next(_NUMBERS)
        for at in range(end - 1, self.n_tokens - 1, -1):
            number, self.ids[at] = divmod(number, self.n_vocab)
        self._foreign.append((self.n_tokens, end))

    def keep_whole(self, common: int) -> int:
        """Return how many of the first `common` positions can stay, an image only as a whole; the others' rows are forgotten."""
        kept = next((first for first, end in self._foreign if first < common < end), common)
        self._foreign = [(first, end) for first, end in self._foreign if end <= kept]
        return kept

    @property
    def unreadable(self) -> int:
        """How many positions only their owner can read again, since the last of them hold no tokens."""
        return self._foreign[-1][1] if self._foreign else 0

    def begin(self, tokens: Sequence[int], decoded: tuple[int, int]) -> int:
        """Begin an answer; returns -1 if the context holds what the last one left, else how many of `tokens` it begins with.

        From here on `n_tokens` counts the tokens of the new text in `ids`.
        """
        ids, self.n_tokens = self.ids[: self.n_tokens].tolist(), 0
        common = common_prefix(ids, tokens)
        if ids and ids == self._left:
            # another program may decode on this context (guidance does) without changing `input_ids`
            if decoded not in (self.at_rest, NEVER_DECODED):
                common = 0
            elif not self._foreign:
                return -1
        return self.keep_whole(common)

    def follow(self, text: list[int]) -> None:
        """Update after a round: the KV holds all of the text except its last token."""
        first, self.n_tokens = self.n_tokens, len(text) - 1
        self.ids[first : self.n_tokens] = text[first:-1]

    def adopt(self, text: list[int], held: int, decoded: tuple[int, int]) -> None:
        """Update after an answer: the KV holds the first `held` tokens of the text."""
        self._left, self.at_rest, self.n_tokens = text[:held], decoded, held
        self.ids[:held] = self._left


class Mirror(TargetLlama):
    """A `Llama` whose fields follow what a session decodes on its context.

    llama-cpp-python and its users read them: for prefix reuse, saved states, stopping criteria and logprobs. Logits are kept if
    requested; `eval` keeps those of the last token.
    """

    def __init__(self, model_path: str, *, wait: bool | float, **kwargs: Any) -> None:
        self.context_text, self._reads = ContextText(), False
        self._rows: ScoreRows | None = None
        self._buffer: Any = None
        self._all_logits = self.is_plain = False
        super().__init__(model_path, **kwargs)
        # a child process has none of the other threads, and cannot use the parent's devices
        alone = max(self.n_threads, self.n_threads_batch) == 1 and not layer_devices(self.devices)
        self.answer_lock = AnswerLock(wait, forks=alone)
        # with its own score buffer, or as an embedder or mere tokenizer, llama-cpp-python's plain path is enough
        self.is_plain = any(kwargs.get(mode) for mode in ("logits_all", "embedding", "vocab_only"))
        self._widen()
        self.context_text.n_vocab = self._n_vocab
        if not self.is_plain:
            self._buffer = None  # n_batch x n_vocab floats that are never filled here

    def _widen(self) -> None:
        """Enlarge llama-cpp-python's buffers to the whole context, which llama.cpp rounds up."""
        if len(self.input_ids) < self._n_ctx:
            ids = np.zeros(self._n_ctx, dtype=np.intc)
            ids[: len(self.input_ids)] = self.input_ids
            self.input_ids = ids
        if self._all_logits and len(self._buffer) < self._n_ctx:
            self._buffer = np.empty((self._n_ctx, self._n_vocab), dtype=np.single)

    @property
    def is_open(self) -> bool:
        """Whether the model can answer: loaded, and not closed."""
        return not isinstance(getattr(self, "_model", ClosedHandle()), ClosedHandle)

    @property
    def input_ids(self) -> npt.NDArray[np.intc]:
        """Ids of what the context holds; the first `n_tokens` count."""
        return self.context_text.ids

    @input_ids.setter
    def input_ids(self, ids: npt.NDArray[np.intc]) -> None:
        self.context_text.ids = ids

    @property
    def n_tokens(self) -> int:
        """Positions that the context holds; whoever decodes rows of its own, as handlers of images do, counts them here."""
        return self.context_text.n_tokens

    @n_tokens.setter
    def n_tokens(self, n: int) -> None:
        if n > self.context_text.n_tokens and not (self._reads or self.is_plain):
            self.context_text.stand_in(n)
        self.context_text.n_tokens = n

    @property
    def decoded(self) -> tuple[int, int]:
        """Tokens that llama.cpp has decoded on this context, in batches and singly."""
        seen = llama_cpp.llama_perf_context(self._ctx.ctx)
        return seen.n_p_eval, seen.n_eval

    @property
    def _logits_all(self) -> Any:
        # logprobs need none: llama-cpp-python refuses them where this is False, and 0 is not
        return self._all_logits or 0

    @_logits_all.setter
    def _logits_all(self, value: bool) -> None:
        self._all_logits = value

    @property
    def scores(self) -> Any:
        """Logits by position, [n_tokens, n_vocab]; without `logits_all` only requested rows, the others are zeros."""
        if self._buffer is not None:
            return self._buffer
        return self._rows if self._rows is not None else ScoreRows(0, [], self._n_vocab)

    @scores.setter
    def scores(self, buffer: Any) -> None:
        self._buffer = buffer

    @property
    def _scores(self) -> Any:
        return self.scores[: self.n_tokens, :] if self._buffer is not None else self.scores

    @property
    def eval_logits(self) -> Any:
        """The last token's logits after `eval`, as a deque of one row; with `logits_all`, those of every token."""
        if self.is_plain:
            return super().eval_logits
        kept = self._rows.last if self._rows is not None else None
        return deque([] if kept is None else [kept.tolist()], maxlen=1)

    def begin_rows(
        self, tokens: Sequence[int], options: AnswerOptions, engine: Engine
    ) -> list[npt.NDArray[np.float32]] | None:
        """Make the list for the logits of an answer's tokens, for logprobs; None if they are not kept.

        It may begin with the prompt's logits, for which the engine reads it. llama-cpp-python takes row i for token i + 1 of
        all tokens but a leading BOS, even if there is no BOS to leave out; then a row of zeros goes first.
        """
        rows: list[npt.NDArray[np.float32]] = []
        if options.keep_rows and options.prompt_rows:
            if tokens[0] != self.token_bos():
                rows.append(np.zeros(self._n_vocab, dtype=np.float32))
            text = list(tokens[:-1])
            engine.cancel(raised=False)  # it came when the last answer had ended
            for held in range(0, len(text), self.n_batch):
                rows += engine.rows_behind(0, text[: held + self.n_batch], held)
            self.context_text.hold(text)
        first = 0 if options.prompt_rows else len(tokens) - 1
        self._rows = ScoreRows(first, rows, self._n_vocab) if options.keep_rows else None
        return rows if options.keep_rows else None

    # -- llama-cpp-python's calls on the context; each raises EngineBusy while an answer is in flight ---------------------

    def eval(self, tokens: Sequence[int]) -> None:
        """Decode tokens after those that the context holds."""
        with self.answer_lock.alone():
            self.context_text.keep_whole(self.n_tokens)
            self._reads = True
            try:
                super().eval(tokens)
            finally:
                self._reads = False
            self.context_text.at_rest = self.decoded
            if not self.is_plain and len(tokens) > 0:
                pointer = llama_cpp.llama_get_logits_ith(self._ctx.ctx, -1)
                row = np.array(np.ctypeslib.as_array(pointer, (self._n_vocab,)))
                self._rows = ScoreRows(self.n_tokens - 1, [row], self._n_vocab)

    def embed(self, *args: Any, **kwargs: Any) -> Any:
        """See `llama_cpp.Llama.embed`. Raises InputError for a text without tokens."""
        inputs = kwargs["input"] if "input" in kwargs else args[0]
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        # llama-cpp-python writes before its batch's first
        if not texts or any(len(self.tokenize(text.encode())) == 0 for text in texts):
            raise InputError("a text to embed has no tokens", "leave out empty texts")
        with self.answer_lock.alone():
            return super().embed(*args, **kwargs)

    def reset(self) -> None:
        with self.answer_lock.alone():
            super().reset()
            self.context_text.keep_whole(0)

    def sample(self, *args: Any, **kwargs: Any) -> int:
        with self.answer_lock.alone():
            return int(super().sample(*args, **kwargs))

    def save_state(self) -> Any:
        with self.answer_lock.alone():
            return super().save_state()

    def load_state(self, state: Any) -> None:
        """Restore the context that `save_state` saved, here or on a `llama_cpp.Llama` with the same file and options."""
        with self.answer_lock.alone():
            if self.is_plain:
                super().load_state(state)
                return
            self.context_text.hold([])
            self._rows = None
            data = (ctypes.c_uint8 * state.llama_state_size).from_buffer_copy(state.llama_state)
            taken = llama_cpp.llama_state_set_data(self._ctx.ctx, data, state.llama_state_size)
            if taken != state.llama_state_size:
                raise EngineError(
                    "the saved state belongs to another model or another kind of context",
                    "load it into a model with the same file, n_ctx, flash_attn and KV types",
                )
            self.context_text.hold(state.input_ids[: state.n_tokens])
            self._seed = state.seed

    def recall(self, prompt: list[int]) -> None:
        """Load what the cache of `set_cache` has of a prompt's beginning, if it is more than the context has."""
        try:
            item = None if self.cache is None else self.cache[prompt]
        except KeyError:
            return
        if item is not None:
            held = self.input_ids[: self.n_tokens].tolist()
            if common_prefix(item.input_ids.tolist(), prompt) > common_prefix(held, prompt):
                self.load_state(item)

    def keep(self, tokens: list[int]) -> None:
        """Give the state, which is that behind these tokens, to the cache of `set_cache`."""
        if self.cache is not None:
            self.cache[tokens] = self.save_state()
