"""Folders laid out as ollama, LM Studio, the Hugging Face cache and llama.cpp lay them out."""

import json

import pytest
from helpers import programs
from helpers.make_gguf import tiny_llama

from pyspec.engine.contexts import longest_context
from pyspec.errors import ModelInvalid, ModelNotFound, OptionError
from pyspec.gguf.header import check_adapter, facts_of, shape_of
from pyspec.hub.locate import find_here, found_here, remove, resolve
from pyspec.hub.sources import load_manifest
from pyspec.machine.files import models_dir
from pyspec.machine.others import found_elsewhere, name_of, owners_name, quant_of

TINY = tiny_llama().build()
COMMIT = "a" * 40

pytestmark = pytest.mark.usefixtures("home")


def put(path, raw=TINY):
    return programs.put(path, raw)


def ollama(root, name, raw=TINY, **where):
    return programs.pulled(root, name, template=b"{{ x }}", model=raw, **where)


def lm_studio(root, file="toy-Q4_K_M.gguf"):
    """What LM Studio leaves: PUBLISHER/REPOSITORY/FILE."""
    put(root / f"maker/toy-GGUF/mmproj-{file}", b"x")
    return put(root / "maker/toy-GGUF" / file)


def hugging_face(root):
    return programs.snapshot(root, "maker/toy-GGUF", **{"toy-Q4_K_M": TINY})


def llama_cpp(root):
    """What `llama-cli -hf` leaves, with a manifest beside it."""
    put(root / "manifest=maker=toy-GGUF=Q4_K_M.json", b"{}")
    return put(root / "maker_toy-GGUF_toy-Q4_K_M.gguf")


@pytest.mark.parametrize(("own", "name"), [
    ("toy:135m", "toy:135m"), ("toy:135m", "TOY:135m"), ("toy:135m", "registry.ollama.ai/library/toy:135m"),
    ("toy:latest", "toy"), ("toy:latest", "toy:latest"),
])  # fmt: skip
def test_ollama_by_the_name_it_has_there(home, own, name):
    blob = ollama(home / ".ollama/models", own)
    assert resolve(name) == blob


@pytest.mark.parametrize(("make", "name"), [
    (lambda home: ollama(home / "anywhere", "toy:135m"), "toy:135m"),  # the path alone tells
    (lambda home: hugging_face(home / "hub"), "maker/toy-GGUF:Q4_K_M"),  # as in lists
    (lambda home: home / "cache/models" / f"maker--toy-GGUF--{COMMIT}--toy-Q4_K_M.gguf", "maker/toy-GGUF:Q4_K_M"),
    (lambda home: home / "cache/models" / f"maker--toy-GGUF--{COMMIT}--sub--toy-draft-Q8_0.gguf",
     "maker/toy-GGUF/sub/toy-draft-Q8_0.gguf"),
    (lambda home: home / "cache/models/toy-135m-q4_0.gguf", "toy-135m-q4_0"),
    (lambda home: home / "cache/models/toy-00001-of-00003.gguf", "toy"),
    (lambda home: home / "a--b--c--d.gguf", "a--b--c--d"),  # a user's own: dashes mean nothing
])  # fmt: skip
def test_a_file_is_known_by_its_name(home, make, name):
    """Where its own is a hash or a revision, by the one that its program has."""
    assert name_of(make(home)) == name


def test_of_several_names_the_one_that_says_most(home):
    """`latest` may be another one tomorrow."""
    for name in ("toy:latest", "toy:tiny"):
        blob = ollama(home / ".ollama/models", name)
    assert name_of(blob) == "toy:tiny"


def test_a_blob_that_nothing_names_keeps_its_own(home):
    """Its manifest was removed: there is nothing else to call it by."""
    blob = ollama(home / "ollama", "toy:135m")
    (home / "ollama/manifests/registry.ollama.ai/library/toy/135m").unlink()
    assert (owners_name(blob), name_of(blob)) == ("", blob.name)


def test_a_refusal_names_a_file_of_ollamas(home):
    blob = ollama(home / "ollama", "toy:135m")
    with pytest.raises(ModelInvalid, match=r"toy:135m.: this is not a LoRA adapter"):
        check_adapter(blob)


@pytest.mark.parametrize(("file", "wanted"), [
    ("Qwen2.5-0.5B-Instruct-Q4_K_M.gguf", "Q4_K_M"), ("qwen2.5-0.5b-instruct-q8_0.gguf", "Q8_0"),
    ("Llama-3.2-1B-Instruct-f16.gguf", "F16"), ("x.Q4_1.gguf", "Q4_1"), ("x-IQ2_XXS.gguf", "IQ2_XXS"),
    ("x-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"), ("x-BF16-00001-of-00002.gguf", "BF16"), ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
    ("model.gguf", ""), ("Qwen3-0.6B.gguf", ""),
])  # fmt: skip
def test_types_in_file_names(file, wanted):
    assert quant_of(file) == wanted


def test_models_of_users_and_of_the_hub_in_ollama(home):
    """Those names have a slash; they are found before the hub is asked."""
    root = home / ".ollama/models"
    mine = ollama(root, "toy:1b", where="registry.ollama.ai/somebody")
    hubs = ollama(root, "toy-GGUF:Q4_K_M", TINY + b"\0" * 32, where="hf.co/maker")
    assert resolve("somebody/toy:1b") == mine
    assert resolve("hf.co/maker/toy-GGUF:Q4_K_M") == resolve("maker/toy-GGUF:Q4_K_M") == hubs


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"layers": 3}', '{"layers": [1, {"mediaType": 2}]}', "[" * 100000]
)
def test_a_manifest_that_is_none(home, text):
    root = home / ".ollama/models"
    ollama(root, "toy:1b")
    (root / "manifests/registry.ollama.ai/library/toy/bad").write_text(text)
    assert [found.name for found in found_elsewhere()] == ["toy:1b"]


def test_a_digest_is_no_path(home):
    root = home / ".ollama/models"
    ollama(root, "toy:1b")
    manifest = root / "manifests/registry.ollama.ai/library/toy/1b"
    manifest.write_text(manifest.read_text().replace("sha256:", "../../sha256:"))
    assert found_elsewhere() == []


PLACES = {
    "LM Studio": (lm_studio, ".lmstudio/models"),
    "Hugging Face": (hugging_face, ".cache/huggingface/hub"),
    "llama.cpp": (llama_cpp, ".cache/llama.cpp"),
}


@pytest.mark.parametrize("name", ["toy-Q4_K_M", "toy-Q4_K_M.gguf", "maker/toy-GGUF", "maker/toy-GGUF:Q4_K_M",
                                  "maker/toy-GGUF:q4_k_m", "toy-GGUF", "toy", "maker/toy-GGUF/toy-Q4_K_M.gguf",
                                  "hf:maker/toy-GGUF/toy-Q4_K_M.gguf",
                                  "https://huggingface.co/maker/toy-GGUF/blob/main/toy-Q4_K_M.gguf"])  # fmt: skip
@pytest.mark.parametrize("program", PLACES)
def test_files_by_stem_and_repository(home, program, name):
    make, folder = PLACES[program]
    made = make(home / folder)
    assert resolve(name) == made
    assert [found.origin for found in found_elsewhere()] == [program]


@pytest.mark.parametrize(("program", "file"), [
    ("LM Studio", ".lmstudio/models/maker/big-GGUF/big"),
    ("Hugging Face", ".cache/huggingface/hub/models--maker--big-GGUF/snapshots/ab/big"),
    ("llama.cpp", ".cache/llama.cpp/maker_big-GGUF_big"),
    ("pyspec", f"maker--big-GGUF--{COMMIT}--big"),
])  # fmt: skip
@pytest.mark.parametrize("missing", [0, 1, 2, None])
def test_a_split_model_without_a_part_is_not_listed(home, program, file, missing):
    for i in {0, 1, 2} - {missing}:
        root = models_dir() if program == "pyspec" else home
        put(root / f"{file}-0000{i + 1}-of-00003.gguf")
    here = [found for found in found_here(load_manifest()) if "big" in found.path.name]
    assert [found.origin for found in here] == ([program] if missing is None else [])


def test_lm_studio_may_have_moved(home):
    (home / ".lmstudio-home-pointer").write_text(str(home / "studio"))
    put(home / "studio/settings.json", json.dumps({"downloadsFolder": str(home / "big")}).encode())
    path = lm_studio(home / "big")
    assert resolve("toy-Q4_K_M") == path


@pytest.mark.parametrize(("variable", "make", "below"), [
    ("HF_HOME", hugging_face, "hub"), ("HF_HUB_CACHE", hugging_face, ""), ("HUGGINGFACE_HUB_CACHE", hugging_face, ""),
    ("XDG_CACHE_HOME", hugging_face, "huggingface/hub"), ("LLAMA_CACHE", llama_cpp, ""),
    ("OLLAMA_MODELS", lambda root: ollama(root, "toy:latest"), ""),
])  # fmt: skip
def test_a_variable_moves_the_folder(home, monkeypatch, variable, make, below):
    monkeypatch.setenv(variable, str(home / "moved"))
    path = make(home / "moved" / below)
    assert resolve("toy") == path


def test_a_repository_of_several_types(home):
    for kind in ("Q8_0", "Q4_K_M", "F16"):
        lm_studio(home / ".lmstudio/models", file=f"toy-{kind}.gguf")
    assert resolve("maker/toy-GGUF").name == "toy-Q4_K_M.gguf"
    assert resolve("maker/toy-GGUF:f16").name == "toy-F16.gguf"


def test_a_folder_that_cannot_be_read(home):
    root = home / ".lmstudio/models"
    path = lm_studio(root)
    (root / "loop").symlink_to(root)
    (root / "gone.gguf").symlink_to(home / "nowhere")
    assert resolve("toy-Q4_K_M") == path


def test_other_programs_models_are_left_to_them(home):
    blob = ollama(home / ".ollama/models", "toy:1b")
    with pytest.raises(OptionError, match="ollama rm toy:1b"):
        remove("toy:1b")
    assert blob.exists()
    with pytest.raises(OptionError, match="a part of pyspec"):
        remove("smollm2-eagle3")
    with pytest.raises(ModelNotFound):
        remove("nothing")


def test_facts_are_found_out_once(home, monkeypatch):
    path = put(home / "my.gguf")
    first = facts_of(path)
    monkeypatch.setattr("pyspec.gguf.header.parse_header", lambda _: pytest.fail("read again"))
    assert facts_of(path) == first
    assert shape_of(path) == first.shape
    assert longest_context(path, [], 0, (), 1) == first.n_ctx
    assert find_here("nothing") is None
