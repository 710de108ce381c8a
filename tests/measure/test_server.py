"""llama-server's answers, from a server made for the test."""

import sys

import pytest
from measure.contenders import Files, Server
from measure.tasks import Options

from pyspec.errors import EngineError

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
