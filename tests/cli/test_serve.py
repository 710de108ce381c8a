"""`pyspec serve` as people run it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
import tiny
from systems import limits, linux
from waiting import DEADLINE_S, wait

from pyspec.cli.serve import _called
from pyspec.serve.guard import MOST_NEW
from pyspec.serve.settings import served_name


@pytest.fixture
def start(tmp_path, tiny_ascii):
    """Starts `pyspec serve ARGUMENTS` with a tiny model; gives the process. begin: what Python runs."""
    running = []

    def start_(*arguments, limit=0, begin=("-m", "pyspec")):
        own = {"PYSPEC_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
        environment = {**os.environ, **own}

        def bound():
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

        resource = limits() if limit else None
        command = [sys.executable, *begin, "serve", "-m", str(tiny_ascii), "-t", "1"]
        command += ["-c", "512", "--parallel", "2", "--companion", "none", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        options = {"env": environment, "cwd": tmp_path, "preexec_fn": bound if limit else None}
        options["start_new_session"] = True
        running.append(subprocess.Popen(command, **options, **pipes))
        return running[-1]

    yield start_
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serves_until_it_is_told_to_end(start, number):
    """One line says where; an answer comes; Ctrl-C ends it without a traceback."""
    process = start("--port", "0")
    line = process.stderr.readline()
    url = re.search(r"http://127\.0\.0\.1:\d+", line).group()
    data = json.dumps({"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}).encode()
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 3
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert (stdout, "Traceback" in stderr) == ("", False)


HANGS = """
import sys, threading
from pyspec.batch import Batch
from pyspec.cli.main import main
from pyspec.serve import service
Batch.stream = lambda *_: threading.Event().wait()
service._CUT_S = service._STOP_S = 0.1
main(sys.argv[1:])
"""


def request_to(process, path, **asked):
    """A connection on which a server was asked for something."""
    port = int(re.search(r":(\d+):", process.stderr.readline()).group(1))
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    client.request("POST", path, json.dumps(asked), {"Content-Type": "application/json"})
    return client


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_engine_that_hangs_keeps_no_server(start, number):
    """Its stream is told, the log says why, and the status is a failure's; nothing crashes."""
    process = start("--port", "0", "--drain", "0.1", begin=("-c", HANGS))
    client = request_to(process, "/v1/completions", prompt="a", stream=True)
    response = client.getresponse()
    process.send_signal(number)
    assert '"error":' in response.read().decode()
    client.close()
    _, stderr = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, stderr.splitlines()[-1]) == (
        1,
        "the engine of ascii did not stop",
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_whatever_ends_it_what_it_keeps_is_written(start, tmp_path, number, code):
    """The next server begins with what this one read; the status says what ended it."""
    kept = tmp_path / "kept"
    process = start("--port", "0", "--prompt-cache", str(kept))
    client = request_to(process, "/v1/completions", prompt="a" * 40, max_tokens=3)
    assert client.getresponse().read()
    client.close()
    process.send_signal(number)
    process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, kept.exists()) == (code, True)


def health(port):
    """The status of a health check."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    client.request("GET", "/health")
    status = client.getresponse().status
    client.close()
    return status


def test_a_second_signal_waits_for_no_answer(start):
    """A drain may take long; what runs is cut, and says so."""
    process = start("--port", "0", "--drain", str(DEADLINE_S), "-c", "0", "--draft", "none")
    client = request_to(process, "/v1/completions", prompt="a", stream=True, logit_bias={"2": -100})
    response = client.getresponse()
    assert response.readline()
    process.send_signal(signal.SIGTERM)
    wait(lambda: health(client.port) == 503)  # of two that wait Python hears the lower number first
    process.send_signal(signal.SIGINT)
    assert response.read().decode().rstrip().endswith("[DONE]")
    client.close()
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130


@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_sigterm_lets_answers_end(start, send):
    """A stream goes on to its end, a line of JSON tells of it, and then the server is gone.

    Supervisors send it to all processes of a service, those that follow grammars among them.
    """
    process = start("--port", "0", "--log-json", "--drain", str(DEADLINE_S))
    port = int(re.search(r":(\d+):", process.stderr.readline()).group(1))
    asked = {
        "prompt": "a",
        "max_tokens": 400,
        "stream": True,
        "logit_bias": {"2": -100},
        "grammar": "root ::= [a-z]+",
    }
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    head = {"Content-Type": "application/json"}
    client.request("POST", "/v1/completions", json.dumps(asked), head)
    response = client.getresponse()
    send(process.pid, signal.SIGTERM)
    *_, last, done = [line for line in response.read().decode().split("\n\n") if line]
    assert (json.loads(last[6:])["choices"][0]["finish_reason"], done) == ("length", "data: [DONE]")
    client.close()
    stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert (json.loads(stdout)["completion_tokens"], "Traceback" in stderr) == (400, False)


def test_who_asks_does_not_give_way_to_a_flood_behind_it(start):
    """More half-sent requests than may stand open come while the server is busy: the first in the queue is read first."""
    process = start("--port", "0")
    port = int(re.search(r":(\d+):", process.stderr.readline()).group(1))
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    client.request("GET", "/health")
    assert client.getresponse().read()
    client.close()
    process.send_signal(signal.SIGSTOP)
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    client.request("GET", "/health")
    behind = [
        socket.create_connection(("127.0.0.1", port), DEADLINE_S) for _ in range(MOST_NEW + 60)
    ]
    for one in behind:
        one.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
    process.send_signal(signal.SIGCONT)
    assert client.getresponse().status == 200
    for one in (client, *behind):
        one.close()


def test_port_that_is_taken_is_one_sentence(start):
    """Before any model is loaded; exit status 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = start("--port", str(taken.getsockname()[1]))
        _, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert stderr.startswith("pyspec: cannot listen on 127.0.0.1 port ")
    assert stderr.endswith(": Address already in use (give another --port)\n")


@pytest.mark.parametrize("where", ["option", "variable"])
def test_an_empty_key_is_no_key_for_everybody(start, monkeypatch, where):
    """An unset variable in a script would have opened the server without a word."""
    if where == "variable":
        monkeypatch.setitem(os.environ, "PYSPEC_API_KEY", "")
    process = start(*(["--api-key", ""] if where == "option" else []))
    _, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert "the API key is empty" in stderr


def test_the_models_own_context_is_all_an_answers(start):
    """`-c 0` is what it was trained for, and an answer without a limit goes on to its end."""
    process = start("--port", "0", "-c", "0", "--draft", "none")
    port = int(re.search(r":(\d+):", process.stderr.readline()).group(1))
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    client.request("GET", "/props")
    told = json.loads(client.getresponse().read())
    assert told["default_generation_settings"]["n_ctx"] == 4096
    asked = {"prompt": "a", "logit_bias": {"2": -100}}
    client.request(
        "POST", "/v1/completions", json.dumps(asked), {"Content-Type": "application/json"}
    )
    answer = json.loads(client.getresponse().read())
    client.close()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] > 4000
    refused = start("-c", "15")
    assert "too small" in refused.communicate(timeout=DEADLINE_S)[1]


def test_keys_of_a_file(start, tmp_path):
    """Each of its lines is one; a file without any opens no server."""
    keys = tmp_path / "keys"
    keys.write_text("one\n\n two \n")
    process = start("--port", "0", "--api-key", "three", "--api-key-file", str(keys))
    port = int(re.search(r":(\d+):", process.stderr.readline()).group(1))
    found = {}
    for key in ("one", "two", "three", "four", ""):
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        client.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
        found[key] = client.getresponse().status
        client.close()
    assert found == {"one": 200, "two": 200, "three": 200, "four": 401, "": 401}
    keys.write_text("\n  \n")
    for path, sentence in ((keys, "there are no keys"), (tmp_path / "none", "cannot read")):
        refused = start("--api-key-file", str(path))
        assert sentence in refused.communicate(timeout=DEADLINE_S)[1]
        assert refused.returncode == 2


def test_a_name_that_a_proxy_passes_on(start):
    """Is one of the server's where it was allowed."""
    process = start("--port", "0", "--allow-host", "Box.example", "--allow-host", "::2")
    port = int(re.search(r":(\d+):", process.stderr.readline()).group(1))
    found = {}
    for host in ("localhost", "box.example:443", "[::2]:1", "other.example"):
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        client.request("GET", "/health", headers={"Host": host})
        found[host] = client.getresponse().status
        client.close()
    assert list(found.values()) == [200, 200, 200, 400]


@linux  # which alone keeps to a limit of address space
def test_a_context_that_does_not_fit_is_said_before_it_listens(start):
    """It said ok, and answered each request with 500."""
    process = start("--port", "0", "-c", "9000000", "--parallel", "64", limit=8 << 30)
    _, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "no memory for a context" in stderr
    assert "http://" not in stderr


def test_several_models_by_name(start, tmp_path, tiny_ascii):
    """Each -m is one; a file is called by its name, and the one that is asked for is loaded."""
    second = tmp_path / "second.gguf"
    second.write_bytes(tiny_ascii.read_bytes())
    process = start("--port", "0", "-m", str(second), "--models-max", "1")
    port = int(re.search(r":(\d+):", process.stderr.readline()).group(1))
    names = {}
    for name in ("second", tiny_ascii.stem, "second"):
        data = json.dumps({"model": name, "prompt": "a", "max_tokens": 3}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            names[name] = json.load(answer)["model"]
    assert names == {name: name for name in ("second", tiny_ascii.stem)}
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models") as answer:
        listed = {entry["id"]: entry["meta"] is not None for entry in json.load(answer)["data"]}
    assert listed == {tiny_ascii.stem: False, "second": True}


def test_models_that_take_more_than_they_may(start, tmp_path, tiny_ascii):
    """A larger one is refused by its size when it is asked for, a first one before it listens; one alone has no such bound."""
    large = tiny.write(tmp_path / "large.gguf", tokens=tiny.ASCII, n_layer=40)
    bound = ["--port", "0", "-c", "256", "--parallel", "1", "--draft", "none", "--models-memory"]
    process = start(*bound, "0.001", "-m", str(large))
    port = int(re.search(r":(\d+):", process.stderr.readline()).group(1))
    answers = []
    for name in ("large", tiny_ascii.stem):
        data = json.dumps({"model": name, "prompt": "a", "max_tokens": 2}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions", data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                answers.append((answer.status, json.load(answer)["model"]))
        except urllib.error.HTTPError as refused:
            answers.append((refused.status, json.load(refused)["error"]["message"]))
    (status, said), answered = answers
    assert (status, "large takes 0.003" in said, "--models-memory" in said) == (503, True, True)
    assert answered == (200, tiny_ascii.stem)
    first = start(*bound, "0.0001", "-m", str(large))
    assert "GB and models may take 0.0001" in first.communicate(timeout=DEADLINE_S)[1]
    alone = start(*bound, "1")
    assert "for several models" in alone.communicate(timeout=DEADLINE_S)[1]
    assert (first.returncode, alone.returncode) == (1, 2)


def test_an_alias_is_what_clients_read(start, tiny_ascii):
    """In the list, in answers, and in the line that says where; several models cannot share one."""
    process = start("--port", "0", "--alias", "gpt-5")
    line = process.stderr.readline()
    port = int(re.search(r":(\d+):", line).group(1))
    assert line.startswith("gpt-5 on http://")
    url = f"http://127.0.0.1:{port}"
    with urllib.request.urlopen(f"{url}/v1/models", timeout=DEADLINE_S) as answer:
        assert [entry["id"] for entry in json.load(answer)["data"]] == ["gpt-5"]
    with urllib.request.urlopen(f"{url}/props", timeout=DEADLINE_S) as answer:
        assert json.load(answer)["model_alias"] == "gpt-5"
    for path, more in (
        ("completions", {}),
        ("messages", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        data = json.dumps({"prompt": "a", "model": "any", "max_tokens": 2, **more}).encode()
        request = urllib.request.Request(
            f"{url}/v1/{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            assert json.load(answer)["model"] == "gpt-5"
    refused = start("--alias", "gpt-5", "-m", str(tiny_ascii), "--models-max", "2")
    _, stderr = refused.communicate(timeout=DEADLINE_S)
    assert (refused.returncode, "--alias" in stderr) == (2, True)


def test_what_clients_call_a_model(tmp_path):
    """A file by its name without the end; a name, dots and all, by itself, whatever its file is called."""
    assert served_name("llama3.2:3b") == "llama3.2:3b"
    assert served_name("some/where/qwen2.5-q8_0.gguf") == "qwen2.5-q8_0"
    blob = tmp_path / "sha256-0123"
    assert _called("llama3.2:3b", blob) == "llama3.2:3b"
    blob.touch()
    assert _called(str(blob), blob) == "sha256-0123"
    assert _called("smollm2", tmp_path / "smollm2-q8_0.gguf") == "smollm2-q8_0"
