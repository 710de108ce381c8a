"""What a type checker reads: README's example has types, and a slip in it is found."""

import os
import re
import subprocess
import sys

import pytest
from helpers.sources import ROOT

EXAMPLE = re.findall(
    r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
)[0]

REVEALED = """
reveal_type(chunk["choices"][0]["delta"].get("content"))
reveal_type(llm.create_chat_completion(messages)["choices"][0]["message"]["content"])
reveal_type(llm.create_chat_completion(messages)["speculation"].sentence)
reveal_type(llm.create_completion("a", max_tokens=4)["choices"][0]["text"])
reveal_type(next(llm.create_completion("a", stream=True))["choices"][0]["finish_reason"])
reveal_type(llm.last_speculation.sentence)
llm.create_chat_completion(messages)["choice"]
llm.create_chat_completion(messages)["choices"][0]["message"]["contents"]
"""


CONFIG = """
[mypy]
strict = True
follow_imports = silent
[mypy-numpy.*,llama_cpp.*,llguidance.*,rich.*,msgspec.*,huggingface_hub.*,jinja2.*,psutil.*,pyspec.batch.*,pyspec.engine.*]
follow_imports = skip
ignore_missing_imports = True
[mypy-pyspec.gguf.*,pyspec.hub.*,pyspec.machine.*,pyspec.draft.*,pyspec.text.*,pyspec.grammar.*]
follow_imports = skip
[mypy-pyspec.text.parts]
follow_imports = silent
"""
"""As a user's project is checked; what the example's types do not need is left out, since reading it takes long."""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    pytest.importorskip("mypy", reason="the extra [dev] is not installed")
    script = tmp_path_factory.mktemp("typed") / "example.py"
    script.write_text(EXAMPLE + REVEALED, encoding="utf-8")
    (script.parent / "mypy.ini").write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", os.devnull, script.name],
        cwd=script.parent, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return done.stdout.splitlines()


def test_answers_have_types(said):
    types = [line.partition("Revealed type is ")[2] for line in said if "Revealed type" in line]
    assert [each.strip('"').replace("builtins.", "") for each in types] == [
        "str | None", "str | None", "str", "str", "str | None", "str",
    ]  # fmt: skip


def test_only_slips_are_errors(said):
    first, second = (line for line in said if ": error:" in line)
    assert 'no key "choice"' in first
    assert 'no key "contents"' in second
