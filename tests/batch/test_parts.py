"""Reasoning and calls in the results of a batch."""

import json

from helpers import scripted

from pyspec.batch import Settings
from pyspec.batch.output import output_line
from pyspec.requests.records import Record

SAID = "<think>Hm.</think>Yes."


def test_reasoning_is_beside_the_text(open_batch, tmp_path):
    """The text has none of it; the record's line has it in a field, and only where there is some."""
    batch = open_batch(scripted.write(tmp_path, "<think>"), 60, settings=Settings(max_tokens=60))
    plain = {"grammar": scripted.script("Yes."), "logit_bias": scripted.leaning("Y")}
    asked = {"a": says(SAID), "b": {**says(SAID), "max_tokens": 8}, "c": plain}
    found = {
        r.id: r for r in batch.run([Record(id=k, prompt="x", **how) for k, how in asked.items()])
    }
    assert [(r.reasoning, r.text, r.reasoning_cut) for _, r in sorted(found.items())] == [
        ("Hm.", "Yes.", False), ("H", "", True), ("", "Yes.", False),
    ]  # fmt: skip
    lines = {key: json.loads(output_line(result, "run")) for key, result in found.items()}
    assert (lines["a"]["text"], lines["a"]["reasoning"]) == ("Yes.", "Hm.")
    assert lines["b"]["reasoning_cut"]
    assert not {"reasoning", "reasoning_cut", "calls"} & lines["c"].keys()
    form = json.loads(output_line(found["a"], "run", "chat"))
    message = form["response"]["body"]["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Yes.", "Hm.")
    raw = open_batch(scripted.write(tmp_path, "<think>"))  # its prompts are not taken apart
    (result,) = raw.run([Record(id="a", prompt="x", max_tokens=60, **says(SAID))])
    assert (result.text, result.reasoning) == (SAID, "")


def says(text):
    return {"grammar": scripted.script(text)}
