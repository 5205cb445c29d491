"""Sweeps: a grid over fields of a config or parameters of a notebook, given in one small TOML file.

python -m lib.sweep notebooks/sweeps/budgetmix_grid.toml                     on the cores of this machine
python -m lib.sweep FILE --engine slurm --workers 50                         as jobs of a Slurm cluster
python -m lib.sweep FILE --engine dask --scheduler tcp://host:8786           on a Dask cluster

    env = "frozenlake"                      # or: notebook = "03_depth"
    arm = "budgetmix"                       #     table = "depth_leads"        whose rows are kept
    seeds = 3                               #     value = "lead"               the column that is drawn
    [grid]
    "train.group_size" = [4, 8, 16]         #     seeds = [3, 5]
    [fixed]                                 # the same for all points
    "train.updates" = 80

Other keys for configs: profile, split ("valid"), ks ([1]), ts; for both: [figure] (x, hue, col, row), [slurm].
All goes to results/sweeps/<file name>/: results.csv with a row for each result of a point, figure.png and .pdf, and
points/ with what each point left. Finished points are found again; failed ones are tried again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
import seaborn as sns
from filelock import FileLock, Timeout

from lib.config import ROOT
from lib.figures import use_style
from lib.manifest import git_state, machine, versions
from lib.metrics.intervals import seed_interval
from lib.reproduce import clock, say
from lib.sweep_engines import ENGINES, command, default_workers
from lib.sweep_file import Sweep, read_sweep
from lib.sweep_points import write_todo
from lib.tables import write_whole

matplotlib.use("Agg")
SWEEPS = ROOT / "results" / "sweeps"
POLL_S = 0.5
VISIBLE_S = 60.0  # a network file system may show a file of another machine only after a while


def run_sweep(
    sweep: Sweep, start: Callable[[list[str]], Any], workers: int, out: Path
) -> tuple[dict[str, dict], dict[str, str]]:
    """Work off the points that are not finished, at most `workers` at once, telling progress and time left.

    start: of an engine. Returns the results and the errors of points, by name; a failed point stops no other.
    """
    keys = {name: point.key() for name, point in sweep.points.items()}
    results = {n: r for n in keys if (r := _result(out, n)) and r["key"] == keys[n] and "rows" in r}
    todo, running, failed = [n for n in keys if n not in results], {}, {}
    total, begun = len(todo), time.monotonic()
    say(f"{sweep.name}: {len(keys)} points, {len(results)} of them are finished")
    try:
        while todo or running:
            while todo and len(running) < workers:
                name = todo.pop(0)
                _file(out, name, "result.json").unlink(missing_ok=True)
                write_todo(sweep.points[name], _file(out, name, "json"))
                running[name] = start(command("-m", "lib.sweep_points", str(_file(out, name, "json"))))
            for name in [n for n, job in running.items() if job.done()]:
                found = _finished(running.pop(name), out, name, keys[name])
                (results if "rows" in found else failed)[name] = found if "rows" in found else found["error"]
                done = total - len(todo) - len(running)
                waited = time.monotonic() - begun
                left = f", about {clock(waited / done * (total - done))} left" if done < total else ""
                say(f"[{clock(waited)}] {done}/{total} {'done ' if 'rows' in found else 'FAILED'} {name}{left}")
            time.sleep(POLL_S if running else 0)
    finally:
        for job in running.values():  # only after an interrupt
            job.cancel()
    return results, failed


def _file(out: Path, name: str, suffix: str) -> Path:
    return out / "points" / f"{name}.{suffix}"


def _result(out: Path, name: str) -> dict[str, Any] | None:
    file = _file(out, name, "result.json")
    return json.loads(file.read_text("utf-8")) if file.is_file() else None


def _finished(job: Any, out: Path, name: str, key: str) -> dict[str, Any]:
    """What a point left: its rows, or its error."""
    log = f"(see {_file(out, name, 'log')})"
    try:
        status = job.result()
    except Exception as error:  # of the engine: the job was killed, timed out or lost
        return {"error": f"{type(error).__name__}: {error} {log}"}
    until = time.monotonic() + (VISIBLE_S if status == 0 else 0)
    while (found := _result(out, name)) is None and time.monotonic() < until:
        time.sleep(0.5)
    if found is None:
        return {"error": f"its process ended with status {status} and left no result {log}"}
    if found["key"] != key:
        return {"error": "lib or the notebook was changed after the sweep began: run it again"}
    return found


def table(sweep: Sweep, results: dict[str, dict]) -> pd.DataFrame:
    """The rows of all finished points in the order of the sweep, each with the values of its point before them."""
    done = [(p.values, results[n]["rows"]) for n, p in sweep.points.items() if n in results]
    rows = [{name: values[name] for name in sweep.grid} | row for values, found in done for row in found]
    return pd.DataFrame([{k: str(v) if type(v) is list else v for k, v in row.items()} for row in rows])


def draw(sweep: Sweep, df: pd.DataFrame) -> sns.FacetGrid:
    """The figure of a sweep: means, with 95 % t intervals over seeds where there are seeds.

    Raises ValueError where a column of [figure] is missing, or rows that are no seeds of each other would be averaged.
    """
    columns = list(sweep.figure.values())
    if missing := [c for c in (sweep.value, *columns) if c not in df]:
        raise ValueError(f"the figure needs a column {missing[0]!r}; results.csv has {', '.join(df)}")
    seeds = "seed" in df
    if df.duplicated([*columns, "seed"] if seeds else columns).any():
        raise ValueError(f"several rows for one {', '.join(columns)}: name what else varies in [figure]")
    use_style()
    look: dict[str, Any] = {}
    if "hue" in sweep.figure:  # seaborn cannot dodge a single level, all that is left where the other points failed
        look = {"palette": "colorblind", "dodge": 0.3 if df[sweep.figure["hue"]].nunique() > 1 else False}
    return sns.catplot(
        df, y=sweep.value, kind="point", errorbar=_over_seeds if seeds else None, height=3, capsize=0.1, markersize=4,
        linewidth=1.5, err_kws={"linewidth": 1}, **look, **sweep.figure,
    )  # fmt: skip


def _over_seeds(values: Any) -> tuple[float, float]:
    if len(values) < 2:  # other seeds failed
        return float("nan"), float("nan")
    found = seed_interval(values)
    return found.low, found.high


def save(sweep: Sweep, df: pd.DataFrame, about: dict[str, Any], out: Path) -> None:
    """results.csv, manifest.json and the figure of a sweep."""
    write_whole(out / "results.csv", df.to_csv(index=False, lineterminator="\n"))
    about |= {"git": git_state(), "versions": versions(), "platform": machine()}
    write_whole(out / "manifest.json", json.dumps(about, indent=1) + "\n")
    grid = draw(sweep, df)
    for suffix, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None, "Producer": None})):
        grid.figure.savefig(out / f"figure.{suffix}", metadata=metadata)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lib.sweep", description="Work off a grid of points.")
    parser.add_argument("file", help="the sweep, a TOML file")
    parser.add_argument("--engine", default="local", choices=ENGINES, help="default: %(default)s")
    parser.add_argument("--workers", type=int, help="points at once (default: the cores here; 64 on a cluster)")
    parser.add_argument("--scheduler", help="address of a running Dask scheduler, for --engine dask")
    args = parser.parse_args(argv)
    try:
        sweep, start = read_sweep(args.file), time.monotonic()
        workers = default_workers(args.engine) if args.workers is None else args.workers
        if workers < 1:
            raise ValueError(f"workers={workers}: at least 1")
        out = SWEEPS / sweep.name
        out.mkdir(parents=True, exist_ok=True)
        with FileLock(out / ".lock", timeout=0), ENGINES[args.engine](out, sweep.slurm, args.scheduler) as run:
            results, failed = run_sweep(sweep, run, workers, out)
            about = {"engine": args.engine, "wall_s": round(time.monotonic() - start, 1), "failed": failed}
            about |= {"points": {n: r["seconds"] for n, r in results.items()}}
            if results:
                save(sweep, table(sweep, results), about, out)
                say(f"{len(results)} of {len(sweep.points)} points are in results.csv and figure.png of {out}")
    except Timeout:
        print(f"error: another sweep called {sweep.name} is running", file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if failed:
        print("these points failed:\n" + "\n".join(f"  {n}: {e}" for n, e in failed.items()), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
