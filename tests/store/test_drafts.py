"""Which models can draft for which, among files made for the test."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny

from pyspec.store.drafts import candidates, draft_here, known_drafts, same_tokens
from pyspec.store.header import Facts, facts_of
from pyspec.store.locate import add
from pyspec.store.sources import load_manifest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home where no other program keeps models."""
    for variable in ("OLLAMA_MODELS", "HF_HOME", "HF_HUB_CACHE", "LLAMA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path


def made(path: Path, **options: object) -> Path:
    """A tiny model under the name of its file."""
    tiny.write(path, **options)
    add(path)
    return path


def test_models_with_the_vocabulary_smallest_first(home: Path) -> None:
    """Same tokens fit, whatever else differs; other tokens, larger models and the target itself do not."""
    target = made(home / "target.gguf", n_layer=8)
    made(home / "half.gguf", n_layer=4)
    small = made(home / "small.gguf", n_layer=1)
    made(home / "large.gguf", n_layer=9)
    made(home / "other.gguf", tokens=[*tiny.TOKENS[:-1], "#"])
    made(home / "ends.gguf", eos=7)
    found = candidates(target)
    assert [c.name for c in found] == ["small", "half"]
    assert found[0].path == small
    assert found[0].share == pytest.approx(small.stat().st_size / target.stat().st_size)


def test_padding_is_no_other_vocabulary(home: Path) -> None:
    """Sizes of a family are padded differently."""
    target = made(home / "target.gguf", n_layer=8)
    made(home / "padded.gguf", tokens=[*tiny.TOKENS, *(f"[PAD{i}]" for i in range(9))])
    assert [c.name for c in candidates(target)] == ["padded"]


def test_unasked_only_much_smaller_ones(home: Path) -> None:
    """A draft of half the size costs what it gains; a recurrent one cannot be rolled back."""
    target = made(home / "target.gguf", n_layer=8)
    made(home / "half.gguf", n_layer=4)
    made(home / "recurrent.gguf", arch="mamba", n_layer=1)
    assert draft_here(target) is None
    made(home / "small.gguf", n_layer=1)
    found = draft_here(target)
    assert found is not None
    assert found.name == "small"


def test_what_is_no_model_has_no_drafts(home: Path) -> None:
    """No error, nothing found."""
    (home / "x.gguf").write_bytes(b"GGUF")
    assert candidates(home / "x.gguf") == []
    assert draft_here(home / "x.gguf") is None


@pytest.mark.parametrize(
    ("architecture", "n_vocab", "wanted"),
    [
        ("qwen2", 152064, "Qwen2.5-0.5B"),
        ("qwen3", 151936, "Qwen3-0.6B"),
        ("qwen35", 248320, "Qwen3.5-0.8B"),
        ("llama", 128256, "Llama-3.2-1B"),
        ("gemma3", 262208, "gemma-3-270m"),
        ("llama", 131072, "Mistral-Small"),
        ("llama", 49152, "SmolLM2-135M"),
    ],
)
def test_families_are_known(architecture: str, n_vocab: int, wanted: str) -> None:
    """A 7B model of each family has a draft to fetch, the smallest first."""
    facts = Facts(architecture, "Q4_K_M", "", n_vocab, "x", 4_700_000_000)
    found = known_drafts(facts, load_manifest())
    assert any(wanted in candidate.name for candidate in found)
    assert [c.size for c in found] == sorted(c.size for c in found)


def test_another_family_has_none_of_theirs() -> None:
    """Architecture alone is not enough: many families are called llama."""
    facts = Facts("llama", "Q4_K_M", "", 32000, "x", 4_700_000_000)
    assert known_drafts(facts, load_manifest()) == []


def test_known_targets_are_of_their_family(smollm2: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default target is known by the numbers of its own header."""
    facts = facts_of(Path(smollm2))
    assert facts is not None
    families = [f.name for f in load_manifest().family
                if facts.architecture in f.architectures and facts.n_vocab in f.n_vocab]  # fmt: skip
    assert families == ["SmolLM2"]


def test_a_start_does_not_wait_for_every_header(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many files that were never looked into, the smallest are looked into and the rest is left for later."""
    target = made(home / "target.gguf", n_layer=8)
    for n in range(4):
        made(home / f"other{n}.gguf", n_layer=1, tokens=[*tiny.TOKENS[:-1], str(n)])
    made(home / "fits.gguf", n_layer=2)
    times = iter(range(100))
    monkeypatch.setattr("pyspec.store.drafts.monotonic", lambda: 0.2 * next(times))
    assert draft_here(target) is None
    monkeypatch.setattr("pyspec.store.drafts.monotonic", lambda: 0.0)
    found = draft_here(target)
    assert found is not None
    assert found.name == "fits"


def test_equal_tokens_are_known_by_their_hash(home: Path) -> None:
    """Files of one vocabulary, and none of another text, number or end token; what is no model is not known."""
    target = made(home / "target.gguf", n_layer=2)
    others = {
        "same": {},
        "text": {"tokens": [*tiny.TOKENS[:-1], "#"]},
        "more": {"tokens": [*tiny.TOKENS, "[PAD32]"]},
        "ends": {"eos": 7},
    }
    found = {
        name for name, o in others.items() if same_tokens(target, made(home / f"{name}.gguf", **o))
    }
    assert found == {"same"}
    (home / "junk.gguf").write_bytes(b"junk")
    assert not same_tokens(target, home / "junk.gguf")
