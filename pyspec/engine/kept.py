"""Keeps what contexts hold of texts, in memory or in a file, so that a text that comes back need not be read again."""

from __future__ import annotations

import ctypes
import hashlib
import logging
from collections.abc import Mapping, Sequence
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
        tokens = list(text[: self._engine.held(Role.TARGET, seq)])
        if not tokens or self._most <= 0:
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
        found = [(_common(each, prompt), i) for i, each in texts if each.owner == owner]
        most, i = max(found, default=(0, 0))
        return self._texts[i] if found and most >= least else None

    def restore(self, parked: ParkedText, seq: int, prompt: Sequence[int]) -> int:
        """Move a text back into a free sequence; returns how many of a prompt's tokens it holds then.

        Without room it returns 0 and the text stays.
        """
        n = _common(parked, prompt)
        if not put_state(self._contexts[Role.TARGET], seq, parked.states[Role.TARGET]):
            return 0
        self._texts = [each for each in self._texts if each is not parked]
        self._engine.set_tokens(seq, prompt, held=n)
        for role, state in parked.states.items():
            if role != Role.TARGET and put_state(self._contexts[role], seq, state):
                self._engine.put_back(role, seq, n)
        return n


def _common(parked: ParkedText, prompt: Sequence[int]) -> int:
    return min(common_prefix(parked.tokens, prompt), len(prompt) - 1)


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
    context, model = target.context_params, target.model_params
    settings = {
        f"{kind}.{name}": _plain(getattr(params, name))
        for kind, params in (("context", context), ("model", model))
        for name, *_ in params._fields_
        if name not in _NO_MATTER
    }
    adapter = getattr(target, "lora_path", None)
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
        "devices": [str(device) for device in getattr(target, "devices", None) or ()],
        "tensor_split": list(target.tensor_split or ()),
        "overrides": {key: repr(value) for key, value in (target.kv_overrides or {}).items()},
        "adapter": [file_sha256(Path(adapter)), target.lora_scale] if adapter else None,
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
        held = self._file.load(0, self._llm.n_ctx() - 1, tokens)
        if held:
            self._llm.hold(held)
        self._restored = common_prefix(held, tokens)
        return self._restored

    def keep(self, tokens: Sequence[int]) -> None:
        """Write the state of a prompt that was just read, if it is longer than what the file had."""
        if self._file is None:
            return
        if len(tokens) > self._restored + 1:
            self._file.save(0, self._llm.input_ids[: self._llm.n_tokens].tolist())
