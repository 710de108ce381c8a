"""Checks the GGUF header of a model, and extracts the facts that lists and drafts need."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from pyspec.errors import ModelError, ModelInvalid, PyspecError
from pyspec.gguf.reader import STRING, Array, Header, Value, parse_header
from pyspec.gguf.vocabulary import (
    TOKENS,
    VocabularyHash,
    compared,
    fault_of,
    read_vocabulary,
    words_of,
)
from pyspec.machine import Heads, Shape, Window
from pyspec.machine.files import (
    MAX_PARTS,
    Stamp,
    parts_of,
    recall_as,
    remember,
    show,
    size_of,
    stamps,
)
from pyspec.machine.others import file_name_of

_RECENT = 8  # headers kept until their files change: a start asks for each several times
MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
MAX_VOCAB = 1 << 20
MAX_STATE = 1 << 26  # numbers in a layer's recurrent state; the largest models have a thirtieth
_CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
_POSITIONS = "position_embd.weight"
_UP = re.compile(r"\.\.[/\\]")
_SAMPLING = "general.sampling."
_OWN_KIND = frozenset(["eagle3", "dflash", "gemma4-assistant"])  # each a kind of draft by itself


def read_header(path: str | os.PathLike[str], *, weights: bool = True) -> Header:
    """Read and check the header of a model, with all its parts if it is split.

    With `weights=False` a vocabulary without weights is accepted too. Raises only ModelNotFound,
    ModelUnreadable or ModelInvalid.
    """
    path = Path(path)
    return _checked(path, tuple(stamps(path)), weights)


@lru_cache(maxsize=_RECENT)
def _checked(path: Path, at: tuple[Stamp, ...], weights: bool) -> Header:  # noqa: ARG001 - `at` is for the cache
    header = header_of_parts(path)
    if weights:
        _check_shape(header)
    _check_vocabulary(header)
    return header


def check_adapter(path: str | os.PathLike[str]) -> None:
    """Raise ModelNotFound, ModelUnreadable or ModelInvalid if a file is not a LoRA adapter."""
    header = parse_header(Path(path))
    kind = header.metadata.get("general.type"), header.metadata.get("adapter.type")
    if kind != ("adapter", "lora"):
        hint = "make one with llama.cpp's convert_lora_to_gguf.py"
        raise _bad(header, "this is not a LoRA adapter", hint)


def _bad(header: Header, what: str, hint: str = "") -> ModelInvalid:
    return ModelInvalid(f"{show(file_name_of(header.path))}: {what}", hint)


def _check_shape(header: Header) -> None:
    if not header.architecture:
        raise _bad(header, "general.architecture is missing, so this is not a model")
    if not header.tensors:
        raise _bad(header, "it holds no tensors")
    layers = header.of_arch("block_count")
    if type(layers) is not int or not 1 <= layers <= MAX_LAYERS:
        raise _bad(header, f"block_count is {_value(layers)}, outside 1..{MAX_LAYERS}")
    if not _heads(header):
        raise _bad(header, "attention.head_count is 0")
    if (n := _state(header)) > MAX_STATE:
        raise _bad(header, f"a layer's recurrent state would have {n} numbers, over {MAX_STATE}")


def _state(header: Header) -> int:
    """Bound the numbers in a layer's recurrent state, which llama.cpp allocates and clears before it looks at any tensor."""

    def number(key: str) -> int:
        value = header.of_arch(key)
        return value if type(value) is int else 0

    inner, state = number("ssm.inner_size"), number("ssm.state_size")
    convolved = number("ssm.conv_kernel") * (inner + 2 * number("ssm.group_count") * state)
    others = number("embedding_length") * (number("wkv.head_size") + number("shortconv.l_cache"))
    return inner * state + convolved + others


def _heads(header: Header) -> bool:
    """Whether some layer has attention heads, or the model is recurrent and needs none."""
    heads = header.of_arch("attention.head_count")
    if _is_recurrent(header):
        return True
    if isinstance(heads, Array):
        values = header.array(f"{header.architecture}.attention.head_count")
        return not isinstance(values, list) and bool((values > 0).any())
    return heads is None or (type(heads) is int and heads > 0)


def _is_recurrent(header: Header) -> bool:
    """Whether the model keeps a state beside or instead of attention."""
    marks = (".ssm.", ".wkv.", ".shortconv.")
    return any(mark in key for key in header.metadata for mark in marks)


def _value(value: Value | None) -> str:
    return "missing" if value is None else repr(value)[:80]


def _check_vocabulary(header: Header) -> None:
    _check_charsmap(header)
    tokens = header.metadata.get(TOKENS)
    if tokens is None:
        return  # llama.cpp takes models without a vocabulary (tokenizer "none")
    if not isinstance(tokens, Array) or tokens.type != STRING:
        raise _bad(header, f"{TOKENS} is not a list of strings")
    if tokens.count > MAX_VOCAB:
        raise _bad(header, f"{TOKENS} has {tokens.count} entries, more than {MAX_VOCAB}")
    for key in ("tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
        other = header.metadata.get(key)
        if other is not None and not (isinstance(other, Array) and other.count >= tokens.count):
            raise _bad(header, f"{key} is shorter than the {tokens.count} tokens")
    _check_unique(header)


def _check_charsmap(header: Header) -> None:
    """Check the table for any tokenizer, since an override may name another than the file."""
    if isinstance(header.metadata.get(_CHARSMAP), Array):
        table = header.array(_CHARSMAP)
        fault = fault_of(table.tobytes()) if not isinstance(table, list) else "is a list of texts"
        if fault:
            raise _bad(header, f"{_CHARSMAP} {fault}")


def _check_unique(header: Header) -> None:
    words = words_of(header)
    if words and not any(words):
        raise _bad(header, f"all of its {len(words)} tokens are empty strings")
    first: dict[bytes, int] = {}
    for i, seen in enumerate(compared(words)):  # llama.cpp asserts that all differ
        if (j := first.setdefault(seen, i)) != i:
            raise _bad(header, f"tokens {j} and {i} are the same string {show(seen)}")


def _join_parts(header: Header) -> Header:
    """Check the other parts of a split file; only siblings that match the name pattern are opened."""
    count = header.metadata.get("split.count", 0)
    if type(count) is not int or not 0 <= count <= MAX_PARTS:
        raise _bad(header, f"split.count is {_value(count)}, outside 0..{MAX_PARTS}")
    if count <= 1:
        return header
    for key, text in header.metadata.items():
        if isinstance(text, str) and key.startswith(("split.", "general.")) and _UP.search(text):
            raise _bad(header, f"{show(key)} holds a path: {show(text)}")
    parts = parts_of(header.path)
    if len(parts) != count:
        wanted = f"NAME-00001-of-{count:05d}.gguf"
        raise _bad(header, f"it is a part of {count}, so its name must be like {wanted}")
    found = [header, *(_read_part(header, part) for part in parts[1:])]
    for no, part in enumerate(found):
        if (part.metadata.get("split.no"), part.metadata.get("split.count")) != (no, count):
            raise _bad(part, f"it does not say that it is part {no + 1} of {count}")
    tensors = tuple(tensor for part in found for tensor in part.tensors)
    n_names, stated = len({t.name for t in tensors}), header.metadata.get("split.tensors.count")
    if stated not in (None, len(tensors)) or n_names != len(tensors):
        what = f"its parts hold {len(tensors)} tensors ({n_names} names), not {_value(stated)}"
        raise _bad(header, what)
    return replace(header, tensors=tensors, parts=tuple(parts))


def _read_part(header: Header, part: Path) -> Header:
    if not part.is_file():
        raise _bad(header, f"its part {show(part.name)} is missing", "put all parts in one folder")
    return parse_header(part)


def header_of_parts(path: Path) -> Header:
    """Read a header with the tensors of all parts; neither shape nor vocabulary is checked. Raises as `read_header`."""
    return _joined(path, tuple(stamps(path)))


@lru_cache(maxsize=_RECENT)
def _joined(path: Path, at: tuple[Stamp, ...]) -> Header:  # noqa: ARG001 - as above
    return _join_parts(parse_header(path))


# -- facts -------------------------------------------------------------------------------------------------------------

_KIND = "facts 10"

_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
    19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL",
    26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16",
    36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip
"""llama.cpp's numbers of file types (enum llama_ftype)."""


class Facts(msgspec.Struct, frozen=True):
    """Facts from the header."""

    architecture: str
    type: str
    name: str  # the one in the header
    n_vocab: int
    vocabulary: VocabularyHash | None  # None without a tokenizer
    size: int
    positions: int = 0  # rows of the table of learned positions, 0 without one
    kind: str = "model"  # or one of `kinds.PURPOSES`
    heads: int = 0  # next-token layers (MTP) with tensors in the file
    causal: bool = True  # no token attends to later ones
    state: int = 0  # most bytes of the recurrent state of a sequence
    # what the file suggests, by the last part of its key, unchecked
    sampling: dict[str, int | float | str] = {}
    idle: int = 0  # bytes of experts that a token does not use
    n_ctx: int = 0  # tokens of context in training, 0 if the header does not say
    shape: Shape | None = None  # of attention, None if the header does not say
    cells: tuple[int, int] = (0, 0)  # numbers of a token in the KV cache: of keys, and of values

    @property
    def read(self) -> int:
        """Bytes that a token reads: all of them, but of a mixture only the experts that the token uses."""
        return self.size - self.idle


def facts_of(path: Path) -> Facts | None:
    """Return the facts of a file, from the cache if it has not changed; None if it is not a model."""
    try:
        at, *others = stamps(path)
        kind = f"{_KIND} {others}" if others else _KIND
        if (known := recall_as(kind, at, Facts)) is not None:
            return known
        facts = _read(header_of_parts(path))
    except (ModelError, OSError):
        return None
    if facts is not None:
        remember(kind, at, facts)
    return facts


def _read(header: Header) -> Facts | None:
    if not header.architecture:
        return None
    layers = header.of_arch("block_count")
    rows = [t.shape[1] for t in header.tensors if t.name == _POSITIONS and len(t.shape) > 1]
    return Facts(
        architecture=header.architecture,
        type=_type(header),
        name=str(header.metadata.get("general.name", "")),
        n_vocab=header.vocab_size,
        vocabulary=read_vocabulary(header),
        size=size_of(header.path),
        positions=rows[0] if rows else 0,
        kind=_kind(header),
        heads=_heads_inside(header),
        causal=header.of_arch("attention.causal") is not False,
        state=4 * _state(header) * layers if _is_recurrent(header) and type(layers) is int else 0,
        sampling=dict(_sampling(header)),
        idle=_idle(header),
        n_ctx=_trained(header),
        shape=_shape(header),
        cells=_cells(header),
    )


def _sampling(header: Header) -> Iterator[tuple[str, int | float | str]]:
    for key, value in header.metadata.items():
        if not key.startswith(_SAMPLING) or isinstance(value, (Array, bool)):
            continue
        if isinstance(value, str) or abs(value) < _LARGEST:  # what is no number cannot be stored
            yield key.removeprefix(_SAMPLING), value[:200] if isinstance(value, str) else value


_LARGEST = 1e12

EXPERTS = re.compile(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps")  # llama.cpp's own pattern


def _idle(header: Header) -> int:
    held, used = header.of_arch("expert_count"), header.of_arch("expert_used_count")
    if type(held) is not int or type(used) is not int or not 0 < used < held:
        return 0
    experts = sum(tensor.nbytes for tensor in header.tensors if EXPERTS.search(tensor.name))
    return experts - experts * used // held


def _type(header: Header) -> str:
    number = header.metadata.get("general.file_type")
    if type(number) is int and number in _FILE_TYPES:
        return _FILE_TYPES[number]
    sizes: Counter[str] = Counter()
    for tensor in header.tensors:
        sizes[tensor.type] += tensor.nbytes
    return max(sizes, key=lambda kind: sizes[kind], default="")


def _kind(header: Header) -> str:
    names = {tensor.name for tensor in header.tensors}
    kind = header.metadata.get("general.type")
    if kind == "adapter":
        return "lora"
    if kind == "mmproj" or header.architecture == "clip":
        return "mmproj"
    if header.architecture == "dflash" and MARKOV in names:
        return "dspark"
    if header.architecture in _OWN_KIND:
        return header.architecture
    if not names and len(parts_of(header.path)) == 1:
        return "vocabulary"
    alone = not any(name.startswith("blk.0.") for name in names)
    return "mtp" if alone and _heads_inside(header) else "model"


MARKOV = "markov_w1.weight"  # which DSpark drafts have and DFlash drafts lack, as in llama.cpp


def _heads_inside(header: Header) -> int:
    stated = header.of_arch("nextn_predict_layers")
    found = sum(t.name.endswith(".nextn.eh_proj.weight") for t in header.tensors)
    return min(stated, found) if type(stated) is int else 0


# -- attention's shape -------------------------------------------------------------------------------------------------

_WIDEST = 1024  # heads, or numbers of one: a header may claim anything

_PERIODS = {
    "afmoe": 4, "cohere2": 4, "cohere2moe": 4, "exaone-moe": 4, "exaone4": 4, "gemma2": 2, "gemma3": 6, "gemma3n": 5,
    "gpt-oss": 2, "llama4": 4, "mellum": 4, "olmo2": 4, "plamo3": 8, "smallthinker": 4,
}  # fmt: skip
# Of so many layers one sees everything, where the header does not say how many (llama.cpp, src/models). Other architectures
# ignore a window in the header, or have it in no layer.


def shape_of(path: Path) -> Shape | None:
    """Return the shape of a model's attention; None where the header does not say."""
    facts = facts_of(path)
    return None if facts is None else facts.shape


def _shape(header: Header) -> Shape | None:
    """Return the shape of attention, with the widest layer's heads."""

    def most(key: str, otherwise: Any = None) -> int:
        found = header.of_arch(key)
        if isinstance(found, (int, type(None))):
            return int(otherwise if found is None else found)
        return max(map(int, header.array(f"{header.architecture}.{key}")))

    with suppress(PyspecError, TypeError, ValueError, KeyError, ZeroDivisionError):
        query = most("attention.head_count")
        key = most("attention.key_length", most("embedding_length") // query)
        value = most("attention.value_length", key)
        heads = Heads(query, most("attention.head_count_kv", query), key, value)
        if min(heads) > 0 and heads.query % heads.key_value == 0 and max(heads) <= _WIDEST:
            return Shape(heads, _window(header), _trained(header))
    return None


def _trained(header: Header) -> int:
    tokens = header.of_arch("context_length")
    return tokens if type(tokens) is int and tokens > 0 else 0


def _window(header: Header) -> Window:
    """The window of some layers, by their pattern: a flag for each, or of how many one sees everything."""
    size, key = header.of_arch("attention.sliding_window"), "attention.sliding_window_pattern"
    pattern = header.of_arch(key) or _PERIODS.get(header.architecture)
    if isinstance(pattern, Array):
        share = float((header.array(f"{header.architecture}.{key}") != 0).mean())
    else:
        share = 1.0 - 1.0 / int(pattern) if isinstance(pattern, int) and pattern > 0 else 0.0
    return Window(size, share) if isinstance(size, int) and size > 0 and share > 0.0 else Window()


def _cells(header: Header) -> tuple[int, int]:
    rows = {"attn_k.weight": 0, "attn_v.weight": 0}
    for tensor in header.tensors:
        name = tensor.name.split(".", 2)[-1]
        if name in rows:
            rows[name] += tensor.shape[-1]
    return rows["attn_k.weight"], rows["attn_v.weight"]
