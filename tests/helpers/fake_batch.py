"""What batches answer; and one that answers at once, with a way through its files: for tests of what goes in and comes out."""

import pytest

from pyspec.batch.output import FileRun, open_output
from pyspec.batch.reading import Reading, find_sources, read_sources
from pyspec.text.parts import Failure, RecordResult


class Fake:
    """Answers records at once, last one first; those that contain what `fails` do."""

    def __init__(self, fails="bad", **identity):
        self.asked, self.prompts, self.fails = [], [], fails
        self._identity = {"target": "t", **identity}

    def identity(self):
        return self._identity

    def stats(self):
        return {}

    def run_indexed(self, records):
        for i, record in reversed(list(records)):
            self.asked.append(i)
            said = record.messages[0]["content"] if record.messages else record.prompt
            self.prompts.append(said)
            error = record.error
            if error is None and self.fails in said:
                error = Failure("InputError", self.fails)
            told = {"index": i, "id": record.id, "prompt_sha256": record.sha256, "error": error}
            answer = {} if error else {"text": said.upper(), "finish_reason": "stop"}
            yield RecordResult(**told, **answer)


def texts(batch, records):
    """Answers in the order of their records, none of which fails."""
    found = sorted(batch.run(records), key=lambda result: result.index)
    assert [result.error for result in found] == [None] * len(records)
    return [result.text for result in found]


@pytest.fixture
def go(tmp_path):
    """Runs `inputs` into `out` with a Fake; returns it and its summary."""

    def go_(
        inputs, out, per="line", fake=None, stop_after=None, overwrite=False, column=None, lines=None,
        errors="strict", **options,
    ):  # fmt: skip
        sources = find_sources([str(tmp_path / name) for name in inputs])
        reading = Reading(per, errors=errors, column=column)
        records = list(read_sources(sources, reading))
        fake = fake or Fake()
        output = open_output(
            str(tmp_path) + "/" + out, sources, reading, overwrite=overwrite, **lines or {}
        )
        with FileRun(fake, records, output, **options) as run:
            seen = []

            def report(result):
                seen.append(result)
                if len(seen) == stop_after:
                    raise KeyboardInterrupt

            run.answer(report)
            run.assemble()
        return fake, run.summary

    return go_
