"""Keeps what contexts hold of texts, in free sequences, memory or a file, so that no text that comes back is read again."""

from __future__ import annotations

import ctypes
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp
import msgspec
import psutil

from pyspec.engine.handle import Engine, Role
from pyspec.errors import OptionError, PyspecError
from pyspec.machine.files import file_sha256, parse, tell_damage, write_whole
from pyspec.text.parts import common_prefix

log = logging.getLogger("pyspec")

State = Any
"""A ctypes array of bytes."""


def state_of(context: Any, seq: int) -> State:
    """Copy what a context holds of a sequence."""
    buffer = (ctypes.c_uint8 * llama_cpp.llama_state_seq_get_size(context, seq))()
    size = llama_cpp.llama_state_seq_get_data(context, buffer, len(buffer), seq)
    return buffer if size == len(buffer) else (ctypes.c_uint8 * size).from_buffer(buffer)


def put_state(context: Any, seq: int, state: State) -> bool:
    """Put a state of such a context into a sequence, in place of what it holds; False if there is no room for it."""
    return bool(llama_cpp.llama_state_seq_set_data(context, state, len(state), seq))


MIN_TOKENS = 16
"""Shortest common beginning worth taking over from another sequence, tokens."""

MIB = 1 << 20
_SHARE = 0.125  # default share of the free memory


def room_for_parked(mib: int | None) -> int:
    """Return the bytes that conversations may take. mib: their limit in MiB, None for a share of the free memory."""
    return int(_SHARE * psutil.virtual_memory().available) if mib is None else mib * MIB


class ParkedText(NamedTuple):
    """A text of an owner, and what each context held of it."""

    owner: str
    tokens: list[int]
    states: Mapping[Role, State]

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.states.values()))


class ParkedTexts:
    """KV states of evicted texts by owner, for prompts of the same owner alone. The oldest go first.

    contexts: addresses of the contexts whose KV can be copied, by role. most: bytes of all texts.
    """

    def __init__(self, engine: Engine, contexts: Mapping[Role, Any], most: int) -> None:
        self._engine, self._contexts, self._most = engine, contexts, most
        self._texts: list[ParkedText] = []

    def park(self, seq: int, text: Sequence[int], owner: str) -> None:
        """Keep what a sequence holds of an owner's text, unless a kept text already begins with it."""
        if self._most <= 0:
            return
        tokens = list(text[: self._engine.held(Role.TARGET, seq)])
        if not tokens:
            return
        mine = [each for each in self._texts if each.owner == owner]
        if any(common_prefix(each.tokens, tokens) == len(tokens) for each in mine):
            return
        states = {role: state_of(context, seq) for role, context in self._contexts.items()}
        grown = [e for e in mine if common_prefix(e.tokens, tokens) == len(e.tokens)]
        self._texts = [each for each in self._texts if all(each is not e for e in grown)]
        self._texts.append(ParkedText(owner, tokens, states))
        while sum(each.nbytes for each in self._texts) > self._most:
            self._texts.pop(0)

    def fetch(self, prompt: Sequence[int], owner: str, least: int) -> ParkedText | None:
        """Return the owner's text with the longest common prefix with a prompt; None below `least` tokens."""
        texts = enumerate(self._texts)
        found = [(common(each.tokens, prompt), i) for i, each in texts if each.owner == owner]
        most, i = max(found, default=(0, 0))
        return self._texts[i] if found and most >= least else None

    def restore(self, parked: ParkedText, seq: int, prompt: Sequence[int]) -> int:
        """Move a text back into a free sequence; returns how many of a prompt's tokens it holds then.

        Without room it returns 0 and the text stays.
        """
        n = common(parked.tokens, prompt)
        if not put_state(self._contexts[Role.TARGET], seq, parked.states[Role.TARGET]):
            return 0
        self._texts = [each for each in self._texts if each is not parked]
        self._engine.set_tokens(seq, prompt, held=n)
        for role, state in parked.states.items():
            if role != Role.TARGET and put_state(self._contexts[role], seq, state):
                self._engine.put_back(role, seq, n)
        return n


# -- in a file -------------------------------------------------------------------------------------------------------

_MAGIC = b"pyspec-prompt-cache-1\n"


class _Head(msgspec.Struct):
    """The tokens of a state, and the hash of the state and of everything it depends on."""

    tokens: list[int]
    sha256: str


class PromptFile:
    """The state of a sequence's tokens in a context of `target`.

    target: the `llama_cpp.Llama`. The hash is checked before a state is loaded, so a file that is damaged or belongs to another
    model or other settings never reaches the context.
    """

    def __init__(self, target: Any, path: Path) -> None:
        self._target, self.path = target, path

    def load(self, seq: int, most: int, begins: Sequence[int] | None = None) -> list[int]:
        """Load the state into a sequence; returns its tokens, or none if it was not loaded.

        most: tokens that there is room for. begins: a prompt that must share the text's beginning. Raises OptionError for another
        kind of file.
        """
        if not self.path.exists():
            return []
        if not self.path.is_file():  # a pipe waits for its writer, and a device has no end
            raise OptionError(f"{self.path} is not a regular file", "name another one")
        try:
            data = self.path.read_bytes()
            head, _, state = data[len(_MAGIC) :].partition(b"\n")
            found = parse(head, _Head) if data.startswith(_MAGIC) else None
        except (OSError, ValueError) as error:
            tell_damage(self.path, getattr(error, "strerror", None) or str(error))
            return []
        if found is None:
            raise OptionError(f"{self.path} exists and is not a prompt cache", "name another file")
        fits = begins is None or common_prefix(found.tokens, begins) > 0
        if fits and len(found.tokens) <= most and self._put(found, state, seq):
            return found.tokens
        log.warning(
            "%s is damaged, or belongs to another prompt, model or settings; it is replaced",
            self.path.name,
        )
        return []

    def _put(self, head: _Head, state: bytes, seq: int) -> bool:
        if not head.tokens or head.sha256 != self._hash(head.tokens, state):
            return False
        buffer = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        return put_state(self._target.ctx, seq, buffer)

    def save(self, seq: int, tokens: Sequence[int]) -> None:
        """Write the state of a sequence, which holds these tokens; a failure is logged and raises nothing."""
        state, held = bytes(state_of(self._target.ctx, seq)), list(tokens)
        try:
            head = _Head(held, self._hash(held, state))
            write_whole(self.path, [_MAGIC, msgspec.json.encode(head), b"\n", state])
        except (OSError, PyspecError) as error:
            reason = getattr(error, "strerror", None) or error
            log.warning("the prompt cache %s is not written: %s", self.path.name, reason)

    def _hash(self, tokens: list[int], state: bytes) -> str:
        belongs = [file_sha256(self._target.model_path), settings_of(self._target), tokens]
        return hashlib.sha256(msgspec.json.encode(belongs) + state).hexdigest()


_NO_MATTER = frozenset(
    [
        # how much there is room for, and how many sequences and outputs
        "n_ctx", "n_seq_max", "n_rs_seq", "n_outputs_max", "n_outputs_max_per_seq", "kv_unified",
        # how many rows a decode may have: below, as far as llama.cpp computes them together
        "n_batch", "n_ubatch",
        # who computes when, and who is told
        "n_threads", "n_threads_batch", "abort_callback", "abort_callback_data", "cb_eval", "cb_eval_user_data", "no_perf",
        "progress_callback", "progress_callback_user_data",
        # what comes after the states
        "samplers", "n_samplers", "embeddings", "pooling_type", "defrag_thold",
        # how weights come into memory
        "load_mode", "lazy_mode", "check_tensors", "no_alloc", "no_host", "vocab_only", "load_mtp",
        # addresses: what they lead to is below
        "devices", "tensor_split", "tensor_buft_overrides", "kv_overrides",
    ]
)  # fmt: skip
"""Parameters of contexts and models that states do not depend on. What llama.cpp adds counts until it is named here."""


def settings_of(target: Any) -> dict[str, Any]:
    """Return the settings of a `llama_cpp.Llama` that a state depends on besides file and tokens.

    `logits_all` is none of these. With it the last layer's rows are multiplied together, not one alone, which rounds its
    logits otherwise, in the seventh digit; what goes into the state was computed before.
    """
    context, model, path = target.context_params, target.model_params, target.lora_path
    settings = {
        f"{kind}.{name}": _plain(getattr(params, name))
        for kind, params in (("context", context), ("model", model))
        for name, *_ in params._fields_
        if name not in _NO_MATTER
    }
    return {
        **settings,
        "llama_cpp": llama_cpp.__version__,
        "rows": min(context.n_batch, context.n_ubatch),
        # longer than what the model was first trained on: some then turn positions by other factors
        "long": any(
            llama_cpp.llama_n_ctx_seq(target.ctx) > int(value)
            for key, value in target.metadata.items()
            if key.endswith(_ORIGINAL) and value.isdigit()
        ),
        "devices": list(target.devices),
        "tensor_split": list(target.tensor_split or ()),
        "overrides": {key: repr(value) for key, value in (target.kv_overrides or {}).items()},
        "adapter": [file_sha256(Path(path)), target.lora_scale] if path else None,
    }


def _plain(value: Any) -> Any:
    """Return a number as it is; of an address only whether there is one."""
    return value if isinstance(value, (bool, int, float)) else bool(value)


_ORIGINAL = ".rope.scaling.original_context_length"


class PromptCache:
    """The file for the one text in a `SpeculativeLlama`; None for no file."""

    def __init__(self, llm: Any, path: Path | None) -> None:
        self._llm, self._file = llm, None if path is None else PromptFile(llm, path)
        self._restored = 0

    def restore(self, tokens: Sequence[int]) -> int:
        """Load what the file holds of a prompt's beginning; returns how many tokens that saves."""
        if self._file is None:
            return 0
        if held := self._file.load(0, self._llm.n_ctx() - 1, tokens):
            self._llm.context_text.hold(held)
        self._restored = common_prefix(held, tokens)
        return self._restored

    def keep(self, tokens: Sequence[int]) -> None:
        """Write the state of a prompt that was just read, if it is longer than what the file had."""
        if self._file is not None and len(tokens) > self._restored + 1:
            self._file.save(0, self._llm.input_ids[: self._llm.n_tokens].tolist())


# -- in free sequences -------------------------------------------------------------------------------------------------


# a stream is copied whole: 430 cells took as long as prefilling one token of SmolLM2-135M (BF16, two cores)
_CELLS_A_TOKEN = 256


class PrefixCache:
    """The texts that free sequences still hold, the sequence freed longest ago first.

    Only its owner may reuse a text, since faster answers would reveal it to others. each: cells of a stream, 0 in a pool, where
    copies are free. public: returns the prefix of the template and server that every owner may reuse. parked: keeps texts of
    evicted sequences.
    """

    def __init__(
        self,
        engine: Engine,
        n_slots: int,
        each: int,
        public: Callable[[], Sequence[int]],
        parked: ParkedTexts,
    ) -> None:
        self._engine, self._public, self._parked = engine, public, parked
        # by sequence, active ones included
        self._owners = dict.fromkeys(range(n_slots), "")
        self.least = max(MIN_TOKENS, each // _CELLS_A_TOKEN)
        self.texts: dict[int, list[int]] = {seq: [] for seq in range(n_slots)}
        self.shared: list[int] = []
        """The longest prefix that was reused and has no owner."""

    def keep(self, seq: int, text: Sequence[int], n: int) -> None:
        """Free a sequence, and keep its first n tokens."""
        # one token more than is kept: the KV cache never holds a text's last token
        held = list(text[: n + 1]) if n > 0 else []
        self._engine.set_tokens(seq, held)
        self.texts[seq] = held

    def pad(self, text: Sequence[int]) -> list[int]:
        """Set this text in all free sequences, whose KV cache then holds none of it. Returns the sequences."""
        for seq in self.texts:
            self.keep(seq, (), 0)
            self._engine.set_tokens(seq, text)
        return list(self.texts)

    def is_of(self, seq: int, owner: str) -> bool:
        return owner == self._owners[seq]

    def common(self, seq: int, text: Sequence[int], prompt: Sequence[int], owner: str) -> int:
        """Tokens of the prefix that a prompt shares with a sequence's text, and that its owner may reuse."""
        n = common(text, prompt)
        return n if self.is_of(seq, owner) else min(n, common(self._public(), prompt))

    def left(self, seq: int, prompt: Sequence[int], owner: str) -> int:
        """Tokens of a prompt's prefix that this free sequence holds, so that no copy is needed."""
        n = self.common(seq, self.texts[seq], prompt, owner)
        return min(n, self._engine.held(Role.TARGET, seq))

    def source(
        self, prompt: Sequence[int], owner: str, active: Mapping[int, Sequence[int]]
    ) -> tuple[int | None, int]:
        """The sequence with the longest prefix of a prompt, and its tokens; None and 0 below `least` tokens."""
        best, most = None, self.least - 1
        for seq, text in (*self.texts.items(), *active.items()):
            n = self.common(seq, text, prompt, owner)
            if n > most:
                n = min(n, self._engine.held(Role.TARGET, seq))
            if n > most:
                best, most = seq, n
        return best, most if best is not None else 0

    def take(self, seq: int, prompt: Sequence[int], owner: str, source: int | None, n: int) -> None:
        """Occupy a free sequence. The first n tokens of the prompt are copied from `source`."""
        self._park(seq, n if source in (None, seq) else 0)
        if owner != self._owners[seq] and source in (None, seq):
            self.keep(seq, self.texts[seq], n)  # the rest belongs to another owner
        self.texts.pop(seq)
        self._owners[seq] = owner
        if source is not None:
            if n > len(self.shared) and (not owner or n <= common(self._public(), prompt)):
                self.shared = list(prompt[:n])
            if source != seq:
                self._engine.copy_prefix(source, seq, n)

    def _park(self, seq: int, n: int) -> None:
        """Park a free sequence's text, if eviction loses more of it than the n tokens that stay."""
        lost = len(self.texts[seq]) - 1 - n
        if lost >= max(self.least, n):
            self._parked.park(seq, self.texts[seq], self._owners[seq])

    def move(self, high: int, gap: int, n: int) -> None:
        """Move the n tokens of a sequence to the free one `gap`; the former is then free."""
        self.texts.pop(gap)
        self._owners[gap] = self._owners[high]
        self._engine.copy_prefix(high, gap, n)
        self.keep(high, (), 0)

    def restore(self, file: PromptFile, most: int) -> None:
        """Load a file's prefix into an empty context. most: limit on its cells."""
        tokens = file.load(0, most)
        if len(tokens) > self.least:
            self._engine.set_tokens(0, tokens, held=len(tokens))
            self.texts[0] = self.shared = tokens

    def save(self, file: PromptFile) -> None:
        """Write the longest shared prefix, or else the longest text, to a file. Texts with an owner are never written."""
        texts = [text for seq, text in self.texts.items() if not self._owners[seq]]
        wanted = self.shared or max(texts, key=len, default=[])
        seq, n = self.source([*wanted, 0], "", {})
        if seq is not None:
            self._engine.set_tokens(seq, [*wanted[:n], 0])
            file.save(seq, wanted[:n])
            self.texts[seq] = wanted[:n]

    def drop(self, most: int, spare: int | None = None) -> None:
        """Evict texts, oldest first, until they take at most so many cells. `spare` is evicted last."""
        for seq in sorted(self.texts, key=lambda seq: seq == spare):
            if sum(map(len, self.texts.values())) <= most:
                return
            self._park(seq, 0)
            self.keep(seq, (), 0)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens of the common prefix of two texts, at most all of b but its last."""
    return max(0, min(common_prefix(a, b), len(b) - 1))
