"""Masks that another thread computes while the target decodes."""

from __future__ import annotations

import os

from helpers.forked import fork

from pyspec.grammar import masks


def test_a_fork_computes_masks_with_threads_of_its_own() -> None:
    """Those of the process that it was made from are not there: it would wait for them for ever."""

    def work(report: int) -> None:
        os.write(report, str(masks._ahead(os.getpid()).submit(int, "7").result()).encode())
        os._exit(0)

    assert masks._ahead(os.getpid()).submit(int, "6").result() == 6
    assert fork(work, 20).said == "7"
