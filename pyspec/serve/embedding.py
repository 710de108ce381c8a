"""Embeddings and rankings by models made for them. Each has its own thread."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import llama_cpp
import msgspec
import numpy as np
import numpy.typing as npt
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pyspec._lib import release_workers
from pyspec.errors import ContextOverflow, InputError, ModelNotFound, TooManyRequests
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.requests.bodies import AnyBody, decoded
from pyspec.serve.apis.interface import json_response
from pyspec.store.header import read_header
from pyspec.vocab.tokenizer import check_tokens

VectorRows = npt.NDArray[np.float32]

MAX_INPUTS = 2048
"""Largest number of texts per request, as OpenAI has it."""

MAX_ROWS = 2048
"""Default for the tokens of a decode, and so of the longest text: attention takes memory by their square."""

NO_EMBEDDINGS = "this server makes no embeddings and ranks nothing; start it with --embed NAME, beside the model that answers"


class Embedder:
    """A model that embeds or ranks texts, several in one decode.

    name: for clients. queue: requests that may wait. how: options of `SpeculativeLlama`. A model without its own pooling, such as
    a chat model, gives the mean of its last hidden states. Only the loop's thread may call its public methods.
    """

    def __init__(self, name: str, path: Path, queue: int = 256, **how: Any) -> None:
        self.name, self._queue, self._waiting = name, queue, 0
        header = read_header(path)
        trained = header.of_arch("context_length")
        rows = how.pop("n_batch", None) or MAX_ROWS
        rows = min(rows, trained) if type(trained) is int and trained > 0 else rows
        if header.of_arch("pooling_type") in (None, llama_cpp.LLAMA_POOLING_TYPE_NONE):
            how["pooling_type"] = llama_cpp.LLAMA_POOLING_TYPE_MEAN
        how |= {"draft": "none", "embedding": True, "n_ctx": rows, "n_batch": rows}
        self._llm = SpeculativeLlama(path, **how)
        self.ranks = self._llm.pooling_type() == llama_cpp.LLAMA_POOLING_TYPE_RANK
        self.most = min(rows, self._llm.n_ctx())
        self._at_once = int(self._llm.context_params.n_seq_max)
        self._thread = ThreadPoolExecutor(1, "pyspec-embedder")

    @property
    def width(self) -> int:
        """Dimensions of a vector; 1 for a model that ranks."""
        return 1 if self.ranks else int(self._llm.n_embd())

    def close(self) -> None:
        """Free the model after the decode that runs."""
        self._thread.shutdown(cancel_futures=True)
        self._llm.close()

    async def vectors(
        self, texts: Sequence[str | list[int]], *, cut: bool = False
    ) -> tuple[VectorRows, int]:
        """Return [texts, width] unit vectors, or raw scores of a model that ranks, and the number of tokens of all texts.

        cut: whether to truncate texts that are too long. Raises InputError, ContextOverflow or TooManyRequests.
        """
        if not 0 < len(texts) <= MAX_INPUTS:
            raise InputError(f"there are {len(texts)} texts", f"send 1 to {MAX_INPUTS}")
        if self._waiting >= self._queue:
            raise TooManyRequests("too many requests are waiting", "try again in a moment")
        self._waiting += 1
        try:
            ids = await self._run(self._tokens, texts, cut)
            made = [await self._run(self._decoded, part) for part in self._parts(ids)]
        finally:
            self._waiting -= 1
        return np.concatenate(made), sum(map(len, ids))

    async def scores(self, query: str, documents: Sequence[str]) -> tuple[list[float], int]:
        """Return each document's score for the query, and the number of tokens of all pairs. Raises as `vectors`."""
        pairs = await self._run(lambda: [self._pair(query, each) for each in documents])
        made, tokens = await self.vectors(pairs)
        return [float(score) for score in made[:, 0]], tokens

    async def _run(self, work: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _tokens(self, texts: Sequence[str | list[int]], cut: bool) -> list[list[int]]:
        made = []
        for text in texts:
            ids = self._text(text) if isinstance(text, str) else text
            check_tokens(ids, self._llm.n_vocab())
            if not ids:
                raise InputError("a text has no tokens", "leave empty texts out")
            if len(ids) > self.most and not cut:
                raise ContextOverflow(self.most, len(ids))
            made.append(ids[: self.most])
        return made

    def _text(self, text: str, *, alone: bool = True) -> list[int]:
        return list(self._llm.tokenize(text.encode("utf-8", "replace"), add_bos=alone))

    def _pair(self, query: str, document: str) -> list[int]:
        """Tokens of a query and a document, with the special tokens that the vocabulary demands around them."""
        vocab = self._llm._model.vocab  # noqa: SLF001 - llama_cpp has no public way
        first, end, between = (
            [int(getattr(llama_cpp, f"llama_vocab_{name}")(vocab))]
            if getattr(llama_cpp, f"llama_vocab_get_add_{name}")(vocab)
            else []
            for name in ("bos", "eos", "sep")
        )
        left, right = (self._text(text, alone=False) for text in (query, document))
        return [*first, *left, *end, *between, *right, *end]

    def _parts(self, ids: Sequence[list[int]]) -> Iterator[list[list[int]]]:
        """Groups of texts that fit one decode."""
        part, rows = list[list[int]](), 0
        for each in ids:
            if part and (rows + len(each) > self.most or len(part) == self._at_once):
                yield part
                part, rows = [], 0
            part.append(each)
            rows += len(each)
        yield part

    def _decoded(self, part: Sequence[list[int]]) -> VectorRows:
        llm = self._llm
        batch, ctx = llm._batch, llm._ctx  # noqa: SLF001 - as above
        batch.reset()
        for i, ids in enumerate(part):
            batch.add_sequence(ids, i, True)
        ctx.kv_cache_clear()
        ctx.decode(batch)
        release_workers()
        shape = (self.width,)
        pointers = (llama_cpp.llama_get_embeddings_seq(ctx.ctx, i) for i in range(len(part)))
        found = np.stack([np.ctypeslib.as_array(each, shape) for each in pointers])
        return found if self.ranks else _unit(found)


# -- requests ----------------------------------------------------------------------------------------------------------


class EmbeddingBody(msgspec.Struct):
    """OpenAI's request. input: a text, token ids, or a list of either."""

    input: Any
    model: str | None = None
    encoding_format: str = "float"
    dimensions: int | None = None


class OllamaEmbeddingBody(msgspec.Struct):
    """Ollama's request; prompt is the older name for one text."""

    model: str | None = None
    input: Any = None
    prompt: str | None = None
    truncate: bool = True
    dimensions: int | None = None


class RankingBody(msgspec.Struct):
    """A request for a ranking, as Jina, Cohere and llama-server have it."""

    query: str
    documents: list[Any]
    model: str | None = None
    top_n: int | None = None
    return_documents: bool = False


Read = Callable[[Request], Awaitable[tuple[bytes, str]]]
"""Checks a request, and returns its body and the holder of its key."""


class EmbeddingHandlers:
    """Handlers of the paths of embeddings and rankings."""

    def __init__(self, embedders: Sequence[Embedder], read: Read) -> None:
        self._embedders, self._read = embedders, read

    def routes(self) -> list[Route]:
        posted = dict.fromkeys(("/v1/embeddings", "/embeddings"), self.openai)
        posted |= dict.fromkeys(("/api/embed", "/api/embeddings"), self.ollama)
        posted |= dict.fromkeys(_RANKINGS, self.rank)
        return [Route(path, answer, methods=["POST"]) for path, answer in posted.items()]

    async def _body(self, kind: type[AnyBody], request: Request) -> AnyBody:
        """A request's body. Raises HTTPException on a server without such models."""
        data, _ = await self._read(request)
        if not self._embedders:
            raise HTTPException(501, NO_EMBEDDINGS)
        return decoded(kind, data)

    def _of(self, name: str | None, *, ranks: bool) -> Embedder:
        """The model of this name; a single one of the kind answers requests for any name."""
        able = [each for each in self._embedders if each.ranks == ranks]
        named = [each for each in able if each.name == name] or (able if len(able) == 1 else [])
        if named:
            return named[0]
        if not able:
            what = "ranks texts" if ranks else "makes embeddings"
            raise InputError(
                f"no model here {what}", "start the server with --embed and one that does"
            )
        names = ", ".join(each.name for each in able)
        raise ModelNotFound(f"there is no model {str(name)[:80]!r} for that here", f"use {names}")

    async def openai(self, request: Request) -> Response:
        """Answer with vectors in OpenAI's format."""
        body = await self._body(EmbeddingBody, request)
        if body.encoding_format not in ("float", "base64"):
            raise InputError(
                f"encoding_format is {body.encoding_format[:40]!r}", "use float or base64"
            )
        model = self._of(body.model, ranks=False)
        made, tokens = await model.vectors(_texts(body.input))
        write = _base64 if body.encoding_format == "base64" else np.ndarray.tolist
        data = [
            {"object": "embedding", "index": i, "embedding": write(each)}
            for i, each in enumerate(_shortened(made, body.dimensions))
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return json_response({"object": "list", "data": data, "model": model.name, "usage": usage})

    async def ollama(self, request: Request) -> Response:
        """Answer with vectors in either of ollama's formats."""
        body = await self._body(OllamaEmbeddingBody, request)
        model = self._of(body.model, ranks=False)
        older = request.url.path == "/api/embeddings"
        texts = _texts(body.prompt if older else body.input)
        made, tokens = await model.vectors(texts, cut=body.truncate)
        found = _shortened(made, body.dimensions).tolist()
        if older:
            return json_response({"embedding": found[0]})
        named = {"model": body.model or model.name, "embeddings": found}
        return json_response(
            {**named, "total_duration": 0, "load_duration": 0, "prompt_eval_count": tokens}
        )

    async def rank(self, request: Request) -> Response:
        """Answer with documents in the order of their scores, the best first."""
        body = await self._body(RankingBody, request)
        model = self._of(body.model, ranks=True)
        documents = [
            each.get("text") if isinstance(each, dict) else each for each in body.documents
        ]
        texts = [text for text in documents if isinstance(text, str)]
        if len(texts) < len(documents):
            raise InputError("a document is no text", "send texts, or objects with text")
        scores, tokens = await model.scores(body.query, texts)
        order = sorted(range(len(texts)), key=lambda i: -scores[i])[: body.top_n]
        results = [
            {"index": i, "relevance_score": scores[i], **({"document": {"text": texts[i]}} if body.return_documents else {})}
            for i in order
        ]  # fmt: skip
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return json_response(
            {"object": "list", "model": model.name, "results": results, "usage": usage}
        )


_RANKINGS = ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking")


def _texts(value: Any) -> list[Any]:
    """The texts of an `input` field, or their tokens. Raises InputError."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and all(type(each) is int for each in value):
        return [value]
    known = isinstance(value, list) and all(
        isinstance(each, str) or (isinstance(each, list) and all(type(n) is int for n in each))
        for each in value
    )
    if not known:
        raise InputError("input is neither text nor token ids", "send a text, or a list of them")
    return list(value)


def _shortened(made: VectorRows, width: int | None) -> VectorRows:
    """The first `width` dimensions of each vector, normalised again. Raises InputError."""
    if width is None:
        return made
    if not 1 <= width <= made.shape[1]:
        raise InputError(f"dimensions is {width}", f"use 1 to {made.shape[1]}")
    return _unit(made[:, :width])


def _unit(rows: VectorRows) -> VectorRows:
    """Each row, [rows, width], divided by its length."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1), 1e-12)[:, None], np.float32)


def _base64(vector: VectorRows) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
