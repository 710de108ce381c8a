"""Embeddings and rankings: models that are made for them, each with a thread of its own beside the answers."""

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

from pyspec.errors import ContextOverflow, InputError, ModelNotFound, TooManyRequests
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.requests.bodies import AnyBody, decoded
from pyspec.store.header import read_header
from pyspec.text.tokenizer import check_tokens

VectorRows = npt.NDArray[np.float32]

MOST_INPUTS = 2048
"""Most texts of a request, as OpenAI has it."""

MOST_ROWS = 2048
"""Tokens of a decode, and of the longest text, unless -b says otherwise: attention takes memory by their square."""

NO_EMBEDDINGS = "this server makes no embeddings and ranks nothing; start it with --embed NAME, beside the model that answers"


class Embedder:
    """A model that turns texts into vectors, or ranks them, many at a time in one decode.

    name: for clients. queue: requests that may wait. how: options of `SpeculativeLlama`. A model without pooling of its own, such
    as a chat model, gives the mean of its last states. For the loop's thread only, but for what `_work` runs.
    """

    def __init__(self, name: str, path: Path, queue: int = 256, **how: Any) -> None:
        self.name, self._queue, self._waiting = name, queue, 0
        header = read_header(path)
        trained = header.of_arch("context_length")
        rows = how.pop("n_batch", None) or MOST_ROWS
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
        """Numbers of a vector; 1 for a model that ranks."""
        return 1 if self.ranks else int(self._llm.n_embd())

    def close(self) -> None:
        """Free the model, once what it does has ended."""
        self._thread.shutdown(cancel_futures=True)
        self._llm.close()

    async def vectors(
        self, texts: Sequence[str | list[int]], *, cut: bool = False
    ) -> tuple[VectorRows, int]:
        """Return [texts, width] vectors of length 1 (scores of a model that ranks, as they are), and the tokens of all texts.

        cut: whether a text that is too long loses its end. Raises InputError, ContextOverflow or TooManyRequests.
        """
        if not 0 < len(texts) <= MOST_INPUTS:
            raise InputError(f"there are {len(texts)} texts", f"send 1 to {MOST_INPUTS}")
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
        """Return how well each document answers the query, and the tokens of all. Raises InputError and the like."""
        pairs = await self._run(lambda: [self._pair(query, each) for each in documents])
        made, tokens = await self.vectors(pairs)
        return [float(score) for score in made[:, 0]], tokens

    async def _run(self, work: Callable[..., Any], *given: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *given)

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
        """The tokens of a query and a document, with the vocabulary's own tokens around them."""
        vocab = self._llm._model.vocab  # noqa: SLF001 - llama_cpp has no public way
        first, end, between = (
            [int(getattr(llama_cpp, f"llama_vocab_{name}")(vocab))]
            if getattr(llama_cpp, f"llama_vocab_get_add_{name}")(vocab)
            else []
            for name in ("bos", "eos", "sep")
        )
        asked, said = (self._text(text, alone=False) for text in (query, document))
        return [*first, *asked, *end, *between, *said, *end]

    def _parts(self, ids: Sequence[list[int]]) -> Iterator[list[list[int]]]:
        """Texts that one decode takes together."""
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
        shape = (self.width,)
        pointers = (llama_cpp.llama_get_embeddings_seq(ctx.ctx, i) for i in range(len(part)))
        found = np.stack([np.ctypeslib.as_array(each, shape) for each in pointers])
        return (
            found
            if self.ranks
            else found / np.maximum(np.linalg.norm(found, axis=1), 1e-12)[:, None]
        )


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
"""Reads the body of a request that may be made."""


class EmbeddingHandlers:
    """What the paths of embeddings and rankings answer."""

    def __init__(self, embedders: Sequence[Embedder], read: Read) -> None:
        self._embedders, self._read = embedders, read

    def routes(self) -> list[Route]:
        """The paths."""
        posted = dict.fromkeys(("/v1/embeddings", "/embeddings"), self.openai)
        posted |= dict.fromkeys(("/api/embed", "/api/embeddings"), self.ollama)
        posted |= dict.fromkeys(_RANKINGS, self.rank)
        return [Route(path, answer, methods=["POST"]) for path, answer in posted.items()]

    async def _body(self, kind: type[AnyBody], request: Request) -> AnyBody:
        """A request's body. Raises HTTPException where nothing here could answer it."""
        data, _ = await self._read(request)
        if not self._embedders:
            raise HTTPException(501, NO_EMBEDDINGS)
        return decoded(kind, data)

    def _of(self, name: str | None, *, ranks: bool) -> Embedder:
        """The model of this name; a single one answers whatever name is asked for."""
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
        """Vectors of texts."""
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
        return _json({"object": "list", "data": data, "model": model.name, "usage": usage})

    async def ollama(self, request: Request) -> Response:
        """The same for ollama's clients, in both of its forms."""
        body = await self._body(OllamaEmbeddingBody, request)
        model = self._of(body.model, ranks=False)
        older = request.url.path == "/api/embeddings"
        texts = _texts(body.prompt if older else body.input)
        made, tokens = await model.vectors(texts, cut=body.truncate)
        found = _shortened(made, body.dimensions).tolist()
        if older:
            return _json({"embedding": found[0]})
        named = {"model": body.model or model.name, "embeddings": found}
        return _json(
            {**named, "total_duration": 0, "load_duration": 0, "prompt_eval_count": tokens}
        )

    async def rank(self, request: Request) -> Response:
        """Documents by how well they answer a query, the best first."""
        body = await self._body(RankingBody, request)
        model = self._of(body.model, ranks=True)
        given = [each.get("text") if isinstance(each, dict) else each for each in body.documents]
        texts = [text for text in given if isinstance(text, str)]
        if len(texts) < len(given):
            raise InputError("a document is no text", "send texts, or objects with text")
        scores, tokens = await model.scores(body.query, texts)
        order = sorted(range(len(texts)), key=lambda i: -scores[i])[: body.top_n]
        results = [
            {"index": i, "relevance_score": scores[i], **({"document": {"text": texts[i]}} if body.return_documents else {})}
            for i in order
        ]  # fmt: skip
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return _json({"object": "list", "model": model.name, "results": results, "usage": usage})


_RANKINGS = ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking")


def _texts(given: Any) -> list[Any]:
    """The texts of a request, or their tokens. Raises InputError."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given and all(type(each) is int for each in given):
        return [given]
    known = isinstance(given, list) and all(
        isinstance(each, str) or (isinstance(each, list) and all(type(n) is int for n in each))
        for each in given
    )
    if not known:
        raise InputError("input is neither text nor token ids", "send a text, or a list of them")
    return list(given)


def _shortened(made: VectorRows, width: int | None) -> VectorRows:
    """The first `width` numbers of each vector, again of length 1. Raises InputError."""
    if width is None:
        return made
    if not 1 <= width <= made.shape[1]:
        raise InputError(f"dimensions is {width}", f"use 1 to {made.shape[1]}")
    cut = made[:, :width]
    return np.asarray(cut / np.maximum(np.linalg.norm(cut, axis=1), 1e-12)[:, None], np.float32)


def _base64(vector: VectorRows) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
