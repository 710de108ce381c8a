"""Two replicas behind a door, on a local cluster: one application, conversations that stay, and a replica that is killed."""

import socket
import threading

import pytest

ray = pytest.importorskip("ray", reason="the extra [ray-serve] is not installed")
pytest.importorskip(
    "ray.serve", reason="the extra [ray-serve] is not installed", exc_type=ImportError
)
requests = pytest.importorskip("requests", reason="Ray is installed without what it needs")

from helpers.rays import OF_RAY  # noqa: E402
from helpers.waiting import wait  # noqa: E402

from pyspec.batch.maker import Settings  # noqa: E402
from pyspec.cluster import app  # noqa: E402
from pyspec.sampling.options import Sampling  # noqa: E402

pytestmark = OF_RAY

OPTIONS = {
    "draft": "lookup", "n_ctx": 4096, "parallel": 2, "num_cpus": 0.5, "n_threads": 1, "n_threads_batch": 1,
    "settings": Settings(Sampling(temperature=0.0, seed=1), max_tokens=24),
}  # fmt: skip


@pytest.fixture(scope="module")
def deploy(tiny_ascii):
    """Makes an application run that is quick to scale."""

    def deploy_(**options):
        served = app(str(tiny_ascii), **{**OPTIONS, **options})
        scale = served._bound_deployment._deployment_config.autoscaling_config
        if scale is not None:  # Ray sees demand after half a minute, and idleness after ten
            scale.upscale_delay_s = scale.metrics_interval_s = scale.look_back_period_s = 1
            scale.downscale_delay_s = 3
        ray.serve.run(served, name="pyspec")

    ray.init(num_cpus=4, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
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


def chat(url, text, headers=None, **more):
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 8,
        **more,
    }
    return requests.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=120)


def test_a_model_is_called_as_it_was_named(url, tiny_ascii):
    (entry,) = requests.get(f"{url}/v1/models", timeout=60).json()["data"]
    assert entry["id"] == tiny_ascii.stem


def test_the_whole_interface_is_there(url):
    assert requests.get(f"{url}/health", timeout=60).status_code == 200
    assert "text/html" in requests.get(url, timeout=60).headers["content-type"]
    assert chat(url, "abc").json()["usage"]["completion_tokens"] == 8
    lines = chat(url, "abc", stream=True).text.split("\n\n")
    assert lines[-2] == "data: [DONE]"
    wrong = chat(url, "abc", n=0)
    assert (wrong.status_code, "n is 0" in wrong.json()["error"]["message"]) == (400, True)


def test_a_conversation_stays_on_its_replica(url):
    for n in range(6):
        system = {"role": "system", "content": f"{n} abc " * 20}
        said = [system, {"role": "user", "content": "hello"}]
        for turn in range(3):
            headers = {"x-session-id": f"{n}"}
            answer = chat(url, "", headers, messages=said, max_tokens=4).json()
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


def test_a_new_version_loses_no_request(url, deploy):
    old = replicas().keys()
    with Asking(url) as asking:
        wait(lambda: asking.found)
        deploy(replicas=2, server={"model": "new"})
        wait(lambda: not old & replicas().keys())
        wait(lambda: asking.found[-1].json()["model"] == "new")
    assert {answer.status_code for answer in asking.found} == {200}


def test_a_killed_replica_is_replaced(url):
    old = replicas().keys()
    ray.kill(next(iter(replicas().values())), no_restart=True)
    wait(lambda: len(replicas().keys() - old) == 1)
    wait(lambda: {chat(url, f"text {n}").status_code for n in range(4)} == {200})
