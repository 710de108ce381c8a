"""Embeddings and rankings beside a model that answers: the reference is llama_cpp alone, and numpy."""

from __future__ import annotations

import asyncio
import base64

import llama_cpp
import numpy as np
import openai
import pytest
from helpers import tiny_positions
from helpers.asking import ask
from helpers.make_gguf import U32
from helpers.server_here import opening

from pyspec.serve.embedding import Embedder

TEXTS = ["abc", "a", "the cat", "abc"]
POOLS = {"mean": 1, "cls": 2, "last": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("embedders")
    for name, kind in {**POOLS, "rank": 4}.items():
        made = tiny_positions.bert(64, ranks=kind == 4)
        made.kv["bert.pooling_type"] = (U32, kind)
        (where / f"{name}.gguf").write_bytes(made.build())
    return where


def reference(path, texts):
    """Vectors of length 1, one text a decode."""
    llm = llama_cpp.Llama(
        str(path), embedding=True, n_ctx=64, n_batch=64, n_ubatch=64, n_threads=1, verbose=False
    )
    found = [llm.embed(text, normalize=True, return_count=True) for text in texts]
    llm.close()
    return np.array([vector for vector, _ in found]), sum(count for _, count in found)


def make_embedder(path, name):
    return Embedder(name, path, trust=True, n_threads=1, flash_attn=False)


@pytest.fixture(scope="module")
def embedders(folder):
    made = {name: make_embedder(folder / f"{name}.gguf", name) for name in (*POOLS, "rank")}
    yield made
    for each in made.values():
        each.close()


@pytest.fixture(scope="module")
def server(tiny_ascii, embedders):
    with opening(tiny_ascii) as start:
        yield start(embedders=[embedders["mean"], embedders["rank"]])


@pytest.mark.parametrize("name", POOLS)
def test_vectors_are_llama_cpps(folder, embedders, name):
    """Several texts in one decode, whatever the pooling."""
    found, tokens = asyncio.run(embedders[name].vectors(TEXTS))
    expected, count = reference(folder / f"{name}.gguf", TEXTS)
    assert np.allclose(found, expected, atol=1e-5)
    assert tokens == count


def test_more_than_a_decode_takes_is_several(embedders):
    model = embedders["mean"]
    many, _ = asyncio.run(model.vectors(TEXTS * 20))
    few, _ = asyncio.run(model.vectors(TEXTS))
    assert np.allclose(many, np.tile(few, (20, 1)), atol=1e-5)


def test_openais_fields(server):
    """Numbers or base64, and fewer of them, again of length 1."""
    plain = ask(server, "/v1/embeddings", input=TEXTS, model="mean")
    assert [each["index"] for each in plain["data"]] == [0, 1, 2, 3]
    assert (plain["model"], plain["usage"]["prompt_tokens"]) == ("mean", 32)
    vector = np.array(plain["data"][0]["embedding"])
    coded = ask(server, "/v1/embeddings", input="abc", encoding_format="base64")["data"][0]
    read = np.frombuffer(base64.b64decode(coded["embedding"]), np.float32)
    assert np.allclose(read, vector, atol=1e-5)
    short = ask(server, "/v1/embeddings", input="abc", dimensions=4)["data"][0]["embedding"]
    assert np.allclose(short, vector[:4] / np.linalg.norm(vector[:4]), atol=1e-5)


def test_openais_client_reads_them(server):
    """It asks for base64."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        made = client.embeddings.create(model="mean", input=TEXTS)
        names = [model.id for model in client.models.list()]
    assert len(made.data[3].embedding) == tiny_positions.WIDTH
    assert names == ["tiny", "mean", "rank"]


def test_ollamas_forms(server):
    vectors = ask(server, "/api/embed", model="mean", input=["abc", "a"])["embeddings"]
    older = ask(server, "/api/embeddings", model="mean", prompt="abc")["embedding"]
    assert len(vectors) == 2
    assert np.allclose(vectors[0], older, atol=1e-5)
    long = ask(server, "/api/embed", input="a" * 100)["embeddings"]
    assert len(long[0]) == tiny_positions.WIDTH
    assert "64" in ask(server, "/api/embed", 400, input="a" * 100, truncate=False)["error"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v1/reranking"])
def test_documents_are_ranked(server, folder, path):
    """As numpy ranks them by the head's weights on the first token's state."""
    told = ask(
        server,
        path,
        query="a cat",
        documents=["dog", "the cat sat", {"text": "z"}],
        return_documents=True,
    )
    scores = {each["index"]: each["relevance_score"] for each in told["results"]}
    expected = [
        tiny_positions.rank_of(folder / "rank.gguf", "a cat", text)
        for text in ("dog", "the cat sat", "z")
    ]
    assert np.allclose([scores[i] for i in range(3)], expected, atol=1e-4)
    assert [each["index"] for each in told["results"]] == list(np.argsort(expected)[::-1])
    assert told["results"][0]["document"]["text"] in ("dog", "the cat sat", "z")
    assert len(ask(server, path, query="a", documents=["b", "c"], top_n=1)["results"]) == 1


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v1/embeddings", {"input": []}, "there are 0 texts"),
        ("/v1/embeddings", {"input": {"a": 1}}, "neither text nor token ids"),
        ("/v1/embeddings", {"input": [[10**6]]}, "1000000"),
        ("/v1/embeddings", {"input": "a" * 100}, "64"),
        ("/v1/embeddings", {"input": "a", "dimensions": 99}, "dimensions is 99"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, "encoding_format is 'int8'"),
        ("/v1/rerank", {"query": "a", "documents": [1]}, "a document is no text"),
    ],
)
def test_what_cannot_be_is_refused(server, path, body, says):
    assert says in ask(server, path, 400, **body)["error"]["message"]


def test_a_chat_model_gives_the_mean_of_its_states(tiny_ascii):
    model = make_embedder(tiny_ascii, "chat")
    found, _ = asyncio.run(model.vectors(["abc", "x"]))
    model.close()
    llm = llama_cpp.Llama(
        str(tiny_ascii),
        embedding=True,
        pooling_type=1,
        n_ctx=64,
        n_threads=1,
        flash_attn=False,
        verbose=False,
    )
    expected = [llm.embed(text, normalize=True) for text in ("abc", "x")]
    llm.close()
    assert np.allclose(found, expected, atol=1e-5)


def test_a_server_without_such_a_model_says_how(tiny_ascii, embedders):
    """501 for none; a sentence where there is another kind."""
    with opening(tiny_ascii) as start:
        assert "--embed NAME" in ask(start(), "/v1/embeddings", 501, input="a")["error"]["message"]
        only = start(embedders=[embedders["mean"]])
        assert (
            "no model here ranks texts"
            in ask(only, "/rerank", 400, query="a", documents=["b"])["error"]["message"]
        )
