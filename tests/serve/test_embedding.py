"""Embeddings beside a model that answers: the reference is llama_cpp alone."""

import asyncio
import base64

import llama_cpp
import numpy as np
import openai
import pytest
from helpers import tiny_positions
from helpers.asking import ask, get
from helpers.make_gguf import U32
from helpers.server_here import opening

from pyspec.errors import InputError, OptionError, TooManyRequests
from pyspec.serve.fleet import Embedder, EmbeddingBody

TEXTS = ["abc", "a", "the cat", "abc"]
POOLS = {"mean": 1, "cls": 2, "last": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("embedders")
    for name, kind in {**POOLS, "rank": 4}.items():
        made = tiny_positions.bert(64)
        made.kv["bert.pooling_type"] = (U32, kind)
        (where / f"{name}.gguf").write_bytes(made.build())
    return where


def reference(path, texts, **options):
    """Vectors of length 1, one text a decode."""
    options |= {"n_ctx": 64, "n_batch": 64, "n_ubatch": 64, "n_threads": 1, "verbose": False}
    llm = llama_cpp.Llama(str(path), embedding=True, **options)
    found = [llm.embed(text, normalize=True, return_count=True) for text in texts]
    llm.close()
    return np.array([vector for vector, _ in found]), sum(count for _, count in found)


def make_embedder(path, name):
    return Embedder(name, path, trust=True, n_threads=1, flash_attn=False)


@pytest.fixture(scope="module")
def embedders(folder):
    made = {name: make_embedder(folder / f"{name}.gguf", name) for name in POOLS}
    yield made
    for each in made.values():
        each.close()


@pytest.fixture(scope="module")
def server(tiny_ascii, embedders):
    with opening(tiny_ascii) as start:
        yield start(embedders=[embedders["mean"]])


def vectors(model, texts):
    made = asyncio.run(model.answer(EmbeddingBody(texts)))
    return np.array([each["embedding"] for each in made["data"]]), made["usage"]["total_tokens"]


@pytest.mark.parametrize("name", POOLS)
def test_vectors_are_llama_cpps(folder, embedders, name):
    found, tokens = vectors(embedders[name], TEXTS)
    expected, count = reference(folder / f"{name}.gguf", TEXTS)
    assert np.allclose(found, expected, atol=1e-5)
    assert tokens == count


def test_openais_fields_and_client(server):
    plain = ask(server, "/v1/embeddings", input=TEXTS, model="mean")
    assert [each["index"] for each in plain["data"]] == [0, 1, 2, 3]
    assert (plain["model"], plain["usage"]["prompt_tokens"]) == ("mean", 32)
    vector = np.array(plain["data"][0]["embedding"])
    coded = ask(server, "/v1/embeddings", input="abc", encoding_format="base64")["data"][0]
    read = np.frombuffer(base64.b64decode(coded["embedding"]), np.float32)
    assert np.allclose(read, vector, atol=1e-5)
    for base in ("/v1", ""):
        with openai.OpenAI(base_url=server.url + base, api_key="none") as client:
            made = client.embeddings.create(model="mean", input="abc")
            assert [model.id for model in client.models.list()] == ["tiny", "mean"]
            assert client.models.retrieve("mean").id == "mean"
        assert np.allclose(made.data[0].embedding, vector, atol=1e-5)
    short = ask(server, "/v1/embeddings", input="abc", dimensions=4)["data"][0]["embedding"]
    assert np.allclose(short, vector[:4] / np.linalg.norm(vector[:4]), atol=1e-5)


def test_ollamas_forms(server):
    vectors = ask(server, "/api/embed", model="mean", input=["abc", "a"])["embeddings"]
    plain = ask(server, "/v1/embeddings", model="mean", input="abc")["data"][0]["embedding"]
    assert len(vectors) == 2
    assert np.allclose(vectors[0], plain, atol=1e-5)
    long = ask(server, "/api/embed", input="a" * 100)["embeddings"]
    assert len(long[0]) == tiny_positions.WIDTH
    assert "64" in ask(server, "/api/embed", 400, input="a" * 100, truncate=False)["error"]


@pytest.mark.parametrize(("body", "says"), [
    ({"input": []}, "input has 0 texts"),
    ({"input": {"a": 1}}, "input"),
    ({"input": [[10**6]]}, "input"),
    ({"input": "a" * 100}, "takes 64"),
    ({"input": "a", "dimensions": 99}, "dimensions is 99"),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
])  # fmt: skip
def test_what_cannot_be_is_refused(server, body, says):
    assert says in ask(server, "/v1/embeddings", 400, **body)["error"]["message"]


def test_more_than_may_wait_are_refused(folder):
    model = Embedder("mean", folder / "mean.gguf", queue=1, trust=True, n_threads=1)

    async def ask_beside():
        first = asyncio.ensure_future(model.answer(EmbeddingBody("a")))
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequests):
            await model.answer(EmbeddingBody("a"))
        await first
        await model.answer(EmbeddingBody("a"))

    asyncio.run(ask_beside())
    model.close()


@pytest.mark.parametrize("rows", [300, 400])
@pytest.mark.parametrize("positions", [300, 4096])
def test_any_number_of_rows(tmp_path, positions, rows):
    """llama.cpp aborts on some; a text that is longer than rows or positions is refused."""
    (tmp_path / "any.gguf").write_bytes(tiny_positions.bert(positions).build())
    model = Embedder("any", tmp_path / "any.gguf", trust=True, n_threads=1, n_batch=rows)
    assert len(vectors(model, ["a" * 250, "b" * 250, "c"])[0]) == 3
    with pytest.raises(InputError, match=r"takes \d+ here"):
        vectors(model, ["a" * 600])
    model.close()


def test_a_model_that_answers_and_embeds_is_listed_once(tiny_ascii):
    model = make_embedder(tiny_ascii, "tiny")
    with opening(tiny_ascii) as start:
        _, told = get(start(embedders=[model]), "/v1/models")
    model.close()
    assert [each["id"] for each in told["data"]] == ["tiny"]


def test_a_model_that_ranks_is_refused(folder):
    with pytest.raises(OptionError, match="ranks"):
        make_embedder(folder / "rank.gguf", "rank")


def test_a_chat_model_gives_the_mean_of_its_states(tiny_ascii):
    model = make_embedder(tiny_ascii, "chat")
    found, _ = vectors(model, ["abc", "x"])
    model.close()
    expected, _ = reference(tiny_ascii, ["abc", "x"], pooling_type=1, flash_attn=False)
    assert np.allclose(found, expected, atol=1e-5)
