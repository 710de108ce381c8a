"""The window of records that wait for a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspec.batch.jobs import Job

_PATIENCE = 8
# times that all sequences may be started anew before a record that does not fit is waited for


class Waiting:
    """Jobs in a window, of which the one with the most to do goes first.

    So the end of a batch is not one long answer alone. window: how many are chosen from. in_order: the
    one that came first goes first instead.
    """

    def __init__(self, window: int, n_slots: int, *, in_order: bool = False) -> None:
        self._window, self._patience = window, _PATIENCE * n_slots
        self._in_order = in_order
        self._jobs: list[Job] = []
        self._passed_by = 0

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def room(self) -> int:
        """How many more jobs the window takes."""
        return max(0, self._window - len(self._jobs))

    @property
    def prompts(self) -> list[list[int]]:
        """What is asked, in tokens."""
        return [job.tokens for job in self._jobs]

    @property
    def first(self) -> Job:
        """The job with the most to do; those that have to run alone come before all others."""
        return self._jobs[-1]

    def add(self, job: Job) -> None:
        """Let a job wait for its turn."""
        self._jobs.append(job)
        self._jobs.sort(key=lambda j: (j.alone, 0 if self._in_order else j.need, -j.index))

    def take(self, fits: Callable[[Job], bool]) -> Job | None:
        """The job with the most to do among those that fit; None where none does, or one that does not has waited for long."""
        for at in range(len(self._jobs) - 1, -1, -1):
            if fits(self._jobs[at]):
                job = self._jobs.pop(at)
                self._passed_by = 0 if at == len(self._jobs) else self._passed_by + 1
                return job
            if self._passed_by >= self._patience:
                break
        return None

    def take_first(self) -> Job:
        """The job with the most to do."""
        return self._jobs.pop()

    def take_ended(self) -> list[Job]:
        """Those that ask for no tokens, and those that were cancelled."""
        ended = [job for job in self._jobs if job.max_tokens == 0 or job.cancelled]
        if ended:
            self._jobs = [job for job in self._jobs if job.max_tokens > 0 and not job.cancelled]
        return ended

    def take_all(self) -> list[Job]:
        """Every one."""
        jobs, self._jobs = self._jobs, []
        return jobs
