"""What the cases share: a cache of their own, and the command with its one sentence."""

import pytest

from pyspec.cli.main import main


@pytest.fixture
def command(capfd):
    """Runs `pyspec generate` on a file; its exit code and stderr, which must be one sentence where it failed."""

    def run(path, *args, prompt="a"):
        base = ["generate", prompt, "-m", str(path), "-n", "2", "-t", "1", "-c", "256", "--raw"]
        with pytest.raises(SystemExit) as end:
            main([*base, "--draft", "none", "--no-stats", *args])
        code, said = int(end.value.code or 0), capfd.readouterr().err.strip()
        assert "Traceback" not in said
        if code:
            assert said.startswith(("pyspec: ", "Usage: ", "Error: "))
        return code, said

    return run
