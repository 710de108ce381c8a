"""Two replicas behind a door, on a local cluster: one application, conversations that stay, and a replica that is killed."""

from __future__ import annotations

import json
import socket
import threading

import pytest

ray = pytest.importorskip("ray", reason="the extra [ray-serve] is not installed")
pytest.importorskip(
    "ray.serve", reason="the extra [ray-serve] is not installed", exc_type=ImportError
)
requests = pytest.importorskip("requests", reason="Ray is installed without what it needs")

from pyspec.batch.maker import Settings  # noqa: E402
from pyspec.errors import OptionError  # noqa: E402
from pyspec.sampling import Sampling  # noqa: E402
from pyspec.serve.ray import app, build, conversation_key  # noqa: E402

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
    assert key({"x-session-id": "mine"}, messages=first) == "mine"
    for odd in (b"", b"[]", b"{", b'{"messages": 3}', b"\xff", b"[" * 100_000):
        assert conversation_key({}, odd) == ""


def test_arguments_of_a_command_line_are_read():
    """Numbers are numbers; fewest and most are told apart."""
    made = build({"model": "any", "replicas": "1-3", "num_cpus": "2", "draft": "none"})
    assert made is not None
    with pytest.raises(OptionError):
        build({"model": "any", "replicas": "3-1"})
