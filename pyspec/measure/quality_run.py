"""The whole of `pyspec quality`: run every gate, judge, write the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspec.measure import plots
from pyspec.measure.bench import Task, equality, make_runner
from pyspec.measure.equal import demand_equal
from pyspec.measure.modes import Bench
from pyspec.measure.quality import QualityResults, gates, judge, verdict
from pyspec.measure.quality_report import save_quality
from pyspec.measure.run import Ours

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspec.llama import SpeculativeLlama


def run_quality(
    llm: SpeculativeLlama,
    task: Task,
    report: Callable[[int, int, str], None],
    tell: Callable[[str], None],
) -> QualityResults:
    """Answer with every gate, judge, and write page, plot and results into `task.folder`.

    tell: hears what is skipped. Raises UnequalOutputs where strict is not plain decoding.
    """
    bench = Bench(llm)
    exact = task.options.temperature == 0.0
    lacking = {mode.name: bench.lacks(mode) for mode in task.modes}
    for name, lacks in lacking.items():
        if lacks:
            tell(f"{name} is skipped: {lacks}")
    contenders = [
        Ours(bench, mode, exact=mode.exact and exact)
        for mode in task.modes
        if not lacking[mode.name]
    ]
    journal, runner = make_runner(llm, task, contenders)
    runner.report, runner.finish = report, judge(llm)
    runner.run(task.questions)
    found, tie = equality(llm, journal.records, task.questions, task.tie)
    demand_equal(found, set(), tie)
    measured = gates(journal.records, task.questions)
    results = QualityResults(task.command, journal.records[-1].setup, measured, verdict(measured))
    drawn = []
    if plots.available():
        points = {gate.who: (gate.nats_over.mean, gate.speed_up) for gate in measured}
        plots.speed_against_quality(points).savefig(task.folder / "speed-quality.svg")
        drawn = ["speed-quality.svg"]
    save_quality(results, task.folder, drawn)
    return results
