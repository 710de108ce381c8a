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
    ("models", "path", "toy"),
    ("models", "info", "named"),
    ("draft", "-m", "named"),
    ("generate", "-m", "named", "--draft", "named", *COMMON),
    ("generate", "-m", "named", "--continue", *COMMON),
)


def _at(made, gone=0):
    def damage(rng, data):
        place = rng.randrange(len(data) + 1)
        new = made if isinstance(made, bytes) else made(rng)
        return data[:place] + new + data[place + gone :]

    return damage


def _instead(data):
    return lambda _rng, _data: data


DAMAGES = {
    "cut": lambda rng, data: data[: rng.randrange(len(data) + 1)],
    "a byte": _at(lambda rng: rng.randbytes(1), 1),
    "many bytes": _at(lambda rng: rng.randbytes(40), 40),
    "a digit": _at(lambda rng: b"%d" % rng.randrange(10), 1),
    "bytes gone": _at(b"", 20),
    "a long number": _at(b"9" * 5000),
    "no UTF-8": _at(b"\xff"),
    "a lone surrogate": _at(lambda rng: rng.choice([rb"\ud800", b"\xed\xa0\x80"])),
    "a NUL": _at(rb"\u0000"),
    "a long name": _at(b"x" * 5000),
    "nested": _instead(b"[" * 200_000),
    "nested in a member": _at(b'":' + b'{"a":[' * 100_000),
    "random": lambda rng, data: rng.randbytes(len(data)),
    **{kind: _instead(kind.encode()) for kind in ("", "null", "[]", "{}", "5", "NaN", '"x"', '[{"a":1}]')},
}  # fmt: skip


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
    damage = DAMAGES[rng.choice(list(DAMAGES))]
    try:
        for path in rng.sample(list(place.whole), rng.randrange(1, len(place.whole) // 2)):
            path.write_bytes(damage(rng, path.read_bytes()))
        for words in rng.sample(COMMANDS, 3):
            place.run(*words)
    finally:
        place.mend()
