"""`pyspec generate`, as a user calls it."""

import json
import re
import signal
import subprocess
import sys
from functools import partial

import pytest
from helpers import running, scripted, tiny
from helpers.running import start

from pyspec.chat.dialogue import MAX_TEXT
from pyspec.engine.handle import Engine
from pyspec.text.parts import Piece

COMMON = ["-t", "1", "--temp", "0", "-n", "12", "--draft", "lookup"]
TINY = ["--trust-model", "-t", "1", "--temp", "0"]

run = partial(running.run, "generate", stdin=b"")


def test_answer_on_stdout_and_one_sentence_on_stderr(smollm2):
    done = run("Say hello.", "-m", smollm2, *COMMON)
    assert done.returncode == 0
    assert done.stdout.strip()
    cut, sentence = done.stderr.splitlines()
    assert cut == "stopped at 12 tokens; -n 24 allows more, -n -1 has no limit"
    assert re.match(r"[0-9.]+ tokens/s", sentence)


def test_statistics_are_a_line_more_or_nothing(tiny_ascii):
    common = ["x", "-m", str(tiny_ascii), *TINY, "-n", "3"]
    full = run(*common, "--stats").stderr.splitlines()
    assert (len(full), " | prompt 1, 0 kept | " in full[2]) == (3, True)
    assert len(run(*common, "--no-stats").stderr.splitlines()) == 1


def test_another_model_that_goes_on_is_named(tmp_path, monkeypatch):
    common = ["x", *TINY, "-n", "3", "--draft", "none"]
    stays, gone = scripted.write(tmp_path), tmp_path / "gone.gguf"
    tiny.write(gone, tokens=tiny.ASCII, template=scripted.CHATML, noise=0.2)
    chats = str(tmp_path / "chats")
    assert run("-m", gone, *common, PYSPEC_CHATS=chats).returncode == 0
    gone.unlink()
    monkeypatch.setattr("pyspec.cli.opening.resolve", lambda *_: stays)
    done = run("--continue", *common, PYSPEC_CHATS=chats)
    assert "this conversation was held with gone, not with scripted" in done.stderr


def test_json_is_one_object(smollm2):
    done = run("Count to five.", "-m", smollm2, *COMMON, "--json", "--tokens")
    report = json.loads(done.stdout)
    assert report["usage"]["completion_tokens"] == len(report["tokens"]) <= 12
    parts = ("load", "prefill", "draft", "verify", "other", "total")
    assert set(report["timings"]) >= {f"{part}_ms" for part in parts}
    counts = {"rounds", "drafted", "verified", "accepted", "relaxed", "relaxed_nats"}
    assert set(report["speculation"]) >= counts
    assert "".join(token["text"] for token in report["tokens"]).startswith(report["text"][:3])
    how = ("--tokens", "--length", "fixed:3")
    *_, legend = run("Count to five.", "-m", smollm2, *COMMON, *how).stdout.splitlines()
    assert legend.startswith("target: ")


@pytest.mark.parametrize(("variables", "coloured"), [
    ({}, False), ({"FORCE_COLOR": "1"}, True), ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
])  # fmt: skip
def test_no_color_is_heard(tiny_ascii, variables, coloured):
    drafts = ("--draft", "lookup", "--length", "fixed:3", "--tokens")
    done = run("abcabcabc", "-m", tiny_ascii, *TINY, "-n", "40", *drafts, **variables)
    assert done.returncode == 0, done.stderr
    assert ("\x1b[32m" in done.stdout) is coloured


@pytest.mark.parametrize("more", [[], ["--tokens"]])
def test_no_line_of_a_pipe_is_folded(tiny_ascii, more):
    """Nor where FORCE_COLOR makes a terminal of it, as in CI."""
    text = "word " * 30 + "end."
    form = ("--grammar", f'root ::= "{text}"', "--draft", "none", "-n", len(text) + 1)
    done = run("x", "-m", tiny_ascii, *TINY, *form, *more, FORCE_COLOR="1")
    assert re.sub(r"\x1b\[\d*m", "", done.stdout).startswith(f"{text}\n")


@pytest.mark.parametrize(("most", "code"), [(4, 3), (40, 0), (0, 0)])
def test_a_cut_answer_of_a_form_has_its_own_status(tmp_path, most, code):
    """A script must not take half of a JSON text for a whole one."""
    form = ("--grammar", scripted.script('{"a": "bcd"}'))
    done = run("x", "-m", scripted.write(tmp_path), *TINY, *form, "-n", most)
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize(("args", "code", "says"), [
    (["--temp", "nan", "x"], 2, "--temp"), (["--temp", "-1", "x"], 2, "--temp"), (["--top-p", "0", "x"], 2, "top_p"),
    (["-n", "-5", "x"], 2, "-n"), (["--theta", "1.5", "x"], 2, "theta"), (["--gap", "-1", "x"], 2, "gap"),
    (["--draft-max", "-1", "x"], 2, "draft_max"), (["--length", "sometimes", "x"], 2, "length"), ([], 2, "prompt"),
    (["-f", "/nowhere/at/all", "--draft", "none"], 2, "/nowhere/at/all"), (["x", "-m", "no-such-model"], 1, "no-such-model"),
    (["x", "-m", "/dev/zero"], 1, "/dev/zero"), (["x", "-m", "/nowhere/model.gguf"], 1, "/nowhere/model.gguf"),
    (["b\udcff"], 2, "UTF-8"), (["x", "-s", "b\udcff"], 2, "--system-prompt is not UTF-8"),
    (["x", "--stop", "b\udcff"], 2, "not UTF-8"), (["x", "--tempp", "1"], 2, "--temp"),
    (["x", "-m", "~nobody-here/model.gguf"], 1, "~nobody-here/model.gguf"),
    (["x", "--nope"], 2, "no such option '--nope' (did you mean one of: "), (["x", "-p", "y"], 2, "twice"),
    (["x", "-ngl", "some"], 2, "all"), (["x", "-ngl", "-5"], 2, "-5 is no number of layers"),
    (["x", "-ctv", "q8_0", "-fa", "off"], 2, "flash attention"),
    (["x", "-ts", "1,x"], 2, "--tensor-split"),
    (["x", "--json-schema", "{"], 2, "JSON"), (["x", "--grammar", "root ::= ["], 2, "grammar"),
    (["x", "--json-schema", "{}", "--grammar", 'root ::= "a"'], 2, "only one schema or grammar"),
])  # fmt: skip
def test_expected_errors_are_one_sentence(smollm2, args, code, says):
    model = [] if "-m" in args else ["-m", smollm2]
    done = run(*args, *model, "-t", "1")
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_draft_behind_lookup_is_checked_too(smollm2, tmp_path):
    damaged = tmp_path / "draft.gguf"
    damaged.write_bytes(b"no model")
    by_itself = run("x", "-m", smollm2, "--draft", str(damaged), "-t", "1")
    behind = run("x", "-m", smollm2, "--draft", f"lookup+{damaged}", "-t", "1")
    assert (behind.returncode, behind.stderr) == (by_itself.returncode, by_itself.stderr)
    assert "not a GGUF" in behind.stderr


@pytest.mark.parametrize(("args", "stdin", "code", "says"), [
    (["-"], b"ab\ncd\xff", 2, "byte 5, line 2"),
    (["-"], b"x" * (MAX_TEXT + 1), 2, "1048576 bytes"),
    (["word " * 300, "-c", "64", "-t", "1"], b"", 1, "the context holds"),
])  # fmt: skip
def test_a_prompt_that_cannot_be_read_is_refused(smollm2, args, stdin, code, says):
    done = run(*args, "-m", smollm2, stdin=stdin)
    assert (done.returncode, says in done.stderr) == (code, True)


def test_closed_pipe_is_quiet(tiny_ascii):
    words = f"generate 'Count to ten.' -m '{tiny_ascii}' -t 1 --temp 0 -n 24"
    line = f"{sys.executable} -m pyspec {words} | head -c 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, timeout=120, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (141, False)


@pytest.mark.parametrize("new", [False, True])
def test_ctrl_c_keeps_the_partial_answer(tiny_ascii, new):
    words = ["Tell a very long story.", "-m", tiny_ascii, "-t", "1", "-c", "0", "-n", "-1"]
    halts = (Engine.accept, 20)
    with start("generate", *words, "--draft", "none", new=new, halts=halts) as child:
        child.halted()
        child.send(signal.SIGINT)
        child.send(signal.SIGCONT)
        code, stdout, stderr = child.ended()
    assert (code, stdout == "") == (130, False)
    assert "tokens/s" in stderr


def test_an_end_before_the_answer_is_said(tiny_ascii, monkeypatch):
    """As by Ctrl-C while a long prompt is read: nothing else would be printed."""
    ended = iter([Piece((), "cancelled")])
    monkeypatch.setattr("pyspec.chat.talk.LlamaChat.answer", lambda *_, **__: ended)
    done = run("x", "-m", tiny_ascii, "--trust-model", "-t", "1", "--draft", "none")
    assert done.returncode == 130
    assert done.stderr.splitlines() == ["stopped before the answer began"]


def test_reasoning_is_no_part_of_what_a_pipe_gets(tmp_path):
    said = ["--grammar", scripted.script("<think>Hm.</think>Yes.")]
    ask = partial(run, "x", "-m", scripted.write(tmp_path, "<think>"), *TINY, *said)
    assert ask("-n", "60", "--no-stats").stdout == "Yes.\n"
    report = json.loads(ask("-n", "60", "--json").stdout)
    assert (report["text"], report["reasoning"]) == ("Yes.", "Hm.")
    cut = ask("-n", "9", "--no-stats")
    assert cut.stdout == "\n"
    assert "stopped at 9 tokens inside its reasoning" in cut.stderr
