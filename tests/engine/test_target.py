"""How models get into the process: tried first, and without extra weight buffers where those crash."""

import logging
from pathlib import Path

import pytest
from helpers import amx

from pyspec.batch import Batch
from pyspec.errors import ModelRejected, OptionError
from pyspec.gguf import check as checks
from pyspec.hub.fetch import cached
from pyspec.hub.sources import load_manifest
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.machine.child import ChildExit

PLAIN = {"n_ctx": 128, "n_threads": 1, "n_threads_batch": 1}

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(autouse=True)
def as_users_have_it(monkeypatch):
    """The option as it is read, also where tests leave extra buffers off because they crash."""
    for name, function in amx.READ.items():
        monkeypatch.setattr(checks, name, function)


@pytest.fixture
def amx_crashes(monkeypatch):
    """Children in which extra buffers crash; the list grows by each outcome."""
    outcomes = []
    run = checks.run_child

    def watched(*args, **options):
        outcomes.append(run(*args, **options))
        return outcomes[-1]

    monkeypatch.setattr("pyspec.machine.child._SCRIPT", Path(amx.__file__).absolute())
    monkeypatch.setattr(checks, "run_child", watched)
    return outcomes


def uses_extra(llm):
    return bool(llm.model_params.use_extra_bufts)


def test_extra_buffers_that_crash_are_left_off(tiny_target, tiny_draft, amx_crashes, caplog):
    caplog.set_level(logging.WARNING, "pyspec")
    options = {**PLAIN, "draft": str(tiny_draft), "companion": "none"}
    for _ in range(2):
        with SpeculativeLlama(str(tiny_target), **options) as llm:
            assert not uses_extra(llm)
            assert llm.create_completion("abc", max_tokens=4)["usage"]["completion_tokens"] > 0
        # the draft goes without at once
        assert [each.ok for each in amx_crashes] == [False, True, True]
    assert sum("extra weight buffers" in record.message for record in caplog.records) == 1


def test_a_trusted_file_is_loaded_as_its_trial_found(tiny_target, amx_crashes):
    assert checks.check_model(tiny_target, trust=True)
    assert not checks.check_model(tiny_target)
    assert not checks.check_model(tiny_target, trust=True)
    assert len(amx_crashes) == 2


@pytest.fixture
def loadings(monkeypatch):
    """Whether each draft was loaded with extra buffers."""
    from pyspec.engine import models

    seen, loaded_with = [], models.SideModel._loaded_with

    def watched(self, *args, **more):
        params = loaded_with(self, *args, **more)
        seen.append(params.use_extra_bufts)
        return params

    monkeypatch.setattr(models.SideModel, "_loaded_with", watched)
    return seen


def test_drafts_follow(tiny_target, tiny_draft, loadings):
    for word in ("on", "off"):
        options = {**PLAIN, "draft": str(tiny_draft), "trust": True, "extra_buffers": word}
        SpeculativeLlama(str(tiny_target), companion="none", **options).close()
    assert loadings == [True, False]


def test_a_draft_goes_without_where_the_target_has_to(
    tiny_target, tiny_draft, loadings, monkeypatch
):
    """Its own trial may decode too few rows, or none, to come to the kernels that crash; the crash blames no other file."""

    def target_dies(_script, arguments, **_options):
        dies = tiny_target.name in arguments[0] and '"extra_buffers": true' in arguments[2]
        return ChildExit("", signal=4 if dies else None)

    monkeypatch.setattr(checks, "run_child", target_dies)
    SpeculativeLlama(str(tiny_target), companion="none", draft=str(tiny_draft), **PLAIN).close()
    assert loadings == [False]
    assert [checks.check_model(each) for each in (tiny_target, tiny_draft)] == [False, True]


def test_a_shipped_head_is_tried_where_amx_may_crash(tiny_target, tiny_eagle3, monkeypatch):
    from pyspec.engine import models

    tried = []
    monkeypatch.setattr(checks, "run_child", lambda *_, **__: ChildExit(""))
    monkeypatch.setattr(models, "ships", lambda _path: True)
    monkeypatch.setattr(models, "run_child", lambda *_, **__: tried.append(1) or ChildExit(""))
    for amx_here in (False, True):
        monkeypatch.setattr(models, "has_amx", lambda here=amx_here: here)
        with SpeculativeLlama(str(tiny_target), companion="none", draft=str(tiny_eagle3), **PLAIN):
            assert len(tried) == amx_here


@pytest.mark.parametrize(("word", "used"), [("on", True), ("off", False), ("auto", True)])
@pytest.mark.parametrize("make", [SpeculativeLlama, Batch])
def test_the_option_reaches_the_load(make, word, used, tiny_target, monkeypatch):
    options = {"draft": "none", "companion": "none", "trust": True, "n_threads": 1}
    with make(str(tiny_target), n_ctx=128, extra_buffers=word, **options) as made:
        assert uses_extra(made._models.target if make is Batch else made) is used


def test_asked_for_they_are_tried_and_refused(tiny_target, amx_crashes):
    """With "on" there is no way round: the trial dies, and this process does not."""
    with pytest.raises(ModelRejected, match="SIGABRT"):
        checks.check_model(tiny_target, loading=checks.Loading(extra_buffers="on"))
    with pytest.raises(OptionError, match="extra_buffers"):
        SpeculativeLlama(str(tiny_target), extra_buffers="perhaps")


@pytest.mark.parametrize("crashes", [True, False])
def test_shipped_files_are_tried_where_amx_may_crash(crashes, monkeypatch, request):
    tried = request.getfixturevalue("amx_crashes") if crashes else []
    if not crashes:
        monkeypatch.setattr(checks, "run_child", lambda *_, **__: ChildExit(""))
    shipped = cached(load_manifest().get("smollm2-companion"))
    for amx_here in (False, True, True):
        monkeypatch.setattr(checks, "has_amx", lambda here=amx_here: here)
        assert checks.check_model(shipped) is not (crashes and amx_here)
        assert len(tried) == 2 * (crashes and amx_here)
