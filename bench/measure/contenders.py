"""Who answers: a mode of pyspec, llama-cpp-python's own `Llama`, or llama.cpp's `llama-server`, with the same files.

Names of the peers, comma-separated:

    llama_cpp             llama_cpp.Llama, plain
    llama_cpp-lookup      llama_cpp.Llama with LlamaPromptLookupDecoding, its defaults
    server                llama-server without speculation
    server-draft          llama-server, draft-simple at its default length
    server-draft:K        llama-server, draft-simple, at most K drafted tokens
    server-eagle3[:K]     the same, draft-eagle3
    server-ngram          llama-server, ngram-simple at its defaults

Each gets the same token ids as pyspec. llama-server runs on 127.0.0.1 for as long as the run lasts.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import llama_cpp

from pyspec.engine.options import AnswerOptions
from pyspec.errors import EngineError, OptionError
from pyspec.gguf.check import check_model
from pyspec.gguf.kinds import EAGLE3, kind_of_draft
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.sampling.options import Sampling
from pyspec.text.parts import Step

from .records import TimedAnswer
from .tasks import Mode, Options, PeerMissing

_HINT = (
    "peers: llama_cpp, llama_cpp-lookup, server, server-ngram, and server-draft[-sampled][:K], "
    "also with -eagle3"
)
_START_S, _ANSWER_S = 120.0, 600.0
_WEB = build_opener(ProxyHandler({}))  # a server on this machine is behind no proxy
_JSON = {"Content-Type": "application/json"}


class Clock:
    """An answer's tokens and when they arrived, measured from outside, alike for every contender."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._n_prompt, self.tokens = len(prompt), list[int]()
        self._rounds = list[tuple[int, int]]()
        self._start = perf_counter()
        self._first = self._last = 0.0

    def got(self, tokens: Sequence[int], rows: int = 0) -> None:
        """Note tokens that arrived; rows: of the decode that they came from, if known."""
        if rows:
            self._rounds.append((rows, len(tokens)))
        if tokens:
            self._last = perf_counter()
            self._first = self._first or self._last
            self.tokens += tokens

    def turn(self, finish: str, **more: Any) -> TimedAnswer:
        """Return the finished turn."""
        end = perf_counter()
        last = self._last or end
        first = self._first or last
        spans = first - self._start, last - first, end - self._start
        first_s, decode_s, total_s = (round(span, 6) for span in spans)
        return TimedAnswer(
            self._n_prompt, self.tokens, finish, first_s, decode_s, total_s, rounds=self._rounds, **more
        )  # fmt: skip


class Ours:
    """One mode of a loaded model, which all modes share.

    Each mode has its own policy and learns for itself, as if it ran alone. They share the cost curve, which belongs to the
    machine.
    """

    peer = False

    def __init__(self, llm: SpeculativeLlama, mode: Mode, temperature: float = 0.0) -> None:
        self.llm, self.mode = llm, mode
        sampling = mode.sampling(Sampling(temperature=temperature))
        self.name = mode.name
        self.exact = mode.exact and sampling.draw != "apart"
        rule = AnswerOptions(sampling, mode.speculation).settled(llm.verification).rule
        self.policy = llm.policies.new(mode.speculation.length, rule, sampling.draw)

    def forget(self) -> None:
        """Empty every KV, so that no prompt has been read already."""
        self.llm.assembly.engine.set_tokens(0, [])
        self.llm.reset()

    def steps(self, prompt: Sequence[int], max_tokens: int, options: Options) -> Iterator[Step]:
        """The rounds of an answer, with the mode's own policy."""
        return self.llm.steps(
            prompt, self.mode.sampling(options.sampling(prompt)), max_tokens=max_tokens,
            speculation=self.mode.speculation, drafting=self.mode.drafting, policy=self.policy,
        )  # fmt: skip

    def answer(self, prompt: Sequence[int], max_tokens: int, options: Options) -> TimedAnswer:
        """Answer and time it."""
        finish = "length"
        clock = Clock(prompt)
        for step in self.steps(prompt, max_tokens, options):
            clock.got([token.id for token in step.tokens], step.rows)
            finish = step.finish_reason or finish
        return clock.turn(finish, speculation=dict(self.llm.last_speculation))


def lacks(llm: SpeculativeLlama, mode: Mode) -> str:
    """Why a mode cannot run with what is loaded; "" if it can."""
    loop = llm.assembly.loop
    if mode.drafting == "lookup" and loop.drafter is None:
        return "no prompt lookup is loaded (--draft auto or lookup+NAME)"
    if mode.drafting == "model" and not loop.draft_model:
        return "no draft model is loaded (--draft NAME or PATH)"
    if mode.length == "companion" and not loop.companion:
        return "no companion is loaded (--companion NAME or PATH)"
    return ""


@dataclass(frozen=True)
class Files:
    """What a peer gets: the target, a draft of the right kind or None, and settings."""

    target: Path
    draft: Path | None
    n_ctx: int
    threads: int
    gpu_layers: int = 0


_SPEC_TYPES = {
    "server": "",
    "server-draft": "draft-simple",
    "server-eagle3": "draft-eagle3",
    "server-ngram": "ngram-simple",
}
SAMPLED = "-sampled"
"""Ends the name of a peer whose drafts are drawn above temperature 0, as newer llama-servers can (`bench/llama_server.py`)."""

_DRAFTING = {"server-draft": "", "server-eagle3": EAGLE3}
"""Peers that draft with a file, and the kinds of file, as in `kind_of_draft`; a head inside the target is no file."""


_IN_PROCESS = ("llama_cpp", "llama_cpp-lookup")


def parse_peer(name: str) -> tuple[str, str, bool]:
    """A peer's kind, its longest draft or "", and whether its drafts are sampled. Raises OptionError."""
    kind, _, k = name.partition(":")
    kind, sampled = kind.removesuffix(SAMPLED), kind.endswith(SAMPLED)
    if name in _IN_PROCESS:
        return name, k, sampled
    if kind not in _SPEC_TYPES or ((k or sampled) and not (kind in _DRAFTING and k.isdigit())):
        raise OptionError(f"unknown peer {name[:40]!r}", _HINT)
    return kind, k, sampled


def open_peer(name: str, files: Files, server: Path | None) -> InProcess | Server:
    """Load the peer of that name. Raises PeerMissing or OptionError."""
    kind, k, sampled = parse_peer(name)
    if kind in _IN_PROCESS:
        return InProcess(name, files)

    def missing(why: str, hint: str) -> PeerMissing:
        return PeerMissing(f"{name} is skipped: {why}", hint)

    found = server or Path(shutil.which("llama-server") or "")
    if not found.is_file():
        raise missing("there is no llama-server", "bench/Makefile builds it; --server PATH")
    more = ["--spec-type", _SPEC_TYPES[kind]] if _SPEC_TYPES[kind] else []
    if kind in _DRAFTING:
        if files.draft is None:
            raise missing("llama-server needs a draft model", "--draft PATH")
        if kind_of_draft(files.draft) != _DRAFTING[kind]:
            why = f"{files.draft.name} is not a file for {_SPEC_TYPES[kind]}"
            raise missing(why, "--peer-draft PATH")
        more += ["-md", str(files.draft), "-td", str(files.threads)]
    if sampled:
        more += ["--spec-draft-sampling", "probabilistic"]
    return Server(name, files, found, [*more, *(["--spec-draft-n-max", k] if k else [])])


class PlainLlama(llama_cpp.Llama):  # type: ignore[misc]  # llama_cpp is untyped
    """The baseline of comparisons: plain `llama_cpp.Llama`, with extra buffers unless a trial of its file crashes with them."""

    @property
    def model_params(self) -> Any:
        """What the model is loaded with."""
        return self._model_params

    @model_params.setter
    def model_params(self, params: Any) -> None:
        params.use_extra_bufts = check_model(self.model_path)
        self._model_params = params


class InProcess:
    """llama_cpp.Llama in this process."""

    peer = True
    exact = True

    def __init__(self, name: str, files: Files) -> None:
        self.name = name
        lookup = llama_cpp.llama_speculative.LlamaPromptLookupDecoding
        self.llm = PlainLlama(
            str(files.target), n_ctx=files.n_ctx, n_threads=files.threads,
            n_threads_batch=files.threads, n_gpu_layers=files.gpu_layers,
            draft_model=lookup() if "lookup" in name else None, verbose=False,
        )  # fmt: skip
        model = self.llm._model.model  # noqa: SLF001 - it has no method for it
        self._vocab = llama_cpp.llama_model_get_vocab(model)

    def forget(self) -> None:
        """Drop what its KV cache holds."""
        self.llm.reset()

    def answer(self, prompt: Sequence[int], max_tokens: int, options: Options) -> TimedAnswer:
        """Answer through `Llama.generate`, token by token."""
        finish = "length"
        self.llm.set_seed(options.seed)
        clock = Clock(prompt)
        # closed at once, so the next call finds its KV settled
        with contextlib.closing(self.llm.generate(prompt, temp=options.temperature)) as ids:
            for token in ids:
                clock.got([token])
                if llama_cpp.llama_vocab_is_eog(self._vocab, token):
                    finish = "stop"
                    break
                if len(clock.tokens) >= max_tokens:
                    break
        return clock.turn(finish)

    def close(self) -> None:
        """Free the model."""
        self.llm.close()


def llama_server(program: Path | str, model: Path | str, options: Sequence[str]) -> list[str]:
    """The command that starts a llama-server, without host and port."""
    return [str(program), "-m", str(model), "--no-ui", *options]


class ServerProcess:
    """A server on 127.0.0.1 with a page /health, ready once constructed. Raises PeerMissing if it does not start.

    command: what starts it, without host and port. url: its address.
    """

    def __init__(self, command: Sequence[str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            host, port = probe.getsockname()
        self.url = f"http://{host}:{port}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        where = ["--host", host, "--port", str(port)]
        self._process = subprocess.Popen([*command, *where], stdout=self._log, stderr=self._log)
        self.pid = self._process.pid
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        end = time.monotonic() + _START_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise PeerMissing(f"the server exited: {self._last_line()}")
            with (
                contextlib.suppress(OSError, HTTPException),
                _WEB.open(f"{self.url}/health", timeout=5),
            ):
                return
            time.sleep(0.1)
        raise PeerMissing(f"the server was not ready after {_START_S:.0f} s")

    def _last_line(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").split("\n")
        return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "no output")

    def lines(self, path: str, body: dict[str, Any]) -> Iterator[bytes]:
        """Yield the lines of an answer as they arrive. Raises EngineError."""
        asked = Request(self.url + path, json.dumps(body).encode(), _JSON)  # noqa: S310 - its own
        try:
            with _WEB.open(asked, timeout=_ANSWER_S) as response:
                yield from response
        except HTTPError as error:
            text = error.read(300).decode("utf-8", "replace")
            raise EngineError(f"the server answered {error.code}: {text}") from None
        except (OSError, HTTPException, ValueError) as error:
            raise EngineError(f"the server failed: {error}; {self._last_line()}") from None

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


class Server:
    """One llama-server process; answers come over HTTP, streamed."""

    peer = True
    exact = True

    def __init__(self, name: str, files: Files, program: Path, more: Sequence[str]) -> None:
        self.name = name
        self._fresh = True
        options = ["-c", str(files.n_ctx), "-t", str(files.threads), "-tb", str(files.threads),
                   "-np", "1", "-ngl", str(files.gpu_layers), "--cache-ram", "0", *more]  # fmt: skip
        try:
            self._process = ServerProcess(llama_server(program, files.target, options))
        except PeerMissing as error:
            raise PeerMissing(f"{name} is skipped: {error}") from None

    def forget(self) -> None:
        """Make the server read the next prompt from its first token."""
        self._fresh = True

    def answer(self, prompt: Sequence[int], max_tokens: int, options: Options) -> TimedAnswer:
        """Answer over HTTP. Decoding is timed by the server's own clock, which HTTP does not slow."""
        body = {
            "prompt": list(prompt), "n_predict": max_tokens, "temperature": options.temperature,
            "seed": options.seed, "cache_prompt": not self._fresh, "stream": True,
            "return_tokens": True, "repeat_penalty": 1.0,
        }  # fmt: skip
        self._fresh = False
        clock = Clock(prompt)
        last: dict[str, Any] = {}
        for line in self._process.lines("/completion", body):
            if line.startswith(b"data: "):
                last = json.loads(line[6:])
                clock.got(last.get("tokens") or [])
        turn = clock.turn("stop" if last.get("stop_type") in ("eos", "word") else "length")
        timings = last.get("timings") or {}
        turn.decode_s = timings.get("predicted_ms", 0.0) / 1e3 or turn.decode_s
        if timings.get("draft_n"):
            verified, accepted = int(timings["draft_n"]), int(timings["draft_n_accepted"])
            rounds = max(1, len(turn.tokens) - accepted)
            turn.speculation = {"rounds": rounds, "verified": verified, "accepted": accepted}
        return turn

    def close(self) -> None:
        """End the process."""
        self._process.close()


Contender = Ours | InProcess | Server
"""Each can forget what it has read, and answers a prompt's tokens."""
