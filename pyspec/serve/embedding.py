"""Embeddings by models made for them, beside the model that answers."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import llama_cpp
import msgspec
import numpy as np

from pyspec.errors import InputError, OptionError, TooManyRequests
from pyspec.gguf.header import read_header
from pyspec.llama.speculative import SpeculativeLlama

MAX_INPUTS = 2048  # largest number of texts per request, as OpenAI has it
MAX_ROWS = 2048  # default for the longest text: attention takes memory by its square


class EmbeddingBody(msgspec.Struct):
    """A request's body in OpenAI's or ollama's format."""

    input: str | list[str]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    truncate: bool | None = None


class Embedder:
    """A model that embeds texts, in a thread of its own.

    name: for clients. queue: requests that may wait. how: options of `SpeculativeLlama`. A model without its own pooling, such as
    a chat model, gives the mean of its last hidden states. Raises OptionError for a model that ranks texts.
    """

    def __init__(self, name: str, path: Path, queue: int = 256, **how: Any) -> None:
        self.name, self._queue, self._waiting = name, queue, 0
        rows = how.pop("n_batch", None) or MAX_ROWS
        header = read_header(path)
        trained, pooling = header.of_arch("context_length"), header.of_arch("pooling_type")
        if pooling == llama_cpp.LLAMA_POOLING_TYPE_RANK:
            raise OptionError(f"{name} ranks texts", "give --embed a model that makes embeddings")
        if pooling in (None, llama_cpp.LLAMA_POOLING_TYPE_NONE):
            how["pooling_type"] = llama_cpp.LLAMA_POOLING_TYPE_MEAN
        most = trained if type(trained) is int and trained > 0 else rows + 1
        self._longer = "shorten it, or raise -b" if rows < most else "shorten it"
        rows = min(rows, most)
        how |= {"draft": "none", "embedding": True, "n_ctx": rows, "n_batch": rows}
        self._llm = SpeculativeLlama(path, **how)
        self._thread = ThreadPoolExecutor(1, "pyspec-embedder")

    def close(self) -> None:
        """Free the model after the texts that it reads now."""
        self._thread.shutdown(cancel_futures=True)
        self._llm.close()

    async def answer(self, body: EmbeddingBody) -> dict[str, Any]:
        """OpenAI's response, its vectors of length 1. Raises InputError or TooManyRequests."""
        texts = [body.input] if isinstance(body.input, str) else body.input
        if not 0 < len(texts) <= MAX_INPUTS:
            raise InputError(f"input has {len(texts)} texts", f"send 1 to {MAX_INPUTS}")
        if body.encoding_format not in (None, "float", "base64"):
            hint = "use float or base64"
            raise InputError(f"encoding_format is {body.encoding_format[:40]!r}", hint)
        if body.dimensions is not None and not 1 <= body.dimensions <= self._llm.n_embd():
            raise InputError(f"dimensions is {body.dimensions}", f"use 1 to {self._llm.n_embd()}")
        if self._waiting >= self._queue:
            raise TooManyRequests("too many requests are waiting", "try again in a moment")
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._made, body, texts)
        finally:
            self._waiting -= 1

    def _made(self, body: EmbeddingBody, texts: Sequence[str]) -> dict[str, Any]:
        texts = [text.encode("utf-8", "replace").decode() for text in texts]
        most = self._llm.n_batch
        longest = max(len(self._llm.tokenize(text.encode())) for text in texts)
        if longest > most and not body.truncate:
            what = f"a text of input has {longest} tokens, and {self.name} takes {most}"
            raise InputError(what, self._longer)
        made: Any = self._llm.create_embedding(texts, model=self.name)
        for each in made["data"]:
            vector = np.array(each["embedding"][: body.dimensions], np.float32)
            vector /= max(float(np.linalg.norm(vector)), 1e-12)
            coded = body.encoding_format == "base64"
            each["embedding"] = (
                base64.b64encode(vector.astype("<f4").tobytes()).decode()
                if coded
                else vector.tolist()
            )
        return dict(made)
