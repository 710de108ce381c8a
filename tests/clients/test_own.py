"""llama-cpp-python's own tests, fetched from its source archive, with its class and with ours in its place.

What passes with the original passes with ours. Models that cannot be had here are stood in for by ones of their kind.
"""

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from xml.etree import ElementTree as ET

import llama_cpp
import pytest
from helpers import tiny, tiny_positions

pytest.importorskip("scipy", reason="install pyspec-llama[clients]")
BYTES = [*tiny.ASCII[:3], *(f"<0x{byte:02X}>" for byte in range(256)), *tiny.ASCII[3:]]
"""A vocabulary that spells every text: llama.cpp ends the process where one cannot, and the original class asks it to."""

DRAFTS = ("auto", "lookup", "none", "theirs")
"""What ours drafts with; the last is llama-cpp-python's own lookup."""
USUAL = "install lookup"
WAYS = [
    pytest.param(way, marks=() if way == USUAL else pytest.mark.slow)
    for way in (f"{kind} {draft}" for kind in ("class", "install") for draft in DRAFTS)
]
SAID = b'" jumps over the lazy dog."', b'" is a classic example of a"'
"""How the model that is not here goes on, and how the one that stands in for it does."""
LEFT_OUT = {
    "test_real_model": "it opens no `Llama`, and knows the tokens of a model that is not here"
}

WANTED = ("/tests/test_", "ggml-vocab-llama-spm.gguf")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Tests and the vocabulary they read, from the archive of the installed version."""
    folder = tmp_path_factory.mktemp("archive")
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python",
         f"llama-cpp-python=={llama_cpp.__version__}", "-d", str(folder)],
        check=True,
    )  # fmt: skip
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and any(name in member.name for name in WANTED):
                path = folder / Path(*Path(member.name).parts[1:])
                path.parent.mkdir(parents=True, exist_ok=True)
                data = tar.extractfile(member).read()
                path.write_bytes(data.replace(*SAID))
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory, smollm2):
    """Stand-ins for the models that the tests would fetch."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "llama.gguf").symlink_to(smollm2)
    tiny.write(folder / "hybrid.gguf", arch="lfm2", tokens=BYTES)
    tiny.write(folder / "recurrent.gguf", arch="mamba", tokens=BYTES)
    (folder / "encoder.gguf").write_bytes(tiny_positions.bert(64).build())
    return folder


def outcomes(sources, models, way):
    report = sources / f"{way}.xml"
    folder = Path(__file__).parent
    environment = {**os.environ, "PYSPEC_OWN_MODELS": str(models), "PYSPEC_OWN_WAY": way}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(folder), str(folder.parent), os.environ.get("PYTHONPATH", "")]
    )
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "own_tests", "-p", "no:cacheprovider",
         f"--junitxml={report}", "tests"],
        cwd=sources, env=environment, check=False, capture_output=True, timeout=600,
    )  # fmt: skip
    found = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        found[f"{case.get('classname')}::{case.get('name')}"] = kinds.pop() if kinds else "passed"
    return found


@pytest.fixture(scope="module")
def theirs(sources, models):
    return outcomes(sources, models, "theirs")


def test_theirs_passes_all_but_what_is_left_out(theirs):
    passed = {name.partition("::")[2] for name, outcome in theirs.items() if outcome == "passed"}
    assert {name.partition("::")[2] for name in theirs} - passed == LEFT_OUT.keys()


@pytest.mark.parametrize("way", WAYS)
def test_what_passes_with_theirs_passes_with_ours(sources, models, theirs, way):
    ours = outcomes(sources, models, way)
    passed = [name for name, outcome in theirs.items() if outcome == "passed"]
    assert {name: ours.get(name) for name in passed} == dict.fromkeys(passed, "passed")
