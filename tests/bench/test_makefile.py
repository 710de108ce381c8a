"""Every command in bench/Makefile is one that its program accepts today: nothing is run, the real parsers read it."""

import argparse
import os
import re
import shlex
import shutil
import subprocess
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
from helpers.command_lines import read_command
from measure.contenders import parse_peer
from measure.tasks import parse_modes
from measure.variants import parse_variants

from pyspec.cli.main import cli

BENCH = Path(__file__).parents[2] / "bench"
GIVEN = ["QUESTIONS=questions.jsonl", "SERVER=llama-server"]

INSIDE = re.compile(r"\$\(([^()]*)\)|`([^`]*)`")
SHELL = {"for", "do", "done", "mkdir", "cd", "cp", "test", "tar", "rm", "cmake", "{", "}", "echo", "exit"}  # fmt: skip
"""Words that begin a command of the shell, or of a program that is not ours."""


class ParsedWords(Exception):
    """A script has read its command line."""


def targets():
    """All targets of results and models; a pattern's with a word for what it leaves open."""
    text = (BENCH / "Makefile").read_text(encoding="utf-8")
    rules = re.findall(r"^((?:results|\$\(MODELS\))/[^:=]+):(?! \w+ =)", text, re.MULTILINE)
    found = [name for line in rules for name in line.split()]
    return [name.replace("%", "q8_0").replace("$(MODELS)", "build/models") for name in found]  # fmt: skip


def expanded(*goals):
    make = [shutil.which("make") or "make", "-n", "-B", "-C", str(BENCH), *GIVEN, *goals]
    said = subprocess.run(make, capture_output=True, text=True, check=True).stdout
    lines = said.replace("\\\n", " ").splitlines()
    return [line for line in dict.fromkeys(lines) if not line.startswith("make: ")]


def commands(line):
    """The commands of a line of the shell, those inside others first."""
    for found in INSIDE.findall(line):
        yield from commands("".join(found))
    lexer = shlex.shlex(INSIDE.sub("FILE", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("&|;"):
            if words:
                yield words
            words = []
        elif words or (word != "do" and not re.match(r"[A-Z]+=", word)):
            words.append("0" if word.startswith("$") else word)


def read_script(module, words):
    """Have a script's parser read words. Raises what the parser raises."""
    own = getattr(module, module.__name__.rpartition(".")[2], module.main)
    if isinstance(own, click.Command):
        read_own(words, own)
    else:
        with pytest.raises(ParsedWords):
            module.main(words)


def read_own(words, command=cli):
    """Have the parsers of a command, `pyspec` by default, read words: its options, modes, variants and peers."""
    _, given = read_command(words, command)
    if modes := given.get("modes"):
        parse_modes(modes)
    if variants := given.get("variants"):
        parse_variants(variants)
    for peer in filter(None, (given.get("peers") or "").split(",")):
        parse_peer(peer)


@pytest.fixture
def read(script, monkeypatch):
    parse = argparse.ArgumentParser.parse_args

    def stop(parser, words=None):
        parse(parser, words)
        raise ParsedWords

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)

    def run(program, *words):
        if program == "pyspec":
            read_own(list(words))
        elif program == "python" and words[0] != "-m":
            name = words[0].removeprefix("bench/").removesuffix(".py")
            read_script(script(name), list(words[1:]))
        elif program == "python" and words[1].startswith("models.") and find_spec("torch"):
            read_script(import_module(words[1]), list(words[2:]))
        elif program not in {*SHELL, "python"}:
            raise click.UsageError(f"unknown program {program}")

    return run


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_each_command_is_accepted_by_its_program(read):
    """Options, modes, variants, peers and contenders: one that was removed fails here, not in an hour's run."""
    lines = expanded("results", "card-results", "peers", "source", *targets())
    found = [words for line in lines for words in commands(line)]
    for words in found:
        read(*words)
    assert len(found) > 100


def test_each_command_of_a_card_is_accepted_by_its_program(read, tmp_path, monkeypatch):
    """And what it names of this repository is there."""
    log, fake, model = (tmp_path / name for name in ("log", "fake", "model.gguf"))
    fake.write_text(f'#!/bin/sh\nprintf "%s\\t" "$@" >> {log}\necho >> {log}\n')
    fake.chmod(0o755)
    model.touch()
    monkeypatch.syspath_prepend(str(BENCH / "card"))
    own = {"PYTHON": str(fake), "SERVER": str(fake), "WORK": str(tmp_path)}
    run = [BENCH / "card" / "run.sh", model, tmp_path / "out"]
    subprocess.run(run, env=os.environ | own, check=True, stdout=subprocess.DEVNULL)
    asked = [line.split("\t")[:-1] for line in log.read_text().splitlines()]
    for words in asked:
        read("python", *words)
    ours = re.compile(r"(bench|models|pyspec|tests)/")
    named = {word for words in asked for word in words if ours.match(word)}
    assert {word for word in named if not (BENCH.parent / word).exists()} == set()
    assert len(asked) > 10
