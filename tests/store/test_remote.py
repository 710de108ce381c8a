"""The hub by its real client, against a server on this machine that speaks its protocol."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from store.hub_server import COMMIT, serving
from store.make_gguf import tiny_llama

from pyspec.errors import ModelNotFound
from pyspec.store.remote import Repo, _choose, hub_repo

TINY = tiny_llama().build()


@pytest.fixture
def hub() -> Iterator[ThreadingHTTPServer]:
    """A hub with one repository of three files and a projector."""
    files = {
        "toy-Q8_0.gguf": TINY, "toy-Q4_K_M.gguf": TINY + b"\0" * 32, "mmproj-toy-Q4_K_M.gguf": b"x", "README.md": b"hi",
    }  # fmt: skip
    with serving({"maker/toy-GGUF": files}) as server:
        yield server


def pyspec(
    server: ThreadingHTTPServer, home: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """The command with the hub at the server and a home of its own."""
    environment = {
        **os.environ, "HOME": str(home), "PYSPEC_CACHE": str(home / "cache"), "HF_HOME": str(home / "hf"),
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
        **variables,
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "pyspec", "models", *arguments],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_repository_is_fetched_once(hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    """OWNER/REPO takes its Q4_K_M; the second time nothing is asked; a type, a URL and the file's stem mean the same file."""
    first = pyspec(hub, tmp_path, "path", "maker/toy-GGUF")
    assert first.returncode == 0, first.stderr
    path = Path(first.stdout.strip())
    assert path.name == f"maker--toy-GGUF--{COMMIT}--toy-Q4_K_M.gguf"
    assert path.read_bytes() == TINY + b"\0" * 32
    assert "fetching maker/toy-GGUF/toy-Q4_K_M.gguf" in first.stderr
    asked = len(hub.asked)  # type: ignore[attr-defined]
    for name in (
        "maker/toy-GGUF:q4_k_m",
        "hf.co/maker/toy-GGUF:Q4_K_M",
        "toy-Q4_K_M",
        "maker/toy-GGUF",
    ):
        assert pyspec(hub, tmp_path, "path", name).stdout.strip() == str(path)
    assert len(hub.asked) == asked  # type: ignore[attr-defined]
    rows = json.loads(pyspec(hub, tmp_path, "list", "--json", "--here").stdout)
    mine = next(row for row in rows if row["name"] == "maker/toy-GGUF:Q4_K_M")
    assert (mine["origin"], mine["architecture"]) == ("pyspec", "llama")
    removed = pyspec(hub, tmp_path, "rm", "maker/toy-GGUF:Q4_K_M")
    assert (removed.returncode, path.exists()) == (0, False)


def test_a_pasted_url(hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    """The address of a file's page, as a browser shows it."""
    url = "https://hub.example/maker/toy-GGUF/blob/main/toy-Q8_0.gguf?download=true"
    done = pyspec(hub, tmp_path, "pull", url)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == TINY


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("maker/nothing-GGUF", "did not give maker/nothing-GGUF"),
        ("maker/toy-GGUF:Q2_K", "it has Q4_K_M, Q8_0"),
    ],
)
def test_what_the_hub_does_not_have(
    hub: ThreadingHTTPServer, tmp_path: Path, name: str, says: str
) -> None:
    """One sentence with what it has, exit code 1."""
    done = pyspec(hub, tmp_path, "path", name)
    assert (done.returncode, done.stdout) == (1, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_was_spoilt_on_the_way(hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    """Its sha256 is the hub's or it is not kept."""
    hub.spoilt["toy-Q8_0.gguf"] = TINY[:-1] + b"?"  # type: ignore[attr-defined]
    done = pyspec(hub, tmp_path, "path", "maker/toy-GGUF:Q8_0")
    assert done.returncode == 1
    assert "sha256" in done.stderr
    assert not list(tmp_path.rglob("*.gguf"))


def test_offline_takes_what_is_here(hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    """HF_HUB_OFFLINE is the hub's own switch: nothing is asked, and the sentence says so."""
    done = pyspec(hub, tmp_path, "path", "maker/toy-GGUF", HF_HUB_OFFLINE="1")
    assert done.returncode == 1
    assert "ffline" in done.stderr
    assert hub.asked == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("a/b", Repo("a/b")),
        ("a/b:Q4_0", Repo("a/b", "Q4_0")),
        ("hf:a/b", Repo("a/b")),
        ("hf.co/a/b:Q4_0", Repo("a/b", "Q4_0")),
        ("https://hub.example/a/b", Repo("a/b")),
        ("https://hub.example/a/b/tree/main", Repo("a/b", "", "main")),
        ("https://hub.example/a/b/blob/v2/q/c.gguf?x", Repo("a/b", "q/c.gguf", "v2")),
        ("hf:a/b/c.gguf", Repo("a/b", "c.gguf")),
        ("hf:a/b-1/q/c.gguf@v2", Repo("a/b-1", "q/c.gguf", "v2")),
        ("hf:", None),
        ("hf:a/b/../c.gguf", None),
        ("hf:a/b/c.bin", None),
        ("a/b/c.gguf", None),
        ("a", None),
        ("./a", None),
        ("~/a", None),
        ("a/b.gguf", None),
        ("a/b/c", None),
        ("../a/b", None),
        ("a/..", None),
    ],
)
def test_names_of_repositories(name: str, wanted: Repo | None) -> None:
    """What names a repository, and what looks like a path and is one."""
    assert hub_repo(name) == wanted


def test_all_parts_of_a_split_file_are_taken() -> None:
    """In order, and no part of another type."""
    paths = [f"big-{kind}-{n:05d}-of-00002.gguf" for kind in ("Q4_K_M", "Q8_0") for n in (2, 1)]
    assert _choose(Repo("a/b", "q8_0"), paths) == [
        "big-Q8_0-00001-of-00002.gguf",
        "big-Q8_0-00002-of-00002.gguf",
    ]
    assert len(_choose(Repo("a/b", "big-Q4_K_M-00001-of-00002.gguf"), paths)) == 2
    with pytest.raises(ModelNotFound, match="no GGUF file"):
        _choose(Repo("a/b"), [])
