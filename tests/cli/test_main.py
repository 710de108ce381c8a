"""What the command says where something below it is broken: a sentence and what mends it, never a traceback."""

import json
import os
import subprocess
import sys

import pytest
from helpers import running

from pyspec import __main__ as entry
from pyspec._version import LLAMA_CPP_VERSION, __version__
from pyspec.cli.main import main

PINNED = f"llama-cpp-python=={LLAMA_CPP_VERSION}"

BROKEN = [
    ("raise RuntimeError(\"Failed to load shared library 'libllama.so'\")", "libllama.so"),
    ("raise AttributeError('undefined symbol: llama_decode')", "llama_decode"),
    ("raise FileNotFoundError('no library llama')", "no library llama"),
    ("import no_such_module", "no_such_module"),
]


def run(code, *folders):
    path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **running.QUIET, "PYTHONPATH": path}
    words = [sys.executable, "-c", code]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)


ALONE = """
import sys
from pyspec.cli.main import main
for words in (["generate", "hi"], ["chat"], ["info"]):
    for name in [each for each in sys.modules if each.startswith(("pyspec", "llama_cpp")) and each != "pyspec.cli.main"]:
        del sys.modules[name]
    try:
        main(words)
    except SystemExit as ended:
        print(ended.code, flush=True)
"""
"""Each command as the first of a process that finds llama_cpp."""


@pytest.mark.parametrize(("code", "reason"), BROKEN)
def test_a_llama_cpp_that_does_not_load(tmp_path, code, reason):
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp/__init__.py").write_text(code)
    done = run(ALONE, tmp_path)
    assert done.stdout.split() == ["1"] * 3
    lines = done.stderr.splitlines()
    assert len(lines) == 6
    for said, mend in zip(lines[::2], lines[1::2]):
        assert said.startswith("pyspec: llama-cpp-python cannot be loaded: ")
        assert reason in said
        assert mend.startswith("pip install ")
        assert mend.endswith(PINNED)


@pytest.mark.parametrize("command", ["generate", "models", "draft", "info"])
def test_help_waits_for_no_arithmetic(command):
    """What computes takes longer to load than all the rest that help needs."""
    code = f"""
import sys
from pyspec.cli.main import main
try:
    main([{command!r}, "--help"])
except SystemExit:
    print([name for name in ("numpy", "llama_cpp") if name in sys.modules], file=sys.stderr)
"""
    done = run(code)
    assert done.stdout.startswith("Usage")
    assert done.stderr.strip() == "[]"


def test_a_llama_cpp_of_another_version():
    """As `pip install -U` leaves it."""
    code = "import llama_cpp; llama_cpp.__version__ = '9.9.9'; from pyspec.cli.main import main; main(['generate', 'hi'])"
    done = run(code)
    (said,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert "9.9.9 is installed" in said
    assert f"`pip install {PINNED}`" in said


def test_other_errors_stay_errors(monkeypatch):
    """A fault of ours is not the library's."""
    monkeypatch.setattr("pyspec.cli.main._Lazy.resolve_command", lambda *_: {}["x"])
    with pytest.raises(KeyError):
        main(["info"])


@pytest.fixture
def said(capsys):
    """What a command says that ends well."""

    def said_(*words):
        with pytest.raises(SystemExit) as left:
            main(list(words))
        assert not left.value.code
        return capsys.readouterr().out

    return said_


def test_info_as_json(said, monkeypatch):
    """Whoever removes pyspec deletes the folders; an empty variable means that nothing is left there."""
    monkeypatch.setenv("PYSPEC_CHATS", "/of/chats")
    monkeypatch.setenv("PYSPEC_CHAT_HISTORY", "")
    found = json.loads(said("info", "--json"))
    assert found["pyspec"] == __version__
    assert (type(found["threads"]), type(found["devices"])) == (int, list)
    assert found["backends"]
    assert (found["chats"], found["chat-history"]) == ("/of/chats", "none")


class Interrupted:
    """A finder of modules during whose work Ctrl-C is pressed."""

    def find_spec(self, name, *_):
        if name == "pyspec.cli.main":
            raise KeyboardInterrupt


def test_ctrl_c_during_the_imports_is_no_traceback(monkeypatch):
    monkeypatch.delitem(sys.modules, "pyspec.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as left:
        entry.run()
    assert left.value.code == 130
