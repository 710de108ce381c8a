"""Sidecars of coupled drafts."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from pyspec.errors import DraftMismatch, ModelInvalid
from pyspec.store.cache import cache_dir, file_sha256
from pyspec.store.coupling import find_sidecar, norms_digest, read_coupling, read_embeddings


@pytest.fixture
def sidecar(tiny_draft, tiny_target, tmp_path):
    """A sidecar of `tiny_draft` for `tiny_target`."""
    path = tmp_path / "draft.npz"
    np.savez(path, **fields(tiny_draft, tiny_target))
    return path


def fields(draft, target, **other):
    """What a sidecar holds."""
    made = {
        "format": np.int64(1),
        "w_h": np.zeros((32, 32), np.float16),
        "w_s": np.ones((32, 32), np.float16),
        "target_sha256": np.array(file_sha256(target)),
        "target_norms": np.array(norms_digest(target)),
        "draft_sha256": np.array(file_sha256(draft)),
    }
    return made | other


def test_matrices_and_embeddings_come_back(sidecar, tiny_draft, tiny_target):
    """The matrices are the sidecar's and the embeddings the draft's own, as float32."""
    coupling = read_coupling(sidecar, tiny_draft, tiny_target)
    tensor = next(t for t in gguf.GGUFReader(tiny_draft).tensors if t.name == "token_embd.weight")
    assert np.array_equal(coupling.embeddings, tensor.data)
    assert coupling.w_s.dtype == np.float32
    assert coupling.w_s.all()


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_each_type_expands_as_ggml_has_it(kind, tmp_path):
    """Quantised embeddings are read as the gguf package reads them."""
    values = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    of = gguf.GGMLQuantizationType[kind]
    packed = gguf.quantize(values, of)
    from pyspec.store.coupling import _EXPAND

    ours = _EXPAND[kind.lower()](np.ascontiguousarray(packed).view(np.uint8).reshape(-1))
    assert np.array_equal(np.asarray(ours, np.float32).reshape(64, 64), gguf.dequantize(packed, of))


def test_another_targets_sidecar_is_refused(sidecar, tiny_draft, tiny_sliding):
    """A sidecar made for another target is refused before anything runs."""
    with pytest.raises(DraftMismatch, match="another target"):
        read_coupling(sidecar, tiny_draft, tiny_sliding)


def test_another_drafts_sidecar_is_refused(sidecar, tiny_companion, tiny_target):
    """A sidecar made for another draft is refused."""
    with pytest.raises(DraftMismatch, match="another draft"):
        read_coupling(sidecar, tiny_companion, tiny_target)


@pytest.mark.parametrize("damage", [{"format": np.int64(9)}, {"w_s": np.zeros((3, 3))}])
def test_damaged_sidecar_is_one_sentence(damage, tiny_draft, tiny_target, tmp_path):
    """Another format, or matrices that do not fit, are ModelInvalid."""
    path = tmp_path / "draft.npz"
    np.savez(path, **fields(tiny_draft, tiny_target, **damage))
    with pytest.raises(ModelInvalid):
        read_coupling(path, tiny_draft, tiny_target)


def test_no_archive_is_one_sentence(tiny_draft, tiny_target, tmp_path):
    """A file that is no archive at all is ModelInvalid."""
    path = tmp_path / "draft.npz"
    path.write_bytes(b"no zip")
    with pytest.raises(ModelInvalid):
        read_coupling(path, tiny_draft, tiny_target)


def test_sidecar_lies_beside_the_draft(sidecar):
    """A draft with a sidecar beside it is a coupled one."""
    assert find_sidecar(sidecar.with_suffix(".gguf")) == sidecar
    assert find_sidecar(sidecar.with_name("other.gguf")) is None


def test_embeddings_have_a_row_a_token(tiny_draft):
    """[n_vocab, width]."""
    assert read_embeddings(tiny_draft).shape == (32, 32)


def test_a_later_start_maps_what_a_former_one_unpacked(
    sidecar, tiny_draft, tiny_target, monkeypatch
):
    """The same values, without reading the draft's tensors again."""
    first = read_coupling(sidecar, tiny_draft, tiny_target).embeddings
    monkeypatch.setattr(
        "pyspec.store.coupling.read_embeddings", lambda _: pytest.fail("unpacked again")
    )
    again = read_coupling(sidecar, tiny_draft, tiny_target).embeddings
    assert np.array_equal(again, first)
    assert (again.dtype, again.flags.c_contiguous) == (np.float32, True)


@pytest.mark.parametrize("damage", ["empty", "cut", "rows", "type", "junk"])
def test_damage_to_what_was_kept_is_mended(damage, sidecar, tiny_draft, tiny_target):
    """The draft's own values, whatever the kept file became, and a whole file afterwards."""
    whole = read_coupling(sidecar, tiny_draft, tiny_target).embeddings.copy()
    kept = cache_dir() / "unpacked" / f"{file_sha256(tiny_draft)[:32]}.npy"
    good = kept.read_bytes()
    kept.unlink()
    if damage in ("rows", "type"):
        np.save(kept, whole[1:] if damage == "rows" else whole.astype(np.float64))
    else:
        kept.write_bytes({"empty": b"", "cut": good[:-4], "junk": b"junk" * 99}[damage])
    assert np.array_equal(read_coupling(sidecar, tiny_draft, tiny_target).embeddings, whole)
    assert kept.read_bytes() == good


def test_norms_of_a_changed_file_are_read_anew(tiny_draft, tiny_target, tmp_path):
    """What was remembered holds for one state of a file."""
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_target.read_bytes())
    first = norms_digest(path)
    assert norms_digest(path) == first
    path.write_bytes(tiny_draft.read_bytes() + b"\0" * 8)
    assert norms_digest(path) == norms_digest(tiny_draft)
