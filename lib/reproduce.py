"""Reproduce the paper: work off the profile's runs in a process pool, then execute the notebooks.

python -m lib.reproduce --profile tiny --seeds 3        everything
python -m lib.reproduce --notebooks 02_breadth          only some notebooks (their runs are found or made)
python -m lib.reproduce --runs-only                     no notebooks
"""

from __future__ import annotations

import argparse
import concurrent.futures as cf
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lib.analyses.stages import analyse
from lib.config import BASE_ARMS, ROOT, Experiment, check_seeds, results_dir
from lib.manifest import file_hash, git_state
from lib.notebook import NotebookFailed, run_notebook
from lib.plan import check_device, plan_table
from lib.profiles import DEFAULT_SEEDS, PROFILES, experiment, experiments
from lib.profiles_qwen import HUB
from lib.report import build_report
from lib.sections import LAST, SECTIONS, applicable
from lib.stages import RUNS, base_step, episodes_step, equal_tokens_step, train_step
from lib.store import load_manifest, read_jsonl
from lib.tables import write_whole
from lib.worker import start_worker

POLL_S = 5.0


def plan(x: Experiment, seeds: Sequence[int]) -> list[tuple[str, int | None]]:
    """The policies of an experiment, (arm, seed), in the order in which they are started: a policy that needs rollouts
    for every budget first, as it takes longest, and the base policy before the arms that are compared with it."""
    arms = sorted(x.arms, key=lambda a: (not x.shows_budget(a), a not in x.analysed))
    return [("base", None)] + [(arm, s) for arm in arms for s in seeds]


def work(profile: str, env: str, arm: str, seed: int | None) -> None:
    """One policy from nothing to stored rollouts and analyses, in a worker process."""
    x = experiment(profile, env)
    for step in evaluations(x, arm, seed):
        step()
    if arm in x.analysed:
        analyse(x, arm, seed)


def evaluations(x: Experiment, arm: str, seed: int | None) -> list[Callable[[], Path]]:
    """The rollouts of a policy that notebooks read, as calls that find or make them."""
    shown = x.shows_budget(arm)
    calls = [partial(episodes_step, x, arm, seed, budget=t) for t in (x.grid if shown else (x.t_max,))]
    calls += [partial(episodes_step, x, arm, seed, "train")] if x.arms and not shown else []
    if arm == "budgetmix" and "grpo" in x.arms:  # for the comparison at equal tokens (§5.4); GRPO is started before it
        calls.append(partial(equal_tokens_step, x, seed))
    return calls


def run_name(env: str, arm: str, seed: int | None) -> str:
    return f"{env}-{arm}" + ("" if seed is None else f"-s{seed}")


def run_all(profile: str, seeds: Sequence[int], workers: int) -> None:
    """Work off all runs of a profile: base policies first, then the arms of each as soon as it is there.

    Raises RuntimeError that names every run that failed, after the others ended.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # read when a worker or a kernel loads its libraries
    context = multiprocessing.get_context("spawn")
    with cf.ProcessPoolExecutor(workers, context, start_worker) as pool:
        following: dict[cf.Future, list[tuple[Callable, str]]] = {}
        names = {}
        for x in PROFILES[profile]:
            for base in BASE_ARMS:
                runs = [(a, s) for a, s in plan(x, seeds) if x.base_arm(a) == base]
                if runs:
                    f = pool.submit(_base, profile, x.env, base)
                    names[f] = f"{base} policy of {x.env}"
                    following[f] = [(partial(work, profile, x.env, a, s), run_name(x.name, a, s)) for a, s in runs]
        failed = _wait(pool, names, following)
    if failed:
        raise RuntimeError("these runs failed:\n" + "\n".join(f"  {n}: {e}" for n, e in failed.items()))


def _base(profile: str, env: str, arm: str) -> None:
    base_step(experiment(profile, env), arm)


def _wait(
    pool: cf.Executor, names: dict[cf.Future, str], following: dict[cf.Future, list[tuple[Callable, str]]]
) -> dict[str, str]:
    """Wait for all, start what follows on each, tell the progress; the errors of those that failed."""
    start, failed, pending, done_before = time.monotonic(), {}, set(names), 0
    total = len(names) + sum(map(len, following.values()))
    while pending:
        done, pending = cf.wait(pending, POLL_S, cf.FIRST_COMPLETED)
        for f in done:
            after = following.get(f, [])
            if error := f.exception():
                failed[names[f]] = f"{type(error).__name__}: {error}"
                total -= len(after)
            else:
                started = {pool.submit(call): name for call, name in after}
                names, pending = names | started, pending | set(started)
            say(f"{'FAILED' if error else 'done'}  {names[f]}")
        done_before += len(done)
        lines = [line for f in pending if f.running() and (line := progress(names[f]))]
        waited = time.monotonic() - start
        left = f", about {clock(waited / done_before * (total - done_before))} left" if done else ""
        if lines and (done or sys.stderr.isatty() or int(waited / POLL_S) % 6 == 0):
            say(f"[{clock(waited)}] {done_before}/{total} done{left}")
            for line in lines:
                say(f"    {line}")
    return failed


def progress(name: str) -> str | None:
    """One line on a run under way, from its metrics.jsonl; None before its first update."""
    found = sorted(RUNS.glob(f"train-{name}-*.work/metrics.jsonl"), key=lambda p: p.stat().st_mtime)
    rows = read_jsonl(found[-1]) if found else []
    if not rows:
        return None
    done, total = rows[-1]["update"], rows[-1]["updates"]
    pace = sum(r["seconds_rollout"] + r["seconds_update"] for r in rows[-20:]) / min(len(rows), 20)
    return f"{name}: update {done}/{total}, reward {rows[-1]['reward']:.2f}, ETA {clock(pace * (total - done))}"


def run_notebooks(names: Sequence[str], profile: str, seeds: int, workers: int) -> None:
    """Execute notebooks side by side, the claims last. Raises NotebookFailed for the first that fails."""
    out = results_dir(profile) / "executed"
    paths = [ROOT / "notebooks" / f"{n}.ipynb" for n in names]
    with cf.ThreadPoolExecutor(workers) as pool:
        for batch in ([p for p in paths if p.stem != LAST], [p for p in paths if p.stem == LAST]):
            jobs = {pool.submit(run_notebook, p, out, {"profile": profile, "seeds": seeds}): p for p in batch}
            for job in cf.as_completed(jobs):
                job.result()
                say(f"done  {jobs[job].stem}")


def finished_steps(profile: str, seeds: Sequence[int]) -> list[Path]:
    """The directories of all steps that the notebooks of a profile read, in the order of the plan."""
    found = []
    for x in PROFILES[profile]:
        for arm, seed in plan(x, seeds):
            found += [base_step(x, arm)] + ([] if arm == "base" else [train_step(x, arm, seed)])
            found += [call() for call in evaluations(x, arm, seed)]
    return list(dict.fromkeys(found))


def write_manifest(profile: str, seeds: Sequence[int], steps: Sequence[Path], wall_s: float) -> None:
    """results/<profile>/tables/manifest.json: which steps made these results, at which commit, and what they cost."""
    manifests = {step.name: load_manifest(step) for step in steps}
    about = next(iter(manifests.values()))
    total = {"profile": profile, "seeds": list(seeds), "wall_s": round(wall_s, 1), "git": git_state()}
    total |= {"versions": about["versions"], "platform": about["platform"]}
    total["steps"] = {n: {k: m[k] for k in ("key", "git", "started", "wall_s", "result")} for n, m in manifests.items()}
    path = results_dir(profile) / "tables" / "manifest.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(total, indent=1) + "\n")


def stamp(profile: str, names: Sequence[str], steps: Sequence[Path]) -> dict[str, Any]:
    """What executed notebooks depend on and what they left: equal stamps mean that they need not run again."""
    sources = [*(ROOT / "lib").rglob("*.py"), *(ROOT / "notebooks" / f"{n}.ipynb" for n in names)]
    results = [p for d in ("tables", "figures", "executed") for p in (results_dir(profile) / d).glob("[!.]*.*")]
    made = {str(p.relative_to(ROOT)): file_hash(p) for p in sorted(sources + results) if p.name != "manifest.json"}
    return {"notebooks": list(names), "steps": [s.name for s in steps], "files": made}


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    names = list(SECTIONS)
    parser = argparse.ArgumentParser(prog="python -m lib.reproduce", description="Reproduce the paper.")
    parser.add_argument("--profile", default="tiny", help=f"one of {', '.join(PROFILES)} (default: %(default)s)")
    parser.add_argument("--seeds", type=int, help="number of training seeds (default: the profile's)")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="processes (default: the cores, %(default)s)"
    )
    parser.add_argument(
        "--notebooks", nargs="*", metavar="NAME", help=f"of {', '.join(names)} (default: all that apply)"
    )
    parser.add_argument("--runs-only", action="store_true", help="make the runs, execute no notebook")
    parser.add_argument("--dry-run", action="store_true", help="print runs, episodes, tokens, GPU hours, memory; stop")
    args = parser.parse_args(argv)
    try:
        experiments(args.profile)
        seeds = check_seeds(DEFAULT_SEEDS.get(args.profile, 3) if args.seeds is None else args.seeds)
        if unknown := sorted(set(args.notebooks or ()) - set(names)):
            raise ValueError(f"unknown notebook {unknown[0]!r}; known: {', '.join(names)}")
        wanted = applicable(args.profile) if args.notebooks is None else args.notebooks
        if args.workers < 1:
            raise ValueError(f"workers={args.workers}: at least 1")
        xs = experiments(args.profile)
        if os.environ.get("MODEL") and not xs[0].model:
            raise ValueError(
                f"MODEL={os.environ['MODEL']}: profile {args.profile} trains its own; use {', '.join(HUB)}"
            )
        if args.dry_run or xs[0].model:
            say(plan_table(xs, len(seeds)).to_markdown(index=False, floatfmt=".3g"))
        if args.dry_run:
            return 0
        check_device(xs, len(seeds))
        start = time.monotonic()
        run_all(args.profile, seeds, args.workers)
        if not args.runs_only:
            steps, done = finished_steps(args.profile, seeds), results_dir(args.profile) / "executed" / ".stamp"
            if done.is_file() and json.loads(done.read_text("utf-8")) == stamp(args.profile, wanted, steps):
                say("notebooks, tables and figures are up to date")
            else:
                run_notebooks(wanted, args.profile, len(seeds), args.workers)
                write_manifest(args.profile, seeds, steps, time.monotonic() - start)
                if args.notebooks is None:  # the report shows all of them
                    build_report(args.profile)
                write_whole(done, json.dumps(stamp(args.profile, wanted, steps)))
    except (ValueError, RuntimeError, OSError, NotebookFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    say(f"done in {clock(time.monotonic() - start)}: tables and figures in {results_dir(args.profile)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
