"""Scripts that load a server: each runs on tiny models, and says what it is for."""

import sys
from argparse import Namespace
from types import SimpleNamespace


def test_the_server_is_loaded(script, tiny_ascii, questions, tmp_path, capsys):
    asked = questions("abc", "hello")
    numbers = ["--clients=2", "--requests=12", "--tokens=3", "--ctx=512", "--threads=1"]
    out = tmp_path / "results" / "tiny.json"
    script("serve").main([str(tiny_ascii), str(asked), *numbers, f"--out={out}"])
    cells = capsys.readouterr().out.splitlines()[2].split(" | ")
    assert cells[0] == "| pyspec"
    assert (float(cells[1]) > 0, cells[6]) == (True, "0")
    assert 0.0 <= float(cells[9]) <= float(cells[10].rstrip(" |"))
    page = (out.parent / "README.md").read_text()
    assert "| pyspec | " in page
    assert "| gap p95 | gap max |" in page
    assert str(tmp_path) not in page


def test_the_other_server_drafts_as_many_tokens_as_its_name_says(script, tiny_draft, tiny_eagle3):
    """With the model or the head that was given; by its bare name with none."""
    serve = script("serve")
    numbers = {"clients": 1, "ctx": 512, "threads": 1, "server": "llama-server", "model": "m.gguf"}
    for draft, kind in (tiny_eagle3, "draft-eagle3"), (tiny_draft, "draft-simple"):
        options = Namespace(**numbers, draft=draft)
        words = " ".join(serve.command(options, "llama-server:3"))
        assert f"--spec-type {kind} -md {draft} -td 1 --spec-draft-n-max 3" in words
        assert "--spec" not in " ".join(serve.command(options, "llama-server"))
        assert serve.command(options, "pyspec:none")[-2:] == ["--draft", "none"]


def test_a_p95_is_no_longer_than_the_longest(script):
    """Eleven short waits and a long one, beyond which the default of `quantiles` goes."""
    p95 = script("serve").p95
    assert 0.001 < p95([0.001] * 11 + [0.006]) < 0.006
    assert p95([2.0, 2.0]) == 2.0


def test_conversations_come_back(script, tiny_ascii, questions, tmp_path, capsys):
    asked = questions("abc" * 9, "hello" * 9)
    numbers = ["--conversations=2", "--slots=1", "--tokens=3", "--least=9", "--ctx=512", "--threads=1"]  # fmt: skip
    words = [str(tiny_ascii), str(asked), *numbers, "--contenders", "pyspec", "--out"]
    script("returning").main([*words, str(tmp_path / "out")])
    cells = capsys.readouterr().out.splitlines()[2].strip("| ").split(" | ")
    assert cells[0] == "pyspec"
    assert all(0.0 <= float(cell) < 60.0 for cell in cells[1:])
    assert "| pyspec | " in (tmp_path / "out" / "README.md").read_text()
    own = Namespace(slots=2, ctx=8, threads=1, server="s", model="m")
    assert script("returning").command(own, "llama-server:0")[-2:] == ["--cache-ram", "0"]


def test_a_server_of_another_wheel_drafts_as_it_is_told(script, monkeypatch):
    """By a stand-in for the wheel, which tests do not need."""

    def side(**more):
        threads = SimpleNamespace(n_threads=0), SimpleNamespace(n_threads=0)
        return SimpleNamespace(cpuparams=threads[0], cpuparams_batch=threads[1], **more)

    draft = side(mparams=SimpleNamespace(path=""))
    found = side(model=SimpleNamespace(path=""), speculative=SimpleNamespace(draft=draft))
    kinds = SimpleNamespace(COMMON_SPECULATIVE_TYPE_NONE=0, COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3=4)
    wheel = SimpleNamespace(CommonParams=lambda: found, common_speculative_type=kinds)
    monkeypatch.setitem(sys.modules, "xllamacpp", wheel)
    server = script("llama_server")

    def started(*words):
        return server.params(server.options().parse_args(["-m", "a.gguf", *words]))

    plain = started("-c", "512", "-np", "4", "-t", "3", "--port", "9")
    assert (plain.model.path, plain.n_ctx, plain.n_parallel, plain.port) == ("a.gguf", 512, 4, 9)
    assert (plain.cpuparams.n_threads, plain.speculative.types) == (3, [0])
    more = ["--spec-type", "draft-eagle3", "-md", "b.gguf", "--spec-draft-n-max", "2"]
    assert started(*more).speculative.draft.probabilistic is False
    drawn = started(*more, "--spec-draft-sampling", "probabilistic").speculative
    assert (drawn.types, drawn.draft.mparams.path, drawn.draft.n_max) == ([4], "b.gguf", 2)
    assert drawn.draft.probabilistic is True
