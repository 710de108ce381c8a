"""The queue of waiting jobs, and the order of admission."""

from __future__ import annotations

from collections.abc import Callable

from pyspec.batch.jobs import Job

_MAX_OVERTAKES = 8
# rounds of all sequences in which smaller jobs may overtake one that does not fit


class JobQueue:
    """A window of jobs, admitted longest first, so that a batch does not end with one long answer alone.

    window: number of jobs to choose from. in_order: admit first come, first served instead.
    """

    def __init__(self, window: int, n_slots: int, *, in_order: bool = False) -> None:
        self._window, self._max_overtakes = window, _MAX_OVERTAKES * n_slots
        self._in_order = in_order
        self.jobs: list[Job] = []
        """Jobs in reverse order of admission. Those that have to run alone are admitted first."""
        self._passed_by = 0

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def room(self) -> int:
        """Free places of the window."""
        return max(0, self._window - len(self.jobs))

    def add(self, job: Job) -> None:
        self.jobs.append(job)
        self.jobs.sort(key=lambda j: (j.alone, 0 if self._in_order else j.need, -j.index))

    def take(self, fits: Callable[[Job], bool]) -> Job | None:
        """The first job that fits; None if none does, or if one that does not has been overtaken too often."""
        for at in range(len(self.jobs) - 1, -1, -1):
            if fits(self.jobs[at]):
                job = self.jobs.pop(at)
                self._passed_by = 0 if at == len(self.jobs) else self._passed_by + 1
                return job
            if self._passed_by >= self._max_overtakes:
                break
        return None

    def take_ended(self, *, reads: bool) -> list[Job]:
        """Remove and return cancelled jobs, and unless `reads`, jobs that want only their prompt prefilled."""
        ended = [job for job in self.jobs if job.cancelled or (job.only_read and not reads)]
        for job in ended:
            self.jobs.remove(job)
        return ended
