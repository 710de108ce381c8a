"""The window of jobs that wait: which goes next."""

from __future__ import annotations

from collections.abc import Callable

from pyspec.batch.jobs import Job

_PATIENCE = 8
# times that all sequences may be started anew before a record that does not fit is waited for


class JobQueue:
    """Jobs in a window, of which the one with the most to do goes first.

    So the end of a batch is not one long answer alone. window: how many are chosen from. in_order: the
    one that came first goes first instead.
    """

    def __init__(self, window: int, n_slots: int, *, in_order: bool = False) -> None:
        self._window, self._patience = window, _PATIENCE * n_slots
        self._in_order = in_order
        self.jobs: list[Job] = []
        """The one that goes next is the last; those that have to run alone come before all others."""
        self._passed_by = 0

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def room(self) -> int:
        """How many more jobs the window takes."""
        return max(0, self._window - len(self.jobs))

    def add(self, job: Job) -> None:
        """Let a job wait for its turn."""
        self.jobs.append(job)
        self.jobs.sort(key=lambda j: (j.alone, 0 if self._in_order else j.need, -j.index))

    def take(self, fits: Callable[[Job], bool]) -> Job | None:
        """The job with the most to do among those that fit; None where none does, or one that does not has waited for long."""
        for at in range(len(self.jobs) - 1, -1, -1):
            if fits(self.jobs[at]):
                job = self.jobs.pop(at)
                self._passed_by = 0 if at == len(self.jobs) else self._passed_by + 1
                return job
            if self._passed_by >= self._patience:
                break
        return None

    def take_ended(self, *, reads: bool) -> list[Job]:
        """Those that were cancelled, and those that ask for no tokens, unless their prompts are to be read (`reads`)."""
        ended = [job for job in self.jobs if job.cancelled or (job.only_read and not reads)]
        for job in ended:
            self.jobs.remove(job)
        return ended
