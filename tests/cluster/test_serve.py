"""Two replicas behind a door, on a local cluster: one application, conversations that stay, and a replica that is killed."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

ray = pytest.importorskip("ray", reason="the extra [ray-serve] is not installed")
pytest.importorskip(
    "ray.serve", reason="the extra [ray-serve] is not installed", exc_type=ImportError
)
requests = pytest.importorskip("requests", reason="Ray is installed without what it needs")

from helpers.rays import OF_RAY  # noqa: E402
from helpers.waiting import wait  # noqa: E402

from pyspec.batch.maker import Settings  # noqa: E402
from pyspec.cluster.serve import Replica, app  # noqa: E402
from pyspec.sampling.chain import Sampling  # noqa: E402

pytestmark = OF_RAY

OPTIONS = {
    "draft": "lookup", "n_ctx": 4096, "parallel": 2, "num_cpus": 0.5, "n_threads": 1, "n_threads_batch": 1,
    "settings": Settings(Sampling(temperature=0.0, seed=1), max_tokens=24),
}  # fmt: skip


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A file that is not there. While that is so, answers that are asked to be held do not end."""
    return tmp_path_factory.mktemp("ray") / "released"


@pytest.fixture(scope="module")
def deploy(tiny_ascii, released):
    """Makes an application run that is quick to scale. Asked to be slow, it takes its time behind each piece of an answer."""

    class Paced(Replica):  # what is made here need not be importable there
        async def answer(self, scope, body):
            async for piece in super().answer(scope, body):
                yield piece
                await asyncio.sleep(0.3 if b"slow" in body else 0)
                while b"held" in body and not released.exists():  # noqa: ASYNC110 - made by another process
                    await asyncio.sleep(0.1)

    def deploy_(**options):
        served = app(str(tiny_ascii), **{**OPTIONS, **options})
        replicas = served._bound_deployment.init_args[0]._bound_deployment
        scale = replicas._deployment_config.autoscaling_config
        if scale is not None:  # Ray sees demand after half a minute, and idleness after ten
            scale.upscale_delay_s = scale.metrics_interval_s = scale.look_back_period_s = 1
            scale.downscale_delay_s = 3
        ray.serve.run(served, name="pyspec")

    ray.init(num_cpus=4, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyspec.cluster.serve.Replica", Paced)
        yield deploy_
    ray.serve.shutdown()
    ray.shutdown()


@pytest.fixture(scope="module")
def url(deploy):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ray.serve.start(http_options={"host": "127.0.0.1", "port": port})
    deploy(replicas=2)
    return f"http://127.0.0.1:{port}"


def replicas():
    named = ray.util.list_named_actors(all_namespaces=True)
    found = [each["name"] for each in named if "#replica#" in each["name"]]
    return {name: ray.get_actor(name, namespace="serve") for name in found}


def chat(url, text, **more):
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


class Asking:
    """Threads that ask again and again while inside; found: each answer, or what was raised."""

    def __init__(self, url):
        self._url, self._ended, self.found = url, threading.Event(), []
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(2)]

    def _ask(self, n):
        while not self._ended.is_set():
            try:
                self.found.append(chat(self._url, f"text {n}"))
            except requests.RequestException as error:
                self.found.append(error)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        for thread in self._threads:
            thread.join()


class SlowStream:
    """A stream that is read from now on, in a thread, for some seconds, or until what is held is released."""

    def __init__(self, url, tokens, pace="slow"):
        self._url, self._lines = url, []
        self._body = {"messages": [{"role": "user", "content": pace}], "stream": True}
        self._body |= {"max_tokens": tokens, "logit_bias": {"2": -100}}
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        where = f"{self._url}/v1/chat/completions"
        with requests.post(where, json=self._body, timeout=120, stream=True) as response:
            self._lines.extend(filter(None, response.iter_lines(decode_unicode=True)))

    def end(self):
        """Wait for the last event; gives the model that answered, and why the answer ended."""
        self._thread.join()
        first, *_, last, done = self._lines
        assert done == "data: [DONE]"
        return json.loads(first[6:])["model"], json.loads(last[6:])["choices"][0]["finish_reason"]


def test_a_new_version_loses_no_request(url, deploy):
    """What comes meanwhile is answered, by old replicas and then by new ones; a stream that runs ends on its own."""
    old = replicas().keys()
    with Asking(url) as asking:
        stream = SlowStream(url, 200)
        wait(lambda: asking.found)
        deploy(replicas=2, server={"model": "new"})
        wait(lambda: not old & replicas().keys())
        assert stream.end() == ("ascii", "length")
        wait(lambda: asking.found[-1].json()["model"] == "new")
    assert {answer.status_code for answer in asking.found} == {200}


def test_requests_survive_a_killed_replica(url):
    """Those of which nothing was streamed are answered elsewhere, with the same text."""
    wanted = [chat(url, f"text {n}").json()["choices"][0]["message"]["content"] for n in range(4)]
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(chat, url, f"text {n % 4}") for n in range(12)]
        ray.kill(next(iter(replicas().values())), no_restart=True)
        found = [each.result() for each in asked]
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


def test_a_stream_that_waits_survives_its_replica(url, deploy):
    """It had shown no more than that it goes on; one whose tokens were out ends."""
    deploy(replicas=1, parallel=1, server={"ping": 0.05})
    said = [{"role": "user", "content": "hello"}]
    asked = {"messages": said, "stream": True, "logit_bias": {"2": -100}}
    where, options = f"{url}/v1/chat/completions", {"timeout": 120, "stream": True}
    with requests.post(where, json={**asked, "max_tokens": 4000}, **options) as held:
        told = held.iter_lines(decode_unicode=True)
        assert next(line for line in told if line.startswith("data: "))
        waiting = requests.post(where, json={**asked, "max_tokens": 4}, **options)
        lines = waiting.iter_lines(decode_unicode=True)
        assert next(lines) == ":"
        for actor in replicas().values():
            ray.kill(actor, no_restart=True)
        events = [line for line in lines if line.startswith("data: ")]
        *_, cut = filter(None, told)
    waiting.close()
    assert events[-1] == "data: [DONE]"
    assert len(events) > 1
    assert "ask again" in cut


def test_long_streams_make_a_replica_that_goes_with_them(url, deploy, released):
    """As many as run and wait; nothing is lost on either way, and a conversation stays on its replica again."""

    def running():
        states = ray.serve.status().applications["pyspec"].deployments["replica"].replica_states
        return states.get("RUNNING", 0)

    deploy(replicas=(1, 2), parallel=2)
    streams = [SlowStream(url, 60, "held") for _ in range(5)]
    for wanted in (2, 1):
        wait(lambda: running() == wanted)  # noqa: B023 - it is called here
        said = [{"role": "user", "content": f"{wanted} abc " * 20}]
        first = requests.post(f"{url}/v1/chat/completions", json={"messages": said}, timeout=120)
        said += [first.json()["choices"][0]["message"], {"role": "user", "content": "more"}]
        second = requests.post(f"{url}/v1/chat/completions", json={"messages": said}, timeout=120)
        assert second.json()["speculation"]["prompt_kept"] > 100
        released.touch()
    assert {stream.end() for stream in streams} == {("ascii", "length")}
