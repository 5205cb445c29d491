"""How fast the sandbox grades, beside the field's usual grader: a `multiprocessing.Manager` and a `Process` a grade.

The usual grader contains nothing: it is run here on the one program below, never on a model's.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from lib.sandbox.jobs import Job
from lib.sandbox.pool import Pool

PROGRAM = "n = int(input())\na = list(map(int, input().split()))\nprint(n * sum(a))\n"
STDIN, EXPECTED = "3\n1 2 3\n", "18\n"


def _usual_child(results: Any) -> None:
    sys.stdin, out = io.StringIO(STDIN), io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(PROGRAM, {"__name__": "__main__"})
    results.append(out.getvalue())


def _usual(_: int) -> bool:
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager:
        results = manager.list()
        process = context.Process(target=_usual_child, args=(results,))
        process.start()
        process.join(timeout=6)
        return list(results) == [EXPECTED]


def bench(rounds: int = 3, programs: int = 40, tests: int = 10, workers: int | None = None) -> list[dict[str, Any]]:
    """Test runs per second of the ways to grade, each measured once a round, in turn, with the same number of workers.

    Returns rows {"way", "round", "workers", "runs", "seconds", "runs_per_s"}; a run is one test of a program. The ways
    are "batched" (programs × tests), "one fork a test" and "Manager + Process" (a fifth and a twentieth as many runs,
    being slower). Raises RuntimeError if an answer is wrong.
    """
    workers = workers or len(os.sched_getaffinity(0))
    with Pool(workers) as pool, ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as processes:

        def sandbox(batch: bool, n: int) -> Callable[[], bool]:
            jobs = [Job(PROGRAM, [STDIN] * tests, batch=batch)] * max(workers, n // tests)
            return lambda: all(r.stdout == EXPECTED for results in pool.map(jobs) for r in results)

        total = programs * tests
        ways = {
            "batched": (max(workers, programs) * tests, sandbox(True, total)),
            "one fork a test": (max(workers, total // 5 // tests) * tests, sandbox(False, total // 5)),
            "Manager + Process": (total // 20, lambda: all(processes.map(_usual, range(total // 20)))),
        }
        rows = []
        for i in range(rounds + 1):  # the first round warms up
            for way, (runs, action) in ways.items():
                start = time.perf_counter()
                if not action():
                    raise RuntimeError(f"the way {way!r} gave a wrong answer")
                seconds = time.perf_counter() - start
                row = {"way": way, "round": i, "workers": workers, "runs": runs, "seconds": seconds}
                rows += [row | {"runs_per_s": runs / seconds}] if i else []
    return rows


if __name__ == "__main__":
    for line in bench():
        print(json.dumps(line))
