"""Where the points of a sweep run. An engine is a context manager that gives a function `start(command) -> job`; a job
has `done()`, `result()` (the exit status; raises where the engine lost it) and `cancel()`. A Dask task that has begun
runs to its end when it is cancelled; its result is found by the next run of the sweep.

    local    processes of this machine
    slurm    jobs of a Slurm cluster, through submitit
    dask     workers of a Dask cluster: a scheduler that is running somewhere, on whatever machines

All machines must see the repository, results/ and the Python environment under the same paths. Dask was chosen over
Ray 2.60 after trying both with the same commands: it is pure Python and 28 MB instead of 244 MB, and its cluster was up
in 2 s instead of 39 s on two cores. Both pass on the status of a killed command; Dask's futures are all that is needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lib.config import ROOT

# One thread a point, as in `make reproduce`; set before Python starts, as libraries read it when they are loaded.
_ENV = ("env", "OMP_NUM_THREADS=1", "TRL_EXPERIMENTAL_SILENCE=1", f"PYTHONPATH={ROOT}")


def command(*args: str) -> list[str]:
    """The command that runs `python ARGS…` with this interpreter, whatever environment the engine starts it in."""
    return [*_ENV, sys.executable, *args]


class _Process(subprocess.Popen):
    def done(self) -> bool:
        return self.poll() is not None

    def result(self) -> int:
        return self.wait()

    def cancel(self) -> None:
        self.terminate()


@contextmanager
def local(out: Path, options: dict[str, Any], scheduler: str | None) -> Iterator[Callable]:
    yield lambda args: _Process(args, cwd=ROOT, stdin=subprocess.DEVNULL)


@contextmanager
def slurm(out: Path, options: dict[str, Any], scheduler: str | None) -> Iterator[Callable]:
    """options: `[slurm]` of the sweep file, parameters of submitit (timeout_min, mem_gb, slurm_partition, …), and
    `cluster = "local"` for submitit's own processes on this machine, to try a file without Slurm."""
    try:
        import submitit
    except ImportError as error:
        raise ValueError("engine slurm needs submitit: pip install '.[sweep-slurm]'") from error
    cluster = options.get("cluster", "slurm")
    if cluster not in ("slurm", "local"):
        raise ValueError(f"[slurm] cluster {cluster!r}: 'slurm' or 'local'")
    if cluster == "slurm" and not (shutil.which("sbatch") and shutil.which("srun")):
        raise ValueError("engine slurm needs sbatch and srun: start the sweep on a login node of a Slurm cluster")
    executor = submitit.AutoExecutor(folder=out / "submitit", cluster=cluster)
    try:
        executor.update_parameters(name=f"sweep-{out.name}", **{k: v for k, v in options.items() if k != "cluster"})
    except (TypeError, NameError) as error:
        raise ValueError(f"[slurm]: {error}") from error
    yield lambda args: executor.submit(subprocess.call, args, cwd=ROOT)


@contextmanager
def dask(out: Path, options: dict[str, Any], scheduler: str | None) -> Iterator[Callable]:
    """scheduler: address of a running Dask scheduler, tcp://host:8786."""
    try:
        from distributed import Client
    except ImportError as error:
        raise ValueError("engine dask needs distributed: pip install '.[sweep-dask]'") from error
    if not scheduler:
        raise ValueError(
            "engine dask needs the address of a running scheduler, for example --scheduler tcp://host:8786"
        )
    try:
        client = Client(scheduler, timeout=30)
    except OSError as error:
        raise ValueError(f"no Dask scheduler answers at {scheduler}: {error}") from error
    with client:
        yield lambda args: client.submit(subprocess.call, args, cwd=str(ROOT), pure=False)


ENGINES = {"local": local, "slurm": slurm, "dask": dask}


def default_workers(engine: str) -> int:
    """How many points at once where the user does not say: the cores here, or 64 jobs in a queue."""
    return (os.cpu_count() or 1) if engine == "local" else 64
