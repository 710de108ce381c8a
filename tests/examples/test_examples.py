"""Every example runs unchanged, with a tiny model in place of the default one."""

import json
import re
from pathlib import Path

import pytest
from helpers.running import port_of, run_python, start

HERE = Path(__file__).parent
SCRIPTS = sorted(path for path in HERE.glob("*.py") if path != Path(__file__))


@pytest.fixture
def server(tiny_ascii):
    with start("serve", "-m", tiny_ascii, "-t", "1", "-c", "512", "--port", "0") as process:
        yield f"http://127.0.0.1:{port_of(process)}/v1"


def run(script, argument, folder):
    done = run_python(script, argument, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


SAYS = {
    "batch": r"What is a cat\? .*\((stop|length|context)\)",
    "chat": r"tokens/s",
    "own_draft": r"\d+ tokens drafted, \d+ accepted: .*tokens/s",
    "stream": r"tokens/s",
    "with_asyncio": r"the loop went on [1-9]\d* times meanwhile",
    "with_langchain": r"tokens/s",
    "with_openai": r"",
}
"""What each one has to print, by name."""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_run(script, request, tiny_ascii, tmp_path):
    if script.stem == "with_langchain":
        pytest.importorskip("langchain_community", reason="install pyspec-llama[clients]")
    argument = str(tiny_ascii)
    if script.stem == "with_openai":
        pytest.importorskip("openai", reason="install pyspec-llama[clients]")
        argument = request.getfixturevalue("server")
    said = run(script, argument, tmp_path)
    assert said.strip()
    assert re.search(SAYS[script.stem], said)


NOTEBOOK = json.loads((HERE / "first_steps.ipynb").read_text(encoding="utf-8"))
CELLS = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_has_its_outputs():
    """Of each cell but the last, which closes the model; nothing in them is of the machine that made them."""
    assert [bool(cell["outputs"]) for cell in CELLS] == [True] * (len(CELLS) - 1) + [False]
    shown = json.dumps([cell["outputs"] for cell in CELLS])
    assert "plain decoding" in shown
    assert not re.search(r"/(home|root|tmp|work|Users)/|\d{2}:\d{2}", shown)


def test_the_notebook_runs(tiny_ascii, monkeypatch, tmp_path):
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "cache"))
    names, shown = {}, []
    for cell in CELLS:
        *lines, last = (
            "".join(cell["source"])
            .replace('"smollm2-135m-instruct"', repr(str(tiny_ascii)))
            .split("\n")
        )
        exec("\n".join(lines), names)  # noqa: S102 - our own notebook
        shown.append(eval(last, names))  # noqa: S307 - as above
    assert shown[0] == 2048
    assert "tokens/s" in shown[2]
    assert shown[4] is True  # the text without drafts is the same


@pytest.mark.parametrize(
    ("name", "pattern"),
    [("pyspec.service", r"ExecStart=\S+/pyspec serve (.*)"), ("Dockerfile", r'"pyspec", "serve", (.*)\]')],
)  # fmt: skip
def test_what_starts_a_server_names_its_options(name, pattern):
    """Each word that begins with dashes is one of `pyspec serve`, and the time to end is longer than --drain."""
    from pyspec.cli.serve import serve

    text = (HERE / name).read_text()
    words = [word.strip('",') for word in re.search(pattern, text).group(1).split()]
    known = {option for parameter in serve.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known
    limit = re.search(r"(?:TimeoutStopSec=|--stop-timeout )(\d+)", text).group(1)
    assert int(limit) > int(words[words.index("--drain") + 1])
