"""Fixtures that all tests share."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import platformdirs
import pytest
from hypothesis import HealthCheck, settings

# Tests run in several processes at once: a thread that waits must not keep a core. OpenMP reads this when llama.cpp is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# No test asserts a time: by default hypothesis fails an example of over 200 ms, and a machine that is slow to make them. A change
# is judged by the examples of the one before; `--hypothesis-profile anew` looks for others, as .ci/weekly does. Fixtures that
# examples share are what they are meant to be: models, folders and instruction sets.
_checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
_untimed = settings(deadline=None, suppress_health_check=_checks)
settings.register_profile("anew", _untimed)
settings.register_profile("settled", _untimed, derandomize=True)
settings.load_profile("settled")

# Facts about files, times and profiles are kept apart from the user's own; the fetched model is shared. Workers inherit this.
if "PYSPEC_CACHE" not in os.environ:
    models = platformdirs.user_cache_path("pyspec", appauthor=False) / "models"
    models.mkdir(parents=True, exist_ok=True)
    _kept = TemporaryDirectory(prefix="pyspec-tests-")  # removed when this process ends
    (Path(_kept.name) / "models").symlink_to(models)
    os.environ["PYSPEC_CACHE"] = _kept.name

# A shell has what it starts in the background ignore Ctrl-C, and what that starts would ignore it too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# `helpers` is imported from here, whatever the import mode of pytest; so are the programs of bench/ and the recipe in models/.
ROOT = Path(__file__).parents[1]
for folder in (str(ROOT / "bench"), str(ROOT / "tests")):
    if folder not in sys.path:
        sys.path.insert(0, folder)
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

from helpers import tiny  # noqa: E402 - as above


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: a process a core, and one that works while others wait for servers, children and files."""
    from pyspec.machine.machine import default_threads

    return default_threads() + 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is slow unless -m or a test's own name asks for it."""
    asked = "slow" in config.getoption("-m") or any("::" in argument for argument in config.args)
    slow = [] if asked else [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


def pytest_unconfigure() -> None:
    """Close what llama_cpp opens when it is imported: Python 3.13 reports both files at its end."""
    if opened := sys.modules.get("llama_cpp._utils"):
        opened.outnull_file.close()
        opened.errnull_file.close()


@pytest.fixture(scope="session", autouse=True)
def away_from_the_sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Work elsewhere: a child of `python -m` must import the installed package, not the folder `pyspec` beside it."""
    home = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("cwd"))
    yield
    os.chdir(home)


@pytest.fixture(scope="session", autouse=True)
def safe_weights() -> None:
    """Plain `llama_cpp.Llama`s are references of many tests: none of them may end the process."""
    from helpers import amx

    amx.leave_extra_off()


@pytest.fixture(scope="session", autouse=True)
def flash_attention() -> Iterator[None]:
    """What attention's times decide in tests: no measurement chooses how the logits that they compare are rounded."""
    from helpers.halting.sitecustomize import settle_attention

    with pytest.MonkeyPatch.context() as patch:
        settle_attention(patch.setattr)
        yield


@pytest.fixture(scope="session", autouse=True)
def on_a_device() -> Iterator[None]:
    """PYSPEC_TEST_OFFLOAD: how many layers of every model go to a graphics card or, if there is none, to an RPC device."""
    from helpers import devices

    device = devices.everywhere(devices.LAYERS) if devices.LAYERS else None
    yield
    if device is not None:
        device.close()


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No fact, trial or time that another test kept about the same file."""
    gc.collect()  # objects that earlier tests dropped keep theirs when they go
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def smollm2() -> str:
    """Path of the default target as Q8_0 on every machine, fetched once; PYSPEC_TEST_TARGET names another file."""
    from pyspec.hub.fetch import convert
    from pyspec.hub.sources import load_manifest

    if named := os.environ.get("PYSPEC_TEST_TARGET"):
        return named
    manifest = load_manifest()
    entry = manifest.get(manifest.default_target)
    assert entry is not None
    return str(convert(entry, "q8_0"))


@pytest.fixture(scope="session")
def gemma() -> str:
    """Path of Gemma 3 270M (sliding-window attention, 262144 tokens), fetched once."""
    from pyspec.hub.locate import resolve

    return str(resolve("gemma-3-270m"))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="session")
def tiny_target(tiny_folder: Path) -> Path:
    """A random model of 32 tokens."""
    return tiny.write(tiny_folder / "target.gguf")


@pytest.fixture(scope="session")
def tiny_draft(tiny_folder: Path) -> Path:
    """A worse copy of `tiny_target`: it agrees with it at some places and not at others."""
    return tiny.write(tiny_folder / "draft.gguf", noise=0.15)


@pytest.fixture(scope="session")
def tiny_companion(tiny_folder: Path) -> Path:
    """Another worse copy of `tiny_target`, with errors of its own."""
    return tiny.write(tiny_folder / "companion.gguf", noise=0.15, noise_seed=2)


@pytest.fixture(scope="session")
def tiny_recurrent(tiny_folder: Path) -> Path:
    """A random Mamba: its memory cannot be rolled back."""
    return tiny.write(tiny_folder / "recurrent.gguf", arch="mamba")


@pytest.fixture(scope="session")
def tiny_sliding(tiny_folder: Path) -> Path:
    """A random Gemma 3 whose layers look back 16 tokens."""
    return tiny.write(tiny_folder / "sliding.gguf", arch="gemma3", n_layer=6, window=16)


@pytest.fixture
def open_llama() -> Iterator[Callable[..., Any]]:
    """Makes a `SpeculativeLlama` of a path; strict, 4 drafted tokens, nothing that drafts; closed after the test."""
    from pyspec.llama.speculative import SpeculativeLlama
    from pyspec.sampling.verification import Strict

    opened = []

    def open_(path: Path | str, **options: Any) -> SpeculativeLlama:
        settings = {"draft": "none", "companion": "none", "verification": Strict()}
        settings |= {"length": "fixed:4", "n_ctx": 256, "n_threads": 1, "n_threads_batch": 1}
        settings["trust"] = True  # made here: a trial in a child would cost more than most tests
        settings |= {k: str(v) if isinstance(v, Path) else v for k, v in options.items()}
        opened.append(SpeculativeLlama(str(path), **settings))
        return opened[-1]

    yield open_
    for llm in opened:
        llm.close()


@pytest.fixture
def open_plain() -> Iterator[Callable[..., Any]]:
    """Makes a `llama_cpp.Llama` of a path, the reference of many tests; closed after the test."""
    from helpers import plain_chat

    # a llama_cpp.Llama that knows which processors die of extra buffers
    from pyspec.engine.target import TargetLlama

    opened = []

    def open_(path: Path | str, **options: Any) -> TargetLlama:
        settings = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
        settings |= {"flash_attn": True, **options}  # as ours, or rounding would differ
        opened.append(TargetLlama(str(path), trust=True, **settings))
        opened[-1].chat_handler = plain_chat.handler
        return opened[-1]

    yield open_
    for llm in opened:
        llm.close()


@pytest.fixture(scope="session")
def tiny_ascii(tiny_folder: Path) -> Path:
    """A random model that speaks ASCII, one character a token: for templates, grammars and JSON."""
    return tiny.write(tiny_folder / "ascii.gguf", tokens=tiny.ASCII)


@pytest.fixture(scope="session")
def tiny_eagle3(tiny_folder: Path) -> Path:
    """A random EAGLE-3 draft of `tiny_target`, which has two layers."""
    from helpers import tiny_eagle

    return tiny_eagle.write(tiny_folder / "eagle3.gguf", layers=(0, 1, 1))
