"""Who answers: modes of one model, plain llama.cpp beside them, and a llama-server, here one that was made for the test."""

import ast
import math
import sys
from contextlib import closing
from pathlib import Path

import pytest
from measure.contenders import Files, Ours, PlainLlama, Server, lacks
from measure.tasks import Options, parse_mode, parse_modes

from pyspec.errors import EngineError, OptionError
from pyspec.sampling.verification import Margin, Strict

ROOT = Path(__file__).parents[2]
SMALL = {"n_ctx": 64, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
ITS_OWN = {"pyspec/engine/target.py"}
"""Where `llama_cpp.Llama` is made safe."""


PROGRAM = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"{{}}")
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["prompt"] == [9]:
            self.send_response(400); self.end_headers(); self.wfile.write(b"too long"); return
        self.send_response(200); self.end_headers()
        last = {{"tokens": [], "stop_type": "eos", "timings":
                 {{"predicted_ms": 500.0, "draft_n": 4, "draft_n_accepted": 2}}}}
        fresh = [int(not body["cache_prompt"])]
        for chunk in ({{"tokens": fresh}}, {{"tokens": [7, 8]}}, last):
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\\n\\n")

port = int(sys.argv[sys.argv.index("--port") + 1])
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def llm(open_llama, tiny_target, tiny_draft):
    return open_llama(tiny_target, draft=f"lookup+{tiny_draft}", length="auto")


def test_a_mode_drafts_with_what_it_names_alone_and_finds_an_empty_kv(llm):
    for text, drafts in {
        "fixed:4+strict+nothing": 0,
        "strict+model+fixed:4": 1,
        "plain": 0,
    }.items():
        mode = Ours(llm, parse_mode(text))
        mode.forget()
        mode.answer([5, 6, 7, 8], 24, Options())
        assert (llm.last_speculation["drafted"] > 0) == drafts
        assert llm.last_speculation["prompt_kept"] == 0


def test_what_is_not_loaded_is_said(llm):
    assert "companion" in lacks(llm, parse_mode("companion+strict"))
    assert lacks(llm, parse_mode("lookup+strict")) == ""


@pytest.mark.parametrize(("text", "rule", "exact", "speculates"), [
    ("plain", Strict(), True, False),
    ("strict", Strict(), True, True),
    ("margin/gap=inf/theta=0.84/budget=8", Margin(0.84, math.inf, 8.0), False, True),
])  # fmt: skip
def test_a_mode_has_a_rule_and_is_exact_without_an_open_gate(text, rule, exact, speculates):
    mode = parse_mode(text)
    assert (mode.rule, mode.exact, mode.speculation.enabled) == (rule, exact, speculates)


@pytest.mark.parametrize(
    "text",
    ["", "fast", "fixed:x", "margin/gap=a", "margin/speed=2", "strict/gap=1", "plain,plain",
     "margin/theta=2", "fixed:4+", "plain+strict", "margin+block"],
)  # fmt: skip
def test_nonsense_is_an_option_error(text):
    with pytest.raises(OptionError):
        parse_modes(text)


def unsafe(source):
    calls = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call)]
    names = [ast.unparse(call.func) for call in calls]
    own = ("Llama", "llama_cpp.Llama", "lc.Llama")
    found = [n for n in names if n.removesuffix(".from_pretrained") in own]
    defaults = [n for n in names if n.endswith("llama_model_default_params")]
    return found + (defaults if "use_extra_bufts" not in source else [])


def test_no_source_loads_without_a_word_on_extra_buffers():
    """The package, the benchmarks and the recipe; a peer that dies would end the comparison."""
    found = {}
    for folder in ("pyspec", "bench", "models"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if ROOT / "bench" / "build" in path.parents:
                continue  # other programs
            name = path.relative_to(ROOT).as_posix()
            if name not in ITS_OWN and (calls := unsafe(path.read_text(encoding="utf-8"))):
                found[name] = calls
    assert found == {}


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("works", [True, False])
def test_a_trial_decides_for_the_peers_too(tiny_target, works, monkeypatch):
    """Where AMX's kernels crash, the plain one would end the comparison."""
    monkeypatch.setattr("pyspec.gguf.check._trial", lambda *_: works)
    with closing(PlainLlama(str(tiny_target), **SMALL)) as llm:
        assert llm.model_params.use_extra_bufts is works


@pytest.fixture
def server(tmp_path):
    program = tmp_path / "llama-server"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    peer = Server("server", Files(tmp_path / "m.gguf", None, 64, 1), program, [])
    yield peer
    peer.close()


def test_tokens_are_joined_and_timed_by_the_servers_clock(server):
    turn = server.answer([1, 2], 8, Options())
    assert turn.tokens == [1, 7, 8]
    assert (turn.decode_s, turn.finish) == (0.5, "stop")
    assert turn.speculation == {"rounds": 1, "verified": 4, "accepted": 2}
    with pytest.raises(EngineError, match="400: too long"):
        server.answer([9], 8, Options())
    server.close()
    assert server._process._process.poll() is not None


def test_the_prompt_cache_is_used_between_turns_only(server):
    """The server here answers 1 where the cache was off."""
    server.forget()
    assert [server.answer([1], 8, Options()).tokens[0] for _ in range(2)] == [1, 0]
    server.forget()
    assert server.answer([1], 8, Options()).tokens[0] == 1
