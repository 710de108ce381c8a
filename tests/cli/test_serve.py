"""`pyspec serve` as people run it."""

import json
import os
import re
import resource
import signal
import socket
import threading
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import running, tiny
from helpers.asking import LEAST, ask, begun, get
from helpers.running import port_of
from helpers.systems import linux
from helpers.waiting import DEADLINE_S, wait

from pyspec.batch import Batch
from pyspec.serve import served_name, service


@pytest.fixture
def start(tiny_ascii):
    """Starts `pyspec serve ARGUMENTS` with a tiny model; gives the process, which ends with the test."""
    words = ["-t", 1, "-c", 512, "--parallel", 2, "--companion", "none"]

    def start_(*more, model=tiny_ascii, **how):
        return ends.enter_context(running.start("serve", "-m", model, *words, *more, **how))

    with ExitStack() as ends:
        yield start_


@pytest.fixture
def refused(start):
    """How `pyspec serve ARGUMENTS` ends that never serves."""
    return lambda *more, **how: start(*more, **how).ended()


def served(process):
    """What `helpers.asking` asks."""
    return SimpleNamespace(port=port_of(process))


def posted(server, **asked):
    return begun(server, "/v1/completions", json.dumps(asked))


def hang():
    Batch.stream = lambda *_: threading.Event().wait()
    service._CUT_S = service._STOP_S = 0.1


def status_of(server, path="/health", **headers):
    with begun(server, path, **headers) as response:
        return response.status


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_engine_that_hangs_keeps_no_server(start, number):
    process = start("--port", "0", "--drain", "0.1", before=hang)
    with posted(served(process), prompt="a", stream=True) as response:
        process.send(number)
        assert '"error":' in response.read().decode()
    code, _, stderr = process.ended()
    assert (code, stderr.splitlines()[-1]) == (1, "the engine of ascii did not stop")


@pytest.mark.parametrize(
    ("number", "code", "new"), [(signal.SIGINT, 130, False), (signal.SIGTERM, -15, True)]
)
def test_whatever_ends_it_what_it_keeps_is_written(start, tmp_path, number, code, new):
    kept = tmp_path / "kept"
    process = start("--port", "0", "--prompt-cache", str(kept), new=new)
    told = ask(served(process), "/v1/completions", prompt="a" * 40, max_tokens=3)
    assert told["usage"]["completion_tokens"] == 3
    process.send(number)
    ended, stdout, stderr = process.ended()
    assert (ended, kept.exists(), stdout, "Traceback" in stderr) == (code, True, "", False)


def test_a_second_signal_waits_for_no_answer(start):
    process = start("--port", "0", "--drain", str(DEADLINE_S), "-c", "0", "--draft", "none")
    server = served(process)
    with posted(server, prompt="a", stream=True, logit_bias={"2": -100}) as response:
        assert response.readline()
        process.send(signal.SIGTERM)
        wait(lambda: status_of(server) == 503)  # of two that wait Python hears the lower one first
        process.send(signal.SIGINT)
        assert response.read().decode().rstrip().endswith("[DONE]")
    assert process.wait() == 130


@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_sigterm_lets_answers_end(start, send):
    """A stream goes on to its end, a line of JSON tells of it, and then the server is gone.

    Supervisors send it to all processes of a service, those that follow grammars among them.
    """
    process = start("--port", "0", "--log-json", "--drain", str(DEADLINE_S))
    asked = {"prompt": "a", "max_tokens": 400, "stream": True, "logit_bias": {"2": -100}}
    asked["grammar"] = "root ::= [a-z]+"
    with posted(served(process), **asked) as response:
        send(process.pid, signal.SIGTERM)
        *_, last, done = [line for line in response.read().decode().split("\n\n") if line]
    assert (json.loads(last[6:])["choices"][0]["finish_reason"], done) == ("length", "data: [DONE]")
    _, stdout, stderr = process.ended()
    assert (json.loads(stdout)["completion_tokens"], "Traceback" in stderr) == (400, False)


def limit():
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (700 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


# an unset variable in a script would have opened the server without a word
@pytest.mark.parametrize(("line", "how", "code", "says"), [
    ("--port {taken}", {}, 2, ": Address already in use (give another --port"),
    ("--api-key=", {}, 2, "the API key is empty"), ("", {"PYSPEC_API_KEY": ""}, 2, "the API key is empty"),
    ("--api-key-file {empty}", {}, 2, "there are no keys"), ("--api-key-file {empty}.none", {}, 2, "cannot be read"),
    ("--alias gpt-5 -m {second} --models-max 2", {}, 2, "--alias"), ("--models-memory 1", {}, 2, "for several models"),
    ("-m {second} -m {empty}/{second.name}", {}, 2, "of one file name"),
    ("-m {second} --models-memory 0.0001", {}, 1, "GB and models may take 0.0001"),
    ("--embed {empty}", {}, 1, "not a GGUF"),
    # which only Linux keeps to; it said ok, and answered each request with 500
    pytest.param("-c 60000 --parallel 64", {"before": limit}, 1, "no memory for a context", marks=linux),
])  # fmt: skip
def test_what_cannot_be_served_is_said_before_it_listens(
    refused, tmp_path, tiny_ascii, line, how, code, says
):
    (tmp_path / "empty").write_text("\n  \n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        here = {"taken": taken.getsockname()[1], "empty": tmp_path / "empty", "second": tiny_ascii}
        found, _, stderr = refused("--port", "0", *line.format(**here).split(), **how)
    assert (found, says in stderr, "http://" in stderr) == (code, True, False)


def listed(server):
    return get(server, "/v1/models")[1]["data"]


def test_the_models_own_context_is_all_an_answers(start, tmp_path):
    small = tiny.write(tmp_path / "small.gguf", tokens=tiny.ASCII, n_ctx=640)
    server = served(start("--port", "0", "-c", "0", "--draft", "none", model=small))
    assert listed(server)[0]["meta"]["n_ctx"] == 640
    answer = ask(server, "/v1/completions", prompt="a", logit_bias={"2": -100})
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] > 600


def test_keys_of_a_file(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\n\n two \n")
    server = served(start("--port", "0", "--api-key", "three", "--api-key-file", keys))
    found = {
        key: status_of(server, "/v1/models", Authorization=f"Bearer {key}")
        for key in ("one", "two", "three", "four", "")
    }
    assert found == {"one": 200, "two": 200, "three": 200, "four": 401, "": 401}


def test_a_name_that_a_proxy_passes_on(start):
    server = served(start("--port", "0", "--allow-host", "Box.example", "--allow-host", "::2"))
    hosts = ("localhost", "box.example:443", "[::2]:1", "other.example")
    assert [status_of(server, Host=host) for host in hosts] == [200, 200, 200, 400]


def test_several_models_by_name(start, tmp_path, tiny_ascii):
    second = tmp_path / "second.gguf"
    second.write_bytes(tiny_ascii.read_bytes())
    server = served(start("--port", "0", "-m", second, "--models-max", "1"))
    for name in ("second", tiny_ascii.stem, "second"):
        told = ask(server, "/v1/completions", model=name, prompt="a", max_tokens=3)
        assert told["model"] == name
    found = {entry["id"]: entry["meta"] is not None for entry in listed(server)}
    assert found == {tiny_ascii.stem: False, "second": True}


def test_models_that_take_more_than_they_may(start, tmp_path, tiny_ascii):
    large = tiny.write(tmp_path / "large.gguf", tokens=tiny.ASCII, n_layer=40)
    bound = ["--port", "0", "-c", "256", "--parallel", "1", "--draft", "none", "--models-memory"]
    server, asked = served(start(*bound, "0.001", "-m", large)), {"prompt": "a", "max_tokens": 2}
    told = ask(server, "/v1/completions", 503, model="large", **asked)
    assert re.search("large takes 0.003.*--models-memory", told["error"]["message"])
    loaded = [entry["id"] for entry in listed(server) if entry["meta"]]
    assert loaded == [tiny_ascii.stem]  # nothing made room for it
    told = ask(server, "/v1/completions", model=tiny_ascii.stem, **asked)
    assert told["model"] == tiny_ascii.stem


def test_an_alias_is_what_clients_read(start):
    process = start("--port", "0", "--alias", "gpt-5")
    server = served(process)
    assert "gpt-5 on http://" in process.stderr
    assert [entry["id"] for entry in listed(server)] == ["gpt-5"]
    for path in ("/v1/completions", "/v1/messages"):
        told = ask(server, path, model="any", max_tokens=2, **LEAST[path])
        assert told["model"] == "gpt-5"


def test_what_clients_call_a_model(tmp_path):
    """No folder of the server's, whatever a file is called."""
    (tmp_path / "sha256-0123").touch()
    assert served_name(str(tmp_path / "sha256-0123")) == "sha256-0123"
    assert served_name("llama3.2:3b") == "llama3.2:3b"
    assert served_name("some/where/qwen2.5-q8_0.gguf") == "qwen2.5-q8_0"
