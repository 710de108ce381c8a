"""Options as users of other programs write them: understood, or refused by name."""

import os
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pyspec.cli.batch import batch
from pyspec.cli.chat import chat
from pyspec.cli.command import Option
from pyspec.cli.generate import generate
from pyspec.cli.main import cli, info, main, sentences
from pyspec.cli.measure import measure
from pyspec.cli.models import draft, models
from pyspec.cli.opening import find
from pyspec.cli.options import EngineOptions, ModelOptions
from pyspec.cli.serve import serve
from pyspec.errors import OptionError


def parsed(*words, command=generate):
    return command.make_context("x", list(words)).params


@pytest.fixture
def refused(capsys):
    """What is said of a command line that is a mistake."""

    def refused_(*words):
        with pytest.raises(SystemExit) as left:
            main(list(words))
        assert left.value.code == 2
        return capsys.readouterr().err

    return refused_


NUMBERS = [
    option
    for each in (generate, chat, batch, serve, measure)
    for option in each.params
    if isinstance(option.type, type(click.FLOAT))
]
"""All options that take a number that need not be whole."""


@pytest.mark.parametrize("option", NUMBERS, ids=lambda option: option.opts[0])
def test_nan_is_no_number(option):
    """Not even in a range of click's, which has no bound that it would exceed."""
    with pytest.raises(click.BadParameter, match="nan"):
        option.type_cast_value(click.Context(generate), "nan")


@pytest.mark.parametrize(("line", "name", "value"), [
    ("-md small", "draft", "small"), ("--model-draft small", "draft", "small"), ("-sys 'be kind'", "system", "be kind"),
    ("-p hi", "more", "hi"), ("-p -hi", "more", "-hi"), ("--n-predict 7", "max_tokens", 7), ("-n7", "max_tokens", 7),
    ("-n -1", "max_tokens", -1), ("-n-1", "max_tokens", -1), ("--temperature 0.5", "temperature", 0.5),
    ("-ngl all", "n_gpu_layers", -1), ("-ngl 99", "n_gpu_layers", 99), ("-ngld 5", "draft_ngl", 5), ("-c 512", "ctx", 512),
    ("--ctx-size 512", "ctx", 512), ("-c512", "ctx", 512), ("-c 0", "ctx", 0),
    ("--continue 'And shorter?'", "going_on", True), ("-fa off 'the prompt'", "flash_attn", False), ("-ctk q8_0", "type_k", 8),
    ("-r END", "stop", ("END",)), ("--chat-template-file t.jinja", "chat_template", "t.jinja"),
    ("--template-arg enable_thinking=false", "template_args", (("enable_thinking", False),)),
    ("--template-arg effort=low", "template_args", (("effort", "low"),)), ("--dry-multiplier 0.8", "dry_multiplier", 0.8),
    ("--dry-penalty-last-n -1", "dry_penalty_last_n", -1), ("", "dry_sequence_breakers", ("\n", ":", '"', "*")),
    (r"--dry-sequence-breaker '\n' --dry-sequence-breaker X", "dry_sequence_breakers", ("\n", "X")),
    ("--xtc-probability 0.5 --xtc-threshold 0.2", "xtc_threshold", 0.2),
    ("--dynatemp-range 0.5 --dynatemp-exp 2", "dynatemp_exponent", 2.0),
])  # fmt: skip
def test_words_of_llama_cpp_and_llm(line, name, value):
    assert parsed(*shlex.split(line))[name] == value


@pytest.mark.parametrize(("line", "wanted"), [
    ("-b 64 -ub 32", {"n_batch": 64, "n_ubatch": 32}), ("-tb 3", {"n_threads_batch": 3}), ("-fa off", {"flash_attn": False}),
    ("-ctk q8_0 -ctvd f16", {"type_k": 8, "draft_type_v": 1}), ("", {}),
    ("--no-mmap --mlock -nkvo", {"use_mmap": False, "use_mlock": True, "offload_kqv": False}),
    ("-sm row -mg 1 -ts 3,1", {"split_mode": 2, "main_gpu": 1, "tensor_split": [3.0, 1.0]}),
    ("--rope-scaling yarn --rope-freq-base 5e5", {"rope_scaling_type": 2, "rope_freq_base": 5e5}),
    ("--rope-freq-scale 0.25 --yarn-orig-ctx 32768", {"rope_freq_scale": 0.25, "yarn_orig_ctx": 32768}),
    ("--lora a.gguf --lora-scale 0.5", {"lora_path": "a.gguf", "lora_scale": 0.5}),
])  # fmt: skip
def test_engine_options_become_arguments(line, wanted):
    """By llama.cpp's names; what is not given is left to llama-cpp-python. What is measured runs as it will."""
    own = {each.name for each in fields(EngineOptions)}
    given = {n: value for n, value in parsed(*shlex.split(line)).items() if n in own}
    assert EngineOptions(**given).arguments == wanted
    assert own <= {each.name for each in measure.params}


@pytest.mark.parametrize("command", [chat, batch, serve])
def test_every_door_has_the_options_of_llama_cpp(command):
    """And system prompt and a prompt cache: each is stated once, so that no door lacks one."""

    def wanted(option):
        groups = ("Machine", "Drafts", "Models")
        return getattr(option, "group", "") in groups or option.name in ("system", "prompt_cache")

    def words(of):
        return {word for each in of.params if wanted(each) for word in each.opts}

    assert words(command) >= words(generate) - {"--json"}


def help_of(command, width=100):
    return CliRunner().invoke(command, ["--help"], terminal_width=width).output


SEVERAL = [generate, chat, batch, serve]
"""Commands with the most options."""


@pytest.mark.parametrize(
    "command", [*SEVERAL, measure, draft, models, *models.commands.values(), info, cli]
)
def test_a_help_page_has_a_hundred_lines_at_most(command):
    lines = help_of(command).splitlines()
    assert len(lines) <= 100
    assert max(len(line) for line in lines if "$ " not in line) <= 100
    for each in command.params:
        if isinstance(each, Option):
            assert max(set(each.opts) - each.aliases, key=len) in " ".join(lines)


def test_a_prompt_without_quotes_is_shown_with_them(refused):
    assert shlex.quote("what's up there") in refused("generate", "what's", "up", "there")


def test_layers_on_a_build_without_devices_warn(monkeypatch, tiny_target, capsys):
    """`-ngl 99` is in many people's command lines; llama-cli goes on with the CPU as well."""
    monkeypatch.setattr("pyspec.machine.devices.layer_devices", lambda _names=(): [])
    asked = {"draft": "none", "n_gpu_layers": 99, "draft_ngl": 5}
    _, found = find(ModelOptions(model=str(tiny_target), **asked))
    assert (found["n_gpu_layers"], found["draft_n_gpu_layers"]) == (0, None)
    assert capsys.readouterr().err.count("has no device") == 1


BASH = """
    eval "$(_PYSPEC_COMPLETE=bash_source pyspec)"
    COMP_WORDS=(%s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _pyspec_completion pyspec; printf '%%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(("line", "word"), [
    ("pyspec gen", "generate"), ("pyspec generate --json-s", "--json-schema"),
])  # fmt: skip
def test_a_shell_completes_commands_and_options(line, word, tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH % line], capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "PATH": path, "HOME": str(tmp_path)}, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.split()[:1] == [word], done.stderr


@pytest.mark.parametrize(("error", "lines"), [
    (("no device", "pip install X (or Y)"), ["pyspec: no device", "pip install X (or Y)"]),
    (("no device", "build one:\npip install X"), ["pyspec: no device", "build one:", "pip install X"]),
    (("no room", "use -c (n_ctx)"), ["pyspec: no room (use -c (n_ctx))"]),
    (("a\nb", "do c"), ["pyspec: a b (do c)"]),
])  # fmt: skip
def test_a_hint_with_a_command_has_a_line_of_its_own(error, lines):
    """What is to be installed can be copied; other errors stay one line."""
    assert sentences(OptionError(*error)) == lines


def test_a_wrong_option_is_said_with_its_range(refused):
    wrong = "invalid value for '--seconds': 0.5 is not in the range x>=1.0"
    said = refused("measure", "-m", "x", "--seconds", "0.5")
    assert said == f"pyspec: {wrong} (see `pyspec measure --help`)\n"
