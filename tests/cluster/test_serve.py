"""Two replicas behind a door, on a local cluster: one application, and conversations that stay."""

import socket

import pytest

ray = pytest.importorskip("ray", reason="the extra [ray-serve] is not installed")
pytest.importorskip(
    "ray.serve", reason="the extra [ray-serve] is not installed", exc_type=ImportError
)
requests = pytest.importorskip("requests", reason="Ray is installed without what it needs")

from helpers.rays import OF_RAY  # noqa: E402

from pyspec.batch.maker import Settings  # noqa: E402
from pyspec.cluster import app  # noqa: E402
from pyspec.sampling.options import Sampling  # noqa: E402

pytestmark = OF_RAY

OPTIONS = {
    "draft": "lookup", "n_ctx": 4096, "parallel": 2, "num_cpus": 0.5, "n_threads": 1, "n_threads_batch": 1,
    "settings": Settings(Sampling(temperature=0.0, seed=1), max_tokens=24),
}  # fmt: skip


@pytest.fixture(scope="module")
def url(tiny_ascii):
    ray.init(num_cpus=4, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ray.serve.start(http_options={"host": "127.0.0.1", "port": port})
    ray.serve.run(app(str(tiny_ascii), replicas=2, **OPTIONS), name="pyspec")
    yield f"http://127.0.0.1:{port}"
    ray.serve.shutdown()
    ray.shutdown()


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
