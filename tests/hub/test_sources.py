"""The manifest, real and damaged, and the hub by its real client, against a server on this machine that speaks its protocol."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.hub_server import COMMIT, serving
from helpers.make_gguf import split, tiny_llama
from helpers.running import start
from helpers.shop import SHIPPED
from helpers.waiting import wait

from pyspec.cli.main import main
from pyspec.errors import ModelError
from pyspec.gguf.header import read_header
from pyspec.hub.fetch import cached
from pyspec.hub.sources import Repo, hub_repo, load_manifest, models_folder

GOOD = (
    """
format = 1
default_target = "toy"
[[model]]
name = "toy"
role = "target"
file = "toy.gguf"
size = 1
sha256 = "{sha}"
licence = "MIT"
""".format(sha="0" * 64)
    + f"source = {SHIPPED}\n"
)


def manifest(folder, text):
    (folder / "manifest.toml").write_text(text)
    return folder


def test_shipped_files_are_there_and_right():
    assert [e.name for e in load_manifest().model if e.ships and cached(e) is None] == []


@pytest.mark.parametrize(("old", "new", "named"), [
    ("format = 1", "format = 2", "format"), ("format = 1", "format =", "damaged"),
    ('"target"', '"captain"', "captain"), ("size = 1", "size = 0", "size"),
    ("size = 1", 'size = "1"', "size"), ("0" * 64, "0" * 63, "sha256"), ('licence = "MIT"', "", "licence"),
    ('licence = "MIT"', 'licence = "MIT"\ncolour = "red"', "colour"),
    ('file = "toy.gguf"', 'file = "../toy.gguf"', "file"), ('file = "toy.gguf"', 'file = "/toy.gguf"', "file"),
    ('name = "toy"', 'name = "to/y"', "name"),
    ('default_target = "toy"', 'default_target = "x"', "default target"),
    ('kind = "pypi-wheel"', 'kind = "post"', "post"), (SHIPPED, '{ kind = "pypi-wheel", parts = [] }', "parts"),
    ("size = 1", 'convert = "q9"\nsize = 1', "q9"),
])  # fmt: skip
def test_damaged_manifest_is_refused(old, new, named, tmp_path):
    assert old in GOOD
    assert [each.name for each in load_manifest(manifest(tmp_path, GOOD)).model] == ["toy"]
    with pytest.raises(ModelError, match=named):
        load_manifest(manifest(tmp_path, GOOD.replace(old, new)))


def test_missing_manifest_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"manifest\.toml"):
        load_manifest(tmp_path)


def test_a_folder_that_the_environment_names_and_a_name_twice(shop):
    assert (models_folder(), load_manifest()) == (shop.folder, load_manifest(shop.folder))
    shop.add("toy", b"x", SHIPPED)
    with pytest.raises(ModelError, match="twice"):
        load_manifest()


TINY = tiny_llama().build()


@pytest.fixture
def hub():
    files = {
        "toy-Q8_0.gguf": TINY, "toy-Q4_K_M.gguf": TINY + b"\0" * 32, "mmproj-toy-Q4_K_M.gguf": b"x", "README.md": b"hi",
    }  # fmt: skip
    with serving({"maker/toy-GGUF": files}) as server:
        yield server


def environment_at(server, home):
    return {
        "HOME": str(home), "PYSPEC_CACHE": str(home / "cache"), "HF_HOME": str(home / "hf"),
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
        "HF_HUB_DISABLE_XET": "1",
    }  # fmt: skip


def main_anew(words):
    """The hub's client reads the environment when it is imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
        del sys.modules[name]
    main(words)


def begun(server, home, *arguments, **variables):
    told: dict[str, Any] = {**environment_at(server, home), **variables}
    return start("models", *arguments, begin=main_anew, **told)


def pyspec(server, home, *arguments, **variables):
    with begun(server, home, *arguments, **variables) as child:
        return child.ended()


def test_a_repository_is_fetched_once(hub, tmp_path):
    """OWNER/REPO takes its Q4_K_M; the second time nothing is asked; a type, a URL and the file's stem mean the same file."""
    first = pyspec(hub, tmp_path, "pull", "maker/toy-GGUF")
    assert first.returncode == 0, first.stderr
    path = Path(first.stdout.strip())
    assert path.name == f"maker--toy-GGUF--{COMMIT}--toy-Q4_K_M.gguf"
    assert path.read_bytes() == TINY + b"\0" * 32
    assert "fetching maker/toy-GGUF/toy-Q4_K_M.gguf" in first.stderr
    asked = len(hub.asked)
    for name in (
        "maker/toy-GGUF:q4_k_m", "hf.co/maker/toy-GGUF:Q4_K_M", "toy-Q4_K_M", "maker/toy-GGUF",
    ):  # fmt: skip
        assert f" {path}\n" in pyspec(hub, tmp_path, "info", name).stdout
    assert len(hub.asked) == asked
    rows = json.loads(pyspec(hub, tmp_path, "list", "--json", "--here").stdout)
    mine = next(row for row in rows if row["name"] == "maker/toy-GGUF:Q4_K_M")
    assert (mine["origin"], mine["architecture"]) == ("pyspec", "llama")
    removed = pyspec(hub, tmp_path, "rm", "maker/toy-GGUF:Q4_K_M")
    assert (removed.returncode, path.exists()) == (0, False)


def test_dashes_in_names_are_no_folders(tmp_path):
    name, paths = "hf:maker/toy-GGUF/q--8/toy---Q8_0.gguf", set[str]()
    with serving({"maker/toy-GGUF": {"q--8/toy---Q8_0.gguf": TINY}}) as server:
        for asked, known in (("maker/toy-GGUF", name), (f"{name}@v--1", f"{name}@v--1")):
            path = pyspec(server, tmp_path, "pull", asked).stdout
            n_asked = len(server.asked)
            assert f" {path}" in pyspec(server, tmp_path, "info", known).stdout
            assert len(server.asked) == n_asked
            paths.add(path)
    assert len(paths) == 2  # a revision is another file


def test_a_pasted_url(hub, tmp_path):
    page = "maker/toy-GGUF/blob/main/toy-Q8_0.gguf?download=true"
    for host in ("https://huggingface.co", f"http://127.0.0.1:{hub.server_port}"):
        done = pyspec(hub, tmp_path, "pull", f"{host}/{page}")
        assert done.returncode == 0, done.stderr
        assert Path(done.stdout.strip()).read_bytes() == TINY
    other = pyspec(hub, tmp_path, "pull", f"https://elsewhere.example/{page}")
    assert (other.returncode, "is not on the hub" in other.stderr) == (1, True)


@pytest.mark.parametrize("commit", ["../../../../evil", "/evil", "a/b", "", "x\x1b[2J", "."])
def test_a_commit_of_the_hub_is_no_path(hub, tmp_path, commit):
    """It becomes a part of a file's name in the cache."""
    hub.commit = commit
    done = pyspec(hub, tmp_path, "pull", "maker/toy-GGUF:Q8_0")
    assert "\x1b" not in done.stderr
    found = [path for path in tmp_path.rglob("*.gguf") if path.is_file()]
    assert all(path.parent == tmp_path / "cache" / "models" for path in found)
    assert (done.returncode == 0) == (commit == "")  # a hub that names none is asked for "main"


def test_names_of_the_hubs_files_are_no_paths_and_steer_no_terminal(tmp_path):
    files = {"../up-Q8_0.gguf": TINY, "\x1b]0;x\x07-Q8_0.gguf": TINY, "a\n-Q8_0.gguf": TINY}
    with serving({"maker/odd-GGUF": files}) as server:
        done = pyspec(server, tmp_path, "pull", "maker/odd-GGUF")
    assert done.returncode == 1
    assert "\x1b" not in done.stderr
    assert "has no GGUF file" in done.stderr


def test_a_killed_download_leaves_nothing_behind(tmp_path):
    big = TINY + bytes(40 << 20)
    models = tmp_path / "cache" / "models"
    with serving({"maker/toy-GGUF": {"toy-Q8_0.gguf": big}}) as hub:
        hub.stall = 30 << 20
        with begun(hub, tmp_path, "pull", "maker/toy-GGUF"):
            wait(lambda: any(path.stat().st_size for path in models.rglob("*.incomplete")))
        hub.stall = 0
        done = pyspec(hub, tmp_path, "pull", "maker/toy-GGUF")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == big
    assert not list(models.glob(".*.work"))


@pytest.mark.parametrize(("name", "says"), [
    ("maker/nothing-GGUF", "cannot get maker/nothing-GGUF"),
    ("maker/toy-GGUF:Q2_K", "it has Q4_K_M, Q8_0"),
])  # fmt: skip
def test_what_the_hub_does_not_have(hub, tmp_path, name, says):
    done = pyspec(hub, tmp_path, "pull", name)
    assert (done.returncode, done.stdout) == (1, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_split_file_is_fetched_and_removed_whole(tmp_path):
    """By its type, by any part, and by an address."""
    raw = [path.read_bytes() for path in split(tmp_path)]
    types = ("Q4_K_M", "Q8_0")
    parts = {f"big-{t}-0000{i + 1}-of-00003.gguf": raw[i] for t in types for i in (2, 0, 1)}
    with serving({"maker/big-GGUF": parts}) as server:
        done = pyspec(server, tmp_path, "pull", "hf:maker/big-GGUF/big-Q8_0-00002-of-00003.gguf")
        assert done.returncode == 0, done.stderr
        asked = len(server.asked)
        url = "https://hf.co/maker/big-GGUF/blob/main/big-Q8_0-00003-of-00003.gguf"
        for name in (url, "maker/big-GGUF:q8_0"):
            assert f" {done.stdout}" in pyspec(server, tmp_path, "info", name).stdout
        assert len(server.asked) == asked
    assert len(read_header(Path(done.stdout.strip())).parts) == 3
    removed = pyspec(server, tmp_path, "rm", "maker/big-GGUF")
    assert removed.returncode == 0, removed.stderr
    assert list((tmp_path / "cache" / "models").glob("*.gguf")) == []


@pytest.mark.parametrize("named", ["", ":Q8_0", "/big-Q8_0-00002-of-00003.gguf"])
def test_a_split_file_without_a_part_is_refused(tmp_path, named):
    parts = [f"big-Q8_0-0000{n}-of-00003.gguf" for n in (2, 3)]
    with serving({"maker/big-GGUF": dict.fromkeys(parts, TINY)}) as server:
        done = pyspec(server, tmp_path, "pull", f"hf:maker/big-GGUF{named}")
        assert not any("resolve" in path for path in server.asked)
    assert done.returncode == 1
    assert "big-Q8_0-00001-of-00003.gguf" in done.stderr
    assert not list(tmp_path.rglob("*.gguf"))


def test_a_file_that_was_spoilt_on_the_way(hub, tmp_path):
    hub.spoilt["toy-Q8_0.gguf"] = TINY[:-1] + b"?"
    done = pyspec(hub, tmp_path, "pull", "maker/toy-GGUF:Q8_0")
    assert done.returncode == 1
    assert "sha256" in done.stderr
    assert not list(tmp_path.rglob("*.gguf"))


@pytest.mark.parametrize(("name", "wanted"), [
    ("a/b", Repo("a/b")), ("a/b:Q4_0", Repo("a/b", "Q4_0")), ("hf:a/b", Repo("a/b")),
    ("hf.co/a/b:Q4_0", Repo("a/b", "Q4_0")), ("https://hf.co/a/b", Repo("a/b")),
    ("https://hf.co/a/b/tree/main", Repo("a/b", "", "main")),
    ("https://hf.co/a/b/blob/v2/q/c.gguf?x", Repo("a/b", "q/c.gguf", "v2")),
    ("hf:a/b/c.gguf", Repo("a/b", "c.gguf")), ("hf:a/b-1/q/c.gguf@v2", Repo("a/b-1", "q/c.gguf", "v2")),
    ("hf:", None), ("hf:a/b/../c.gguf", None), ("hf:a/b/c.bin", None), ("a/b/c.gguf", None), ("a", None),
    ("./a", None), ("~/a", None), ("a/b.gguf", None), ("a/b/c", None), ("../a/b", None), ("a/..", None),
])  # fmt: skip
def test_names_of_repositories(name, wanted):
    assert hub_repo(name) == wanted


def test_a_mirror_whose_address_is_none_is_no_error(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://[x")
    assert hub_repo("own/repo") == Repo("own/repo")
