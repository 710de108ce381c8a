"""Pictures in prompts: a projector (mmproj) turns each into rows that the target reads in place of tokens.

llama.cpp's mtmd library computes the rows. A prompt stays a list of ids: at a picture's positions it has ids that stand for them,
so that counts, drafts and caches need no other form of a text. What reads the prompt decodes the rows first (`Projector.read`);
nothing may begin to read inside a picture, since ids cannot give its rows back.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import llama_cpp

from pyspec.errors import EngineError, InputError, ModelInvalid, UnsupportedModel
from pyspec.store.attention_times import flash_type
from pyspec.store.check import check_projector
from pyspec.store.files import show
from pyspec.store.header import facts_of
from pyspec.store.llama_log import DROP
from pyspec.store.others import file_name_of
from pyspec.store.picture import decoded

_NUMBERS = count(1)


def stand_ins(n: int, n_vocab: int) -> list[int]:
    """Return n ids that stand for rows; no other rows get the same ids, and no text is mistaken for them."""
    ids, number = [0] * n, next(_NUMBERS)
    for at in range(n - 1, -1, -1):
        number, ids[at] = divmod(number, n_vocab)
    return ids


class Picture:
    """A picture, ready to be read.

    ids: what stands for it in a prompt: one for each position, tokens around the rows included. cells: what it takes in the KV
    cache, which is more than its positions where these have two dimensions.
    """

    def __init__(self, mtmd: Any, chunks: Any, n_vocab: int) -> None:
        self._mtmd, self._chunks = mtmd, chunks
        self._freed = weakref.finalize(self, mtmd.mtmd_input_chunks_free, chunks)
        n = sum(mtmd.mtmd_input_chunk_get_n_pos(chunk) for chunk in self)
        self.ids = stand_ins(n, n_vocab)
        self.cells = sum(mtmd.mtmd_input_chunk_get_n_tokens(chunk) for chunk in self)

    def __iter__(self) -> Iterator[Any]:
        """Yield mtmd's chunks: rows, and tokens around them."""
        for i in range(self._mtmd.mtmd_input_chunks_size(self._chunks)):
            yield self._mtmd.mtmd_input_chunks_get(self._chunks, i)


class Place(NamedTuple):
    """Where a picture is in a prompt."""

    at: int
    picture: Picture

    @property
    def end(self) -> int:
        return self.at + len(self.picture.ids)


def places_of(prompt: Sequence[int], pictures: Sequence[Picture]) -> list[Place]:
    """Find pictures in a prompt, in order; each may be there several times."""
    ids = list(prompt)
    found = [
        Place(at, picture)
        for picture in {id(each): each for each in pictures}.values()
        for at in range(len(ids) - len(picture.ids) + 1)
        if ids[at] == picture.ids[0] and ids[at : at + len(picture.ids)] == picture.ids
    ]
    return sorted(found, key=lambda place: place.at)


class PromptPictures(NamedTuple):
    """The pictures of one prompt, and what reads them."""

    projector: Projector
    pictures: Sequence[Picture]

    @property
    def beyond(self) -> int:
        """KV cells that they take beyond one for each id."""
        return sum(max(0, each.cells - len(each.ids)) for each in self.pictures)

    def read(self, prompt: Sequence[int], seq: int) -> int:
        """Decode a prompt in an empty sequence to the end of its last picture; returns that position."""
        return self.projector.read(prompt, places_of(prompt, self.pictures), seq=seq)


class Projector:
    """A projector beside a target, a `llama_cpp.Llama`. Close it before the target.

    Raises ModelNotFound, ModelInvalid or ModelRejected for a file that is none, or that belongs to another model. trust: skip the
    trial in a child process.
    """

    def __init__(self, path: Path, target: Any, *, trust: bool = False) -> None:
        facts = facts_of(path)
        if facts is None or facts.kind != "mmproj":
            what = f"{show(path.name)} is not a projector of pictures"
            raise ModelInvalid(what, "give --mmproj the mmproj file that came with the model")
        if not trust:
            check_projector(path, Path(target.model_path))
        from llama_cpp import mtmd_cpp  # noqa: PLC0415 - a library that only pictures need

        self._mtmd, self._target = mtmd_cpp, target
        self._decoding = Lock()
        for silence in (mtmd_cpp.mtmd_log_set, mtmd_cpp.mtmd_helper_log_set):
            silence(DROP, ctypes.c_void_p())
        self._ctx: Any = mtmd_cpp.mtmd_init_from_file(
            os.fsencode(path), target.model, self._params()
        )
        if not self._ctx or not mtmd_cpp.mtmd_support_vision(self._ctx):
            self.close()
            raise ModelInvalid(
                f"{show(path.name)} does not fit {show(file_name_of(Path(target.model_path)))}, or is not for pictures",
                "give --mmproj the mmproj file that came with the model",
            )

    def _params(self) -> Any:
        params = self._mtmd.mtmd_context_params_default()
        params.use_gpu = self._target.model_params.n_gpu_layers != 0
        params.print_timings = params.warmup = False
        params.n_threads = self._target.n_threads
        # as llama-cpp-python's handlers choose
        is_on = self._target.context_params.flash_attn_type == flash_type(flash=True)
        params.flash_attn_type = flash_type(is_on)
        return params

    def close(self) -> None:
        """Free the projector. Pictures of it cannot be read any more."""
        ctx, self._ctx = self._ctx, None
        if ctx:
            self._mtmd.mtmd_free(ctx)

    def picture(self, data: bytes) -> Picture:
        """Prepare a PNG, JPEG, GIF or BMP; safe from any thread. Raises InputError if it cannot be read, or is too large."""
        with self._decoding:  # one at a time, since a picture may take a hundred megabytes
            width, height, pixels = decoded(data)
            buffer = (ctypes.c_uint8 * len(pixels)).from_buffer(pixels)
            bitmap = self._mtmd.mtmd_bitmap_init(width, height, buffer)
            try:
                return self._tokenized(bitmap)
            finally:
                self._mtmd.mtmd_bitmap_free(bitmap)

    def _tokenized(self, bitmap: Any) -> Picture:
        mtmd = self._mtmd
        marker = mtmd.mtmd_default_marker()
        text = mtmd.mtmd_input_text(marker, len(marker), False, True)
        chunks = mtmd.mtmd_input_chunks_init()
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        if mtmd.mtmd_tokenize(self._ctx, chunks, ctypes.byref(text), bitmaps, 1) != 0:
            mtmd.mtmd_input_chunks_free(chunks)
            raise InputError("the projector cannot take this picture", "try another size")
        return Picture(mtmd, chunks, self._target.n_vocab())

    def read(
        self, prompt: Sequence[int], places: Sequence[Place], *, seq: int = 0, held: int = 0
    ) -> int:
        """Decode a prompt from position `held` to the end of its last picture; returns that position.

        held: positions that the target's KV keeps, unless its memory cannot go back there; not the middle of a picture. Raises
        EngineError if llama.cpp fails.
        """
        memory = llama_cpp.llama_get_memory(self._target.ctx)
        if not (held and llama_cpp.llama_memory_seq_rm(memory, seq, held, -1)):
            held = 0
            llama_cpp.llama_memory_seq_rm(memory, seq, -1, -1)
        at = held
        for place in places:
            if place.end > held:
                self._text(prompt[at : place.at], at, seq)
                at = self._rows(place, seq)
        return at

    def _text(self, tokens: Sequence[int], at: int, seq: int) -> None:
        most = llama_cpp.llama_n_batch(self._target.ctx)
        with _batch(min(most, max(1, len(tokens)))) as batch:
            for start in range(0, len(tokens), most):
                part = tokens[start : start + most]
                batch.n_tokens = len(part)
                for i, token in enumerate(part):
                    batch.token[i], batch.pos[i], batch.logits[i] = token, at + start + i, 0
                    batch.n_seq_id[i], batch.seq_id[i][0] = 1, seq
                self._checked(llama_cpp.llama_decode, self._target.ctx, batch)

    def _rows(self, place: Place, seq: int) -> int:
        end = llama_cpp.llama_pos(place.at)
        evaluate = self._mtmd.mtmd_helper_eval_chunk_single
        most = llama_cpp.llama_n_batch(self._target.ctx)
        for chunk in place.picture:
            args = self._ctx, self._target.ctx, chunk, end, seq, most, False, ctypes.byref(end)
            self._checked(evaluate, *args)
        return int(end.value)

    def _checked(self, function: Callable[..., int], *args: Any) -> None:
        if (code := function(*args)) != 0:
            raise EngineError(
                f"llama.cpp cannot read the picture or the text before it (code {code})",
                "send fewer or smaller pictures, or use a larger context (-c)",
            )


def cannot_go_back() -> UnsupportedModel:
    """Return the error for a memory that loses a picture when it goes back by a token."""
    return UnsupportedModel(
        "this model's memory cannot go back by a token without losing the image before it",
        "end the prompt with text, or use a model that is neither recurrent nor hybrid",
    )


@contextmanager
def _batch(n: int) -> Iterator[Any]:
    batch = llama_cpp.llama_batch_init(n, 0, 1)
    try:
        yield batch
    finally:
        llama_cpp.llama_batch_free(batch)
