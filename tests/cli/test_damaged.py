"""Whatever happened to the files of the cache, of the chat log and of other programs: no command ends with a traceback."""

import random
import shutil
from functools import cache

import pytest
from helpers import running, scripted, tiny
from helpers.make_gguf import tiny_llama
from helpers.shop import open_shop

from pyspec.hub.fetch import convert
from pyspec.machine import files

COMMON = ("--trust-model", "-t", "1", "-n", "2", "--temp", "0", "hello")

COMMANDS = (
    ("models", "list"),
    ("models", "list", "--json"),
    ("models", "pull", "toy"),
    ("models", "info", "named"),
    ("draft", "-m", "named"),
    ("generate", "-m", "named", "--draft", "named", *COMMON),
    ("generate", "-m", "named", "--continue", *COMMON),
)


BITS = (
    b"", b"9", b"9" * 5000, b"\xff", rb"\ud800", b"\xed\xa0\x80", rb"\u0000", b"x" * 5000, b'":' + b'{"a":[' * 100_000,
)  # fmt: skip
INSTEAD = (b"[" * 200_000, b"", b"null", b"[]", b"{}", b"5", b"NaN", b'"x"', b'[{"a":1}]')


def damaged(rng, data):
    """The content of a file that was cut, overwritten, or has other bytes somewhere."""
    at = rng.randrange(len(data) + 1)
    ways = (
        lambda: data[:at],
        lambda: data[:at] + rng.randbytes(rng.choice([1, 40])) + data[at + 1 :],
        lambda: data[:at] + rng.choice(BITS) + data[at + rng.randrange(20) :],
        lambda: rng.choice(INSTEAD),
    )
    return rng.choice(ways)()


class Place:
    """A cache with something of every kind, the chat log, and another program's settings."""

    def __init__(self, folder, shop):
        self._folder = folder
        self.variables = {"PYSPEC_CHATS": str(folder / "chats")}
        convert(shop.entry(), "q8_0")
        settings = folder / "home" / ".lmstudio" / "settings.json"
        settings.parent.mkdir(parents=True)
        settings.write_text(f'{{"downloadsFolder": "{folder}"}}')
        assert [self.run(*words) for words in COMMANDS] == [0] * len(COMMANDS)
        self.whole = {path: path.read_bytes() for path in self._files()}

    def run(self, *words):
        """The status of a command; what would be a traceback is raised."""
        return running.run(*words, stdin=b"", **self.variables).returncode

    def _files(self):
        return sorted(path for path in self._folder.rglob("*") if path.is_file())

    def mend(self):
        for path in set(self._files()) - self.whole.keys():
            path.unlink()
        for path, data in self.whole.items():
            if path.is_dir():
                shutil.rmtree(path)
            if not path.exists() or path.read_bytes() != data:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder, outside = (tmp_path_factory.mktemp(name) for name in ("place", "outside"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPEC_CACHE", str(folder / "cache"))
        patch.setenv("HOME", str(folder / "home"))
        patch.setenv("LLAMA_CACHE", str(outside))
        patch.setattr(files, "tell_damage", cache(files.tell_damage.__wrapped__))
        shop = open_shop(outside / "shop", tiny_llama().build(), patch)
        tiny.write(outside / "named.gguf", tokens=tiny.ASCII, template=scripted.CHATML)
        yield Place(folder, shop)


SEEDS = [pytest.param(seed, marks=pytest.mark.slow if seed >= 80 else ()) for seed in range(500)]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_damage_ends_a_command_with_a_traceback(place, seed):
    rng = random.Random(seed)  # noqa: S311 - no secret
    try:
        for path in rng.sample(list(place.whole), rng.randrange(1, len(place.whole) // 2)):
            path.write_bytes(damaged(rng, path.read_bytes()))
        for words in rng.sample(COMMANDS, 3):
            place.run(*words)
    finally:
        place.mend()
