"""Several models behind one server."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import tiny
from asking import body, post, raw
from waiting import wait


@pytest.fixture
def fleet(serve, tmp_path):
    """A server of a first model `tiny` and others a and b, of which `most` are loaded at once; and what was loaded."""
    from pyspec.batch import Batch, Settings
    from pyspec.sampling import Sampling
    from pyspec.serve.fleet import OtherModels
    from pyspec.serve.settings import ServerSettings

    def fleet_(most):
        paths = {
            name: tiny.write(tmp_path / f"{name}.gguf", tokens=tiny.ASCII, seed=seed)
            for seed, name in enumerate(("tiny", "a", "b"), 50)
        }
        loaded = []

        def load(name):
            loaded.append(name)
            settings = Settings(Sampling(temperature=0.0, seed=1), max_tokens=24)
            batch = Batch(str(paths[name]), settings=settings, draft="none", n_ctx=1024, parallel=2,
                          interactive=True, n_threads=1, n_threads_batch=1)  # fmt: skip
            return batch, ServerSettings(name)

        others = OtherModels(lambda: ["tiny", "a", "b"], load, most)
        return serve(paths["tiny"], draft="none", parallel=2, others=others), loaded

    return fleet_


def said(server, model, **options):
    """What a model answers, and which one says so."""
    status, told = post(server, body(model=model, **options))
    assert status == 200, told
    return told["choices"][0]["message"]["content"], told["model"]


def test_a_request_chooses_its_model(fleet):
    """Loaded when it is first asked for and kept; without a name the first answers."""
    server, loaded = fleet(3)
    found = {name: said(server, name) for name in ("tiny", "a", "b", "a")}
    assert loaded == ["a", "b"]
    assert {name: model for name, (_, model) in found.items()} == {n: n for n in found}
    assert len({text for text, _ in found.values()}) == 3
    assert said(server, None) == found["tiny"]
    status, told = post(server, body(model="c"))
    assert (status, told["error"]["code"]) == (404, "model_not_found")


def test_the_one_unused_for_longest_makes_room(fleet):
    """The first one too, and all answer as before when they are loaded again."""
    server, loaded = fleet(2)
    before = [said(server, name) for name in ("tiny", "a", "tiny", "b", "tiny", "a")]
    assert loaded == ["a", "b", "a"]
    assert said(server, "b") == before[3]
    assert said(server, "tiny") == before[0]
    assert loaded == ["a", "b", "a", "b", "tiny"]
    status, told = post(server, json.dumps({"content": "hi", "model": "a"}).encode(), "/tokenize")
    assert (status, len(told["tokens"])) == (200, 2)


def test_a_model_that_answers_stays(fleet):
    """Another waits until its stream has ended."""
    server, loaded = fleet(1)
    stream = raw(server, body(stream=True, max_tokens=700, logit_bias={"2": -100}))
    wait(lambda: server.batch.load[0] == 1)
    found = []
    other = threading.Thread(target=lambda: found.append(said(server, "a")))
    other.start()
    data = b""
    while not data.endswith(b"0\r\n\r\n"):
        assert not loaded
        data += stream.recv(1 << 16)
    stream.close()
    other.join()
    assert (b"[DONE]" in data, loaded, len(found)) == (True, ["a"], 1)


def test_many_clients_of_many_models(fleet):
    """Each gets its model's answer, whoever had to make room meanwhile."""
    server, _ = fleet(2)
    alone = {name: said(server, name) for name in ("tiny", "a", "b")}
    names = ["tiny", "a", "b"] * 6
    with ThreadPoolExecutor(6) as clients:
        found = list(clients.map(lambda name: said(server, name), names))
    assert found == [alone[name] for name in names]
