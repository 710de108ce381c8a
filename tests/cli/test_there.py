"""A running server of the same user answers `generate` and `chat`, with the same text; it ends by itself when idle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers import running, scripted
from helpers.server_here import opening

from pyspec.chat import servers
from pyspec.chat.servers import RunningServer, announce, find_server
from pyspec.chat.servers import running as found
from pyspec.cli.engine_options import EngineOptions
from pyspec.cli.options import CacheOptions, DraftOptions, ModelOptions, SystemOptions
from pyspec.cli.sampler_options import SamplerOptions
from pyspec.cli.serve import Loader, ServedModels
from pyspec.cli.server_options import ServerOptions, _duration
from pyspec.cli.there import chosen_server
from pyspec.errors import OptionError

ASK = ("a", "--temp", "0", "-n", "12")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scripted.write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(model: Path, tiny_ascii: Path) -> Iterator[Any]:
    with opening(tiny_ascii) as start:
        yield start(model, key="k")


@pytest.fixture
def known(
    server: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RunningServer:
    monkeypatch.setenv("PYSPEC_SERVERS", str(tmp_path / "servers"))
    record = RunningServer(server.url, "k", os.getpid(), "tiny", str(model), "lookup", 1024)
    path = announce(record)
    assert path is not None
    assert path.stat().st_mode & 0o777 == 0o600
    return record


def run(
    known: RunningServer, folder: Path, *words: object, stdin: bytes | None = b""
) -> running.Done:
    return running.run(*words, stdin=stdin, PYSPEC_SERVERS=str(folder / "servers"))


def test_generate_answers_by_the_server_what_it_answers_itself(
    known: RunningServer, model: Path, tmp_path: Path
) -> None:
    """The same text and words behind it; a line says who answered."""
    there = run(known, tmp_path, "generate", "-m", model, *ASK)
    here = run(known, tmp_path, "generate", "-m", model, *ASK, "--server", "none")
    assert there.stdout == here.stdout != "\n"
    first, *rest = there.stderr.splitlines()
    assert first == f"by the server at {known.url}: tiny, draft lookup"
    assert (
        rest[0]
        == here.stderr.splitlines()[0]
        == "stopped at 12 tokens; -n 24 allows more, -n -1 has no limit"
    )
    assert "tokens/s" in rest[1]


HEAVY = {"llama_cpp", "numpy", "llguidance", "jinja2", "pyspec._lib", "pyspec.engine"}
"""Modules that take most of the time to start, and that the server has imported already."""

LATER = HEAVY | {
    "rich", "msgspec", "psutil", "filelock", "importlib.metadata", "http.client", "email", "ssl", "hashlib", "subprocess",
    "pyspec.policy", "pyspec.store.locate", "pyspec.store.gguf", "pyspec.text.parts", "pyspec.screen.display",
}  # fmt: skip
"""Those that no request waits for: what shows the answer is imported while the server computes."""

WHOLE = """
import sys
asked = []
sys.addaudithook(lambda event, _: asked.append(set(sys.modules)) if event == "socket.connect" else None)
from pyspec.chat import servers
servers._TIMEOUT_S = 120.0
from pyspec.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print("MODULES", *asked[-1], "|", *sys.modules, "|", len(asked))
"""


def test_who_is_answered_by_a_server_imports_no_model_library(
    known: RunningServer, model: Path, tmp_path: Path
) -> None:
    """So that the first word comes at once: the server is asked whether it is well, and for the answer, and no more."""
    variables = {**os.environ, **running.QUIET, "PYSPEC_SERVERS": str(tmp_path / "servers")}
    words = [sys.executable, "-c", WHOLE, "generate", "-m", str(model), *ASK]
    done = subprocess.run(
        words, check=False, env=variables, input="", capture_output=True, text=True
    )
    answer, _, imported = done.stdout.partition("MODULES ")
    assert done.stderr.startswith("by the server at")
    assert answer.strip()
    before, whole, asked = imported.split("|")
    assert LATER & set(before.split()) == set()
    assert {*HEAVY, "rich.console"} & set(whole.split()) == set()  # nor a screen, for a pipe
    assert int(asked) == 2


def test_generate_prints_json_and_cuts_where_asked(
    known: RunningServer, model: Path, tmp_path: Path
) -> None:
    told = json.loads(run(known, tmp_path, "generate", "-m", model, *ASK, "--json").stdout)
    assert told["finish_reason"] == "length"
    assert told["timings"]["tokens_per_second"] > 0
    stop = told["text"][5]
    cut = run(known, tmp_path, "generate", "-m", model, *ASK, "--stop", stop)
    assert cut.stdout == told["text"][: told["text"].index(stop)] + "\n"


def test_a_chat_goes_on_by_the_server(known: RunningServer, model: Path, tmp_path: Path) -> None:
    """Two turns; models cannot be changed there."""
    lines = b"a\nb\n/model other\n/show model\n"
    chat = partial(run, known, tmp_path, "chat", "--script", "-m", model, "--temp", "0", "-n", "8")
    there, here = chat(stdin=lines), chat("--server", "none", stdin=b"a\nb\n")
    assert there.stdout.splitlines()[:2] == here.stdout.splitlines()
    assert f"the models are those of the server at {known.url}" in there.stderr
    assert known.url in there.stdout


def test_options_of_the_model_have_it_loaded_here(known: RunningServer, model: Path) -> None:
    """With auto; where a server is named they are refused by name."""
    own, engine = ModelOptions(str(model), ctx=512, draft="none"), EngineOptions()
    assert chosen_server("auto", own, engine, ()) is None
    assert chosen_server("auto", ModelOptions(str(model)), engine, ("--raw",)) is None
    assert chosen_server("auto", ModelOptions(str(model)), engine, ()) == known
    with pytest.raises(OptionError, match="--ctx need the model in this process") as caught:
        chosen_server(known.url, own, engine, ())
    assert "--draft" in str(caught.value)
    with pytest.raises(OptionError, match="no server answers"):
        chosen_server("http://127.0.0.1:9", ModelOptions(), engine, ())


def test_another_model_is_not_the_servers(known: RunningServer, tiny_target: Path) -> None:
    """Nor is the default."""
    assert find_server(str(tiny_target)) is None
    assert find_server(None) is None
    assert find_server("tiny") == known


def test_a_server_that_loads_is_waited_for(
    known: RunningServer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a word about it, and not for ever."""
    said = list[str]()
    announce(replace(known, name=""))
    monkeypatch.setattr(servers, "WAIT_S", 0.0)
    assert find_server(str(model), lambda loading: said.append(loading.url)) is None
    assert said == [known.url]
    monkeypatch.setattr(servers, "WAIT_S", 60.0)

    def loaded(_: RunningServer) -> None:
        announce(known)

    assert find_server(str(model), loaded) == known


def test_records_that_others_can_read_or_of_the_dead_do_not_count(
    known: RunningServer, tmp_path: Path
) -> None:
    dead = announce(RunningServer(known.url, "", 2**22 - 3, "tiny", known.path, "none", 64))
    assert dead is not None
    assert list(found()) == [known]
    assert not dead.exists()
    (path,) = (tmp_path / "servers").iterdir()
    path.chmod(0o644)
    assert list(found()) == []


def test_a_server_that_is_not_asked_ends(model: Path, tmp_path: Path) -> None:
    words = [
        "serve",
        "-m",
        model,
        "--trust-model",
        "--port",
        "0",
        "-c",
        "128",
        "--draft",
        "none",
        "--idle",
        "0.5s",
    ]
    with running.start(*words, PYSPEC_SERVERS=str(tmp_path)) as started:
        running.port_of(started)
        assert started.wait() == 0
        assert "nothing was asked for" in started.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("told", "drafts", "engine", "usual"),
    [
        (None, {}, {}, True),
        (None, {}, {"n_ubatch": 64}, True),
        ("Be brief.", {}, {}, False),
        (None, {"verify": "margin"}, {}, False),
        (None, {}, {"lora_path": Path("x.gguf")}, False),
    ],
)
def test_a_server_that_answers_otherwise_is_not_used_unasked(
    told: str | None, drafts: dict[str, Any], engine: dict[str, Any], usual: bool
) -> None:
    """A system prompt, a rule or an adapter of its own would change the text."""
    loader = Loader(
        ServerOptions(), SystemOptions(told), CacheOptions(), ServedModels(model=("x",)),
        DraftOptions(**drafts), SamplerOptions(), EngineOptions(**engine),
    )  # fmt: skip
    assert loader.answers_as_usual is usual


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("30m", 1800), ("1.5h", 5400)])
def test_an_idle_time_has_a_unit(text: str, seconds: float) -> None:
    assert _duration(text) == seconds
    with pytest.raises(OptionError, match="--idle is soon"):
        _duration("soon")
    assert ServerOptions().idle is None
