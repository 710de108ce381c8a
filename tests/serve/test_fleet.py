"""Several models behind one server."""

import contextlib
import json
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers import tiny
from helpers.asking import body, get, post, raw, rest, text_of
from helpers.waiting import wait


@pytest.fixture
def fleet(serve, tmp_path):
    """A server of a first model `tiny` and others a and b, of which `most` are loaded at once; and what was loaded.

    memory: how many of them the memory holds. needs: what is known of a model's bytes before it is loaded.
    """
    from pyspec.batch import Batch, Settings
    from pyspec.engine.contexts import expected_bytes
    from pyspec.engine.models import SideOptions
    from pyspec.sampling.options import Sampling
    from pyspec.serve import ServerSettings
    from pyspec.serve.fleet import OtherModels

    def fleet_(most, memory=math.inf, needs=None):
        paths = {
            name: tiny.write(tmp_path / f"{name}.gguf", tokens=tiny.ASCII, seed=seed)
            for seed, name in enumerate(("tiny", "a", "b"), 50)
        }
        loaded = []

        def load(name):
            loaded.append(name)
            settings = Settings(Sampling(temperature=0.0, seed=1), max_tokens=24)
            batch = Batch(str(paths[name]), settings=settings, draft="none", n_ctx=1024, parallel=2,
                          interactive=True, n_threads=1, n_threads_batch=1, **tiny.F32)  # fmt: skip
            batch.prepare()
            return batch, ServerSettings(name)

        def expected(name):
            return expected_bytes(paths[name], (), 2 * 1024, SideOptions(type_k=0, type_v=0))

        memory *= expected("tiny")
        others = OtherModels(lambda: ["tiny", "a", "b"], load, most, needs or expected, memory)
        server = serve(paths["tiny"], draft="none", parallel=2, others=others, send_buffer=1)
        server.batch.prepare()
        return server, loaded

    return fleet_


def said(server, model, **options):
    status, told = post(server, body(model=model, **options))
    assert status == 200, told
    return text_of(told), told["model"]


def test_a_request_chooses_its_model(fleet):
    server, loaded = fleet(3)
    found = {name: said(server, name) for name in ("tiny", "a", "b", "a")}
    assert loaded == ["a", "b"]
    assert {name: model for name, (_, model) in found.items()} == {n: n for n in found}
    assert len({text for text, _ in found.values()}) == 3
    assert said(server, None) == found["tiny"]
    status, told = post(server, body(model="c"))
    assert (status, told["error"]["code"]) == (404, "model_not_found")


def test_who_waits_for_a_model_when_the_server_is_to_end_is_refused(fleet):
    """Loading takes long; an answer that began behind it would be cut."""

    def needs(_name):
        server.app.state.fleet.draining = True
        return 0

    server, _ = fleet(9, needs=needs)
    status, told = post(server, body(model="a"))
    assert (status, told["error"]["code"]) == (503, "shutting_down")


@pytest.mark.parametrize("bound", [{"most": 2}, {"most": 9, "memory": 2.5}])
def test_the_one_unused_for_longest_makes_room(fleet, bound):
    server, loaded = fleet(**bound)
    before = [said(server, name) for name in ("tiny", "a", "tiny", "b", "tiny", "a")]
    assert loaded == ["a", "b", "a"]
    assert said(server, "b") == before[3]
    assert said(server, "tiny") == before[0]
    assert loaded == ["a", "b", "a", "b", "tiny"]
    status, told = post(server, json.dumps({"content": "hi", "model": "a"}).encode(), "/tokenize")
    assert (status, len(told["tokens"])) == (200, 2)


def names_loaded(server):
    _, told = get(server, "/v1/models")
    return {each["id"] for each in told["data"] if each["meta"] is not None}


@contextlib.contextmanager
def held_answer(server):
    """A connection whose answer cannot end before it is read: buffers do not hold it."""
    big = {"max_tokens": 900, "logit_bias": {"2": -100}, "logprobs": True, "top_logprobs": 20}
    with contextlib.closing(raw(server, body(stream=True, **big), SO_RCVBUF=1)) as stream:
        stream.recv(64)
        yield stream


@pytest.mark.parametrize("bound", [{"most": 1}, {"most": 9, "memory": 1.5}])
def test_a_model_that_answers_stays(fleet, bound):
    server, loaded = fleet(**bound)
    with held_answer(server) as stream, ThreadPoolExecutor(1) as others:
        other = others.submit(said, server, "a")
        wait(lambda: server.app.state.fleet._leaving)  # the first takes no further request
        assert (loaded, other.done()) == ([], False)
        assert b"[DONE]" in rest(stream)
        other.result()
    assert loaded == ["a"]


def test_an_idle_model_makes_room_before_one_that_answers(fleet):
    server, _ = fleet(9, memory=2.5)
    with held_answer(server):
        said(server, "a")
        said(server, "b")
        assert names_loaded(server) == {"tiny", "b"}


def test_where_every_model_answers_another_is_refused(fleet, monkeypatch):
    server, loaded = fleet(9, memory=1.5)
    with held_answer(server) as stream:
        with monkeypatch.context() as patch:
            patch.setattr("pyspec.serve.fleet._WAIT_S", 0.1)
            status, told = post(server, body(model="a"))
        assert (status, "--models-memory" in told["error"]["message"], loaded) == (429, True, [])
        assert b"[DONE]" in rest(stream)
    said(server, "a")


def test_a_model_whose_engine_hangs_makes_no_room(fleet, monkeypatch):
    from pyspec.serve.service import Service

    async def stop(_service):
        return False

    server, loaded = fleet(1)
    with monkeypatch.context() as patch:
        patch.setattr(Service, "stop", stop)
        status, told = post(server, body(model="a"))
    assert (status, "does not stop" in told["error"]["message"], loaded) == (503, True, [])
    assert names_loaded(server) == {"tiny"}


def test_what_takes_more_than_was_known_makes_room_behind_it(fleet):
    server, loaded = fleet(9, memory=2.5, needs=lambda _name: 0)
    for name in ("tiny", "a", "b"):
        said(server, name)
    assert (names_loaded(server), loaded) == ({"a", "b"}, ["a", "b"])


def test_many_clients_of_many_models(fleet):
    server, _ = fleet(2)
    alone = {name: said(server, name) for name in ("tiny", "a", "b")}
    names = ["tiny", "a", "b"] * 6
    with ThreadPoolExecutor(6) as clients:
        found = list(clients.map(lambda name: said(server, name), names))
    assert found == [alone[name] for name in names]
