"""Two replicas behind a door, on a local cluster: one application, conversations that stay, and a replica that is killed."""

from __future__ import annotations

import asyncio
import json
import socket
import threading

import pytest

ray = pytest.importorskip("ray", reason="the extra [ray-serve] is not installed")
pytest.importorskip(
    "ray.serve", reason="the extra [ray-serve] is not installed", exc_type=ImportError
)
requests = pytest.importorskip("requests", reason="Ray is installed without what it needs")

from ray.exceptions import RayActorError  # noqa: E402

from pyspec.batch.maker import Settings  # noqa: E402
from pyspec.errors import EngineError, OptionError  # noqa: E402
from pyspec.sampling import Sampling  # noqa: E402
from pyspec.serve.app import interface_at  # noqa: E402
from pyspec.serve.ray import Replica, _refusal, _rest, app, build, conversation_key  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Ray about itself
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

OPTIONS = {
    "draft": "lookup", "n_ctx": 4096, "parallel": 2, "num_cpus": 0.5, "n_threads": 1, "n_threads_batch": 1,
    "settings": Settings(Sampling(temperature=0.0, seed=1), max_tokens=24),
}  # fmt: skip


@pytest.fixture(scope="module")
def url(tiny_ascii):
    """Where two replicas are reached."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ray.init(num_cpus=4, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    ray.serve.start(http_options={"host": "127.0.0.1", "port": port})
    ray.serve.run(app(str(tiny_ascii), replicas=2, **OPTIONS), name="pyspec")
    yield f"http://127.0.0.1:{port}"
    ray.serve.shutdown()
    ray.shutdown()


def replicas():
    """The actors that have models, by name."""
    named = ray.util.list_named_actors(all_namespaces=True)
    found = [each["name"] for each in named if "#replica#" in each["name"]]
    return {name: ray.get_actor(name, namespace="serve") for name in found}


def chat(url, text, **more):
    """One answer to one message."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 8,
        **more,
    }
    return requests.post(f"{url}/v1/chat/completions", json=body, timeout=120)


def test_a_model_is_called_as_it_was_named(url, tiny_ascii):
    """By the name in force without Ray."""
    (entry,) = requests.get(f"{url}/v1/models", timeout=60).json()["data"]
    assert entry["id"] == tiny_ascii.stem


def test_the_whole_interface_is_there(url):
    """Health, the page, an answer, a stream and a refusal, each with its status and type."""
    assert requests.get(f"{url}/health", timeout=60).status_code == 200
    assert "text/html" in requests.get(url, timeout=60).headers["content-type"]
    assert chat(url, "abc").json()["usage"]["completion_tokens"] == 8
    lines = chat(url, "abc", stream=True).text.split("\n\n")
    assert lines[-2] == "data: [DONE]"
    wrong = chat(url, "abc", n=0)
    assert (wrong.status_code, "n is 0" in wrong.json()["error"]["message"]) == (400, True)


def test_a_conversation_stays_on_its_replica(url):
    """What was read of it is not read again; what begins otherwise goes to either."""
    for n in range(6):
        system = {"role": "system", "content": f"{n} abc " * 20}
        said = [system, {"role": "user", "content": "hello"}]
        for turn in range(3):
            answer = requests.post(
                f"{url}/v1/chat/completions", json={"messages": said, "max_tokens": 4}, timeout=120
            ).json()
            kept = answer["speculation"]["prompt_kept"]
            assert not turn or kept > 100
            said += [answer["choices"][0]["message"], {"role": "user", "content": "more"}]


def test_requests_survive_a_killed_replica(url):
    """Those of which nothing was streamed are answered elsewhere, with the same text."""
    wanted = [chat(url, f"text {n}").json()["choices"][0]["message"]["content"] for n in range(4)]
    found = [None] * 12

    def ask(n):
        found[n] = chat(url, f"text {n % 4}")

    asking = [threading.Thread(target=ask, args=(n,)) for n in range(12)]
    for thread in asking:
        thread.start()
    ray.kill(next(iter(replicas().values())), no_restart=True)
    for thread in asking:
        thread.join()
    assert [answer.status_code for answer in found] == [200] * 12
    texts = [answer.json()["choices"][0]["message"]["content"] for answer in found]
    assert texts == wanted * 3


def test_a_stream_whose_replica_ends_says_so(url):
    """An event with an error, where tokens were out already."""
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3000, "stream": True}
    whole = f"{url}/v1/chat/completions"
    with requests.post(whole, json=body, timeout=120, stream=True) as response:
        lines = response.iter_lines(decode_unicode=True)
        assert next(lines).startswith("data: {")
        for actor in replicas().values():
            ray.kill(actor, no_restart=True)
        events = [line for line in lines if line.startswith("data: ")]
    assert "ask again" in json.loads(events[-1][6:])["error"]["message"]


# -- without a cluster -------------------------------------------------------------------------------------------------


def test_a_conversation_is_known_by_its_beginning():
    """Turns that come later change nothing; what was said first, or to whom, does."""

    def key(headers=(), **body):
        return conversation_key(dict(headers), json.dumps(body).encode())

    first = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]
    later = [*first, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    assert key(messages=first) == key(messages=later) != key(messages=later[1:])
    assert key(system="x", messages=first) != key(messages=first)
    assert key(prompt="a" * 256 + "b") == key(prompt="a" * 256 + "c") != key(prompt="b")
    assert key(prompt=["a", "b"]) == key(prompt=["a"]) != key(prompt=["b"])
    assert key({"x-session-id": "mine"}, messages=first) == "mine"
    for odd in (b"", b"[]", b"{", b'{"messages": 3}', b"\xff", b"[" * 100_000):
        assert conversation_key({}, odd) == ""


def test_an_agents_conversation_stays_though_its_marks_move():
    """What it tells its own service changes with each request, and its mark of a cache moves on to the next turn."""

    def key(n, words="Look.", *, marked=False, listed=True):
        mark = {"cache_control": {"type": "ephemeral"}} if marked else {}
        note = {"type": "text", "text": f"x-anthropic-billing-header: cch={n};"}
        system = [note, {"type": "text", "text": "You code.", **mark}]
        first = [{"type": "text", "text": words, **mark}] if listed else words
        later = [{"role": "assistant", "content": f"{n}"}, {"role": "user", "content": "more"}]
        body = {"system": system, "messages": [{"role": "user", "content": first}, *later[: 2 * n]]}
        return conversation_key({}, json.dumps(body).encode())

    assert key(0, marked=True) == key(1) == key(2, listed=False) != key(1, "Read.")


def test_a_codex_conversation_is_known_by_its_words():
    """Items of the Responses interface: what the developer and the user said first."""

    def key(*texts):
        roles = ("developer", "user", "user", "user")
        said = [
            {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
            for role, text in zip(roles, texts)
        ]
        return conversation_key({}, json.dumps({"instructions": "i", "input": said}).encode())

    assert key("a", "b") == key("a", "b", "c") != key("a", "c")
    assert key("b", "b") != key("a", "b")


def test_arguments_of_a_command_line_are_read():
    """Numbers are numbers; fewest and most are told apart."""
    made = build({"model": "any", "replicas": "1-3", "num_cpus": "2", "draft": "none"})
    assert made is not None
    with pytest.raises(OptionError):
        build({"model": "any", "replicas": "3-1"})


POSTED = {"type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"/v1/completions",
          "headers": [(b"content-type", b"application/json")], "query_string": b"", "http_version": "1.1",
          "scheme": "http", "root_path": "", "client": None, "server": None}  # fmt: skip


def test_a_stream_that_waits_shows_so_through_the_door(tiny_ascii, monkeypatch):
    """What a replica sends meanwhile goes out at once, and the answer behind it."""
    arguments = {**OPTIONS, "parallel": 1}
    del arguments["num_cpus"]
    asked = {"prompt": "a", "stream": True, "logit_bias": {"2": -100}}

    async def life():
        replica = Replica(str(tiny_ascii), {"ping": 0.05}, arguments)
        body = (json.dumps({**asked, "max_tokens": n}).encode() for n in (4000, 4))
        held, waiting = (replica.answer(dict(POSTED), each) for each in body)
        for pieces in (held, waiting):
            await anext(pieces)
        await anext(held)
        passed = _rest(await anext(waiting), waiting, interface_at("/v1/completions"))
        said = [await anext(passed) for _ in range(3)]
        await held.aclose()
        said += [piece async for piece in passed]
        await replica.__del__()
        monkeypatch.delattr(Replica, "__del__")  # Ray awaits it, Python does not
        return said

    said = asyncio.run(life())
    assert said[:3] == [b":\n\n"] * 3
    assert said[-1] == b"data: [DONE]\n\n"


# -- errors in each interface's form ------------------------------------------------------------------------------------

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


def _cut(path, *pieces):
    """The rest of a stream behind its first piece, whose replica ends."""

    async def come():
        for piece in pieces[1:]:
            yield piece
        raise RayActorError

    async def read():
        return [piece async for piece in _rest(pieces[0], come(), interface_at(path))]

    return asyncio.run(read())[len(pieces) :]


def _data(event):
    """What an event tells."""
    return json.loads(event.rpartition(b"data: ")[2])


def test_each_interface_says_in_its_own_form_that_a_replica_ended():
    """Its clients raise what they raise for an error of the server."""
    (event,) = _cut(CHAT, b"data: {}\n\n")
    assert (_data(event)["error"]["type"], event[:7]) == ("server_error", b"data: {")
    (event,) = _cut(MESSAGES, b"event: ping\ndata: {}\n\n")
    assert event.startswith(b"event: error\n")
    assert (_data(event)["type"], _data(event)["error"]["type"]) == ("error", "overloaded_error")
    said = b'event: x\ndata: {"sequence_number":%d,"delta":"\\"sequence_number\\":"}\n\n'
    (event,) = _cut(RESPONSES, said % 0, said % 1 + said % 2, said % 3)
    lines = [line for line in event.splitlines() if line.startswith(b"data: ")]
    told = [json.loads(line[6:]) for line in lines]
    assert [(e["type"], e["sequence_number"]) for e in told] == [
        ("error", 4),
        ("response.failed", 5),
    ]
    assert "ask again" in told[0]["message"]


def test_what_is_no_stream_just_ends():
    """Half a body of JSON is mended by no event."""
    with pytest.raises(RayActorError):
        _cut("/health", b"{")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (CHAT, None),
        (RESPONSES, None),
        (MESSAGES, "error"),
        (MESSAGES + "/count_tokens", "error"),
        ("/props", None),
    ],
)
def test_a_refusal_is_of_its_interface(path, kind):
    """Also that of a door, which has no model."""
    response = _refusal(interface_at(path), 503, "words")
    told = json.loads(response.body)
    assert (told.get("type"), told["error"]["message"]) == (kind, "words")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")


def deployment(served):
    """The replicas' deployment of an application that nobody runs."""
    return served._bound_deployment.init_args[0]._bound_deployment


def test_more_answers_than_a_replica_has_at_once_make_more_replicas():
    """Ray counts those that run and those that wait in it; a fixed number does not change."""
    scaled = deployment(app("m", replicas=(1, 3), parallel=5, queue=7))
    told = scaled._deployment_config.autoscaling_config
    assert (told.min_replicas, told.max_replicas) == (1, 3)
    assert told.get_target_ongoing_requests() == 5
    assert scaled._deployment_config.max_ongoing_requests == 12
    fixed = deployment(app("m", replicas=2))
    assert fixed._deployment_config.autoscaling_config is None
    assert fixed._deployment_config.num_replicas == 2


def test_a_new_version_waits_for_the_answers_of_the_old_one():
    """As long as `pyspec serve` drains; and a replica's health is asked for often."""
    config = deployment(app("m"))._deployment_config
    assert config.graceful_shutdown_timeout_s == 30
    assert config.health_check_period_s == 5


def test_a_replica_without_its_engine_is_not_healthy(tiny_ascii, monkeypatch):
    """Ray makes another then; before the first request, and while it answers, it is."""
    arguments = {name: value for name, value in OPTIONS.items() if name != "num_cpus"}
    scope = {"type": "http", "method": "GET", "path": "/health", "raw_path": b"/health", "headers": [],
             "query_string": b"", "http_version": "1.1", "scheme": "http", "root_path": "",
             "client": None, "server": None}  # fmt: skip

    async def life():
        replica = Replica(str(tiny_ascii), {}, arguments)
        replica.check_health()
        answer = [piece async for piece in replica.answer(scope, b"")]
        replica.check_health()
        await replica._app.state.fleet.default.stop()
        with pytest.raises(EngineError):
            replica.check_health()
        await replica.__del__()
        monkeypatch.delattr(Replica, "__del__")  # Ray awaits it, Python does not
        return answer

    (status, _), *body = asyncio.run(life())
    assert (status, json.loads(b"".join(body))["status"]) == (200, "ok")
