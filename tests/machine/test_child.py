"""Tasks in child processes: their limits, and what a death means."""

import signal
import subprocess

import llama_cpp
import pytest

from pyspec.machine.child import ggml_function, run_child


def test_child_that_says_nothing_is_a_failure():
    assert "TypeError" in run_child("trial", [], timeout=60).reason


def test_child_that_takes_too_long_is_killed(tiny_target):
    outcome = run_child("trial", [str(tiny_target), str(64 << 20)], timeout=0.0)
    assert (outcome.ok, outcome.reason) == (False, "it did not finish in time")


def test_an_interrupted_wait_leaves_no_child(monkeypatch):
    started = []

    def interrupt(child, **_):
        started.append(child)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_child("trial", [], timeout=60)
    assert started[0].returncode == -signal.SIGKILL


def test_a_function_that_no_library_has_is_named():
    with pytest.raises(ImportError, match="has no ggml_nothing"):
        ggml_function(llama_cpp.llama_cpp, "ggml_nothing", None)
