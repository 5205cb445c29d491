"""Where did an RL policy gain? Every analysis of the paper on two checkpoints: python -m lib.diagnose BASE RL --env sql

BASE and RL are hub ids, model folders or LoRA adapters with the same tokenizer. Both play the same test tasks with the
same seeds; the notebook `diagnose.ipynb` shows the tables and figures, and `in_words` says where RL gained: breadth,
depth, step quality, recovery, or only with enough budget. The unit is the task, so everything here speaks of these two
checkpoints, not of the algorithm that made them; for that train several seeds.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib.analyses import error_states as errors
from lib.analyses import likelihood as nll
from lib.analyses.clustered import clustered_mean
from lib.analyses.config import AnalysisConfig
from lib.config import ROOT, EvalConfig
from lib.envs.base import env_class
from lib.episode import load_episodes, save_episodes, success_turns
from lib.metrics.intervals import Interval, paired_tasks
from lib.metrics.pass_kt import pass_kt
from lib.notebook import NotebookFailed, run_notebook
from lib.panel import panel
from lib.policies.config import PolicyConfig
from lib.profiles import PROFILES
from lib.report import write_page
from lib.stages import RUNS, model_folder, model_key
from lib.store import run_step

OUT = ROOT / "results" / "diagnose"


@dataclass(frozen=True)
class Diagnosis:
    """Two checkpoints to be compared in an environment. base, rl: hub ids or folders. env: registry name or
    `module:Class`. env_config, policy: default those of the tiny profile, where it has the environment."""

    base: str
    rl: str
    env: str
    env_config: Any
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    evaluation: EvalConfig = field(default_factory=partial(EvalConfig, tasks=100))
    analysis: AnalysisConfig = field(default_factory=AnalysisConfig)

    @property
    def t_max(self) -> int:
        return self.env_config.max_turns


def diagnosis(base: str, rl: str, env: str, tasks: int = 100, **policy: Any) -> Diagnosis:
    """A Diagnosis with the settings of the tiny profile; `policy` replaces fields of PolicyConfig.

    Raises ValueError for an unknown environment, FileNotFoundError for a model that is not to be had.
    """
    known = next((x for x in PROFILES["tiny"] if x.env == env), None)
    config = known.env_config if known else env_class(env).Config()
    settings = replace(known.policy if known else PolicyConfig(), **policy)
    for model in (base, rl):
        model_folder(model, "main")
    evaluation = replace(known.evaluation if known else EvalConfig(), tasks=tasks)
    return Diagnosis(base, rl, env, config, settings, evaluation, known.analysis if known else AnalysisConfig())


def rollouts(d: Diagnosis, which: str) -> Path:
    """The step directory of the rollouts of "base" or "rl", found or made."""
    tasks = panel(d.env, d.env_config, "test", d.evaluation.tasks)
    about = {"env": d.env, "env_config": d.env_config, "policy": d.policy, "evaluation": d.evaluation}
    folder = model_folder(getattr(d, which), "main")
    make = partial(_roll, d, folder, tasks.tasks)
    source = ("lib.rollout", d.policy.module, env_class(d.env).__module__)
    inputs = [model_key(folder), tasks.hash]
    return run_step(f"diagnose-{env_class(d.env).name}", about, make, root=RUNS, inputs=inputs, source=source)


def _roll(d: Diagnosis, folder: Path, tasks: tuple, out: Path) -> dict[str, Any]:
    from lib.rollout import jobs, rollout

    cls, todo = env_class(d.env), jobs(tasks, d.evaluation.samples, d.t_max, d.evaluation.seed)
    policy = d.policy.load(folder)
    found = rollout(policy, cls, d.env_config, todo, quality=cls.has_step_measure, states=True, batch_size=64)
    save_episodes(found, out / "episodes.parquet")
    return {"episodes": len(found)}


def tables(d: Diagnosis) -> dict[str, pd.DataFrame]:
    """The analyses of both checkpoints: "likelihood", and where there is a step measure "matched" and "errors" (see
    lib/analyses); found or made."""
    steps = [rollouts(d, which) for which in ("base", "rl")]
    about = {"analysis": d.analysis, "env_config": d.env_config, "policy": d.policy}
    make, source = partial(_analyse, d, steps), ("lib.diagnose", env_class(d.env).__module__)
    step = run_step(f"diagnosis-{env_class(d.env).name}", about, make, root=RUNS, inputs=steps, source=source)
    return {path.stem: pd.read_parquet(path) for path in sorted(step.glob("*.parquet"))}


def _analyse(d: Diagnosis, steps: list[Path], out: Path) -> None:
    from lib.analyses.step_quality import matched_states

    cls = env_class(d.env)
    score = replace(d.policy, engine="hf", server="")  # as lib/analyses/stages.py
    base, rl = (score.load(model_folder(m, "main")) for m in (d.base, d.rl))
    played = [load_episodes(step / "episodes.parquet") for step in steps]
    found = {"likelihood": nll.action_likelihood(base, rl, *played, d.t_max, d.analysis.likelihood_samples)}
    if cls.has_step_measure:
        where = (base, rl, cls, d.env_config, *played, d.analysis)
        found["matched"] = matched_states(*where)
        found["errors"] = errors.error_states(*where, errors.CONSTRUCTIONS if cls.action_names else ("visited",))
    for name, df in found.items():
        df.to_parquet(out / f"{name}.parquet", index=False)


def pass_of(d: Diagnosis, which: str, ks: list[int], ts: list[int]) -> np.ndarray:
    """Pass@(K,T) of "base" or "rl" for each task, (tasks, len(ks), len(ts))."""
    turns = success_turns(load_episodes(rollouts(d, which) / "episodes.parquet"))[1]
    return pass_kt(turns, ks, ts, d.t_max)


@dataclass(frozen=True)
class Finding:
    """One aspect: what was measured (RL minus base), with a 95 % interval over tasks, and what it means in words."""

    aspect: str
    measure: str
    estimate: float
    low: float
    high: float
    gained: str


def _finding(aspect: str, measure: str, i: Interval) -> Finding:
    gained = "yes" if i.low > 0 else "no, it lost" if i.high < 0 else "not shown"
    return Finding(aspect, measure, i.estimate, i.low, i.high, gained)


def findings(d: Diagnosis) -> list[Finding]:
    """Where RL gained: first sample, breadth (K), depth (T), tight budget, and where there is a step measure step
    quality and recovery from error states."""
    k, tight = d.evaluation.budget_k, max(1, -(-d.t_max // 4))
    base, rl = (pass_of(d, which, [1, k], [tight, d.t_max]) for which in ("base", "rl"))
    lead = rl - base
    parts = [
        ("first sample", f"success, K = 1, T = {d.t_max}", paired_tasks(rl[:, 0, 1], base[:, 0, 1])),
        ("breadth", f"Pass@{k}, T = {d.t_max}", paired_tasks(rl[:, 1, 1], base[:, 1, 1])),
        ("tight budget", f"success, K = 1, T = {tight}", paired_tasks(rl[:, 0, 0], base[:, 0, 0])),
        (
            "depth",
            f"lead at T = {d.t_max} minus lead at T = {tight}, K = 1",
            paired_tasks(lead[:, 0, 1], lead[:, 0, 0]),
        ),
    ]
    found = tables(d)
    if "matched" in found:
        m = found["matched"]
        parts.append(("step quality", "mean quality at matched states", clustered_mean(m.difference, m.task)))
        e = errors.at_delta(found["errors"], d.analysis.delta, "visited")
        if e.task.nunique() > 1:
            gap = clustered_mean(e.success_rl - e.success_base, e.task)
            parts.append(("recovery", "continuation success from error states", gap))
    return [_finding(*p) for p in parts]


def in_words(d: Diagnosis, found: list[Finding]) -> str:
    """The findings as a few plain sentences."""
    by = {f.aspect: f for f in found}
    up = [name for name in ("breadth", "step quality", "recovery") if name in by and by[name].gained == "yes"]
    lost = [f.aspect for f in found if f.gained == "no, it lost"]
    first, tight, depth = by["first sample"], by["tight budget"], by["depth"]
    if first.gained != "yes" and not up:
        text = "No gain of RL over base is shown at the full budget."
    else:
        text = f"At the full budget the first sample's success changes by {first.estimate:+.3f}"
        text += f" [{first.low:+.3f}, {first.high:+.3f}]. RL gained in: {', '.join(up) or 'none of the other aspects'}."
    if depth.gained == "yes":
        only = " only" if tight.gained != "yes" else ""
        text += f" The gain grows with the interaction budget: it is there{only} with enough turns."
    elif tight.gained == "yes":
        text += " The gain is there under the tight budget too."
    if lost:
        text += f" RL lost in: {', '.join(lost)}."
    missing = [] if "step quality" in by else ["step quality", "recovery"]
    if missing:
        text += f" Not measured, as {d.env} has no step measure: {', '.join(missing)}."
    return text


def main(argv: list[str] | None = None) -> int:
    """The command line: run the notebook and write the report; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lib.diagnose", description=__doc__.splitlines()[0])
    parser.add_argument("base")
    parser.add_argument("rl")
    parser.add_argument("--env", default="frozenlake", help="a registered environment or module:Class")
    parser.add_argument("--tasks", type=int, default=100, help="test tasks (default: %(default)s)")
    args = parser.parse_args(argv)
    try:
        d = diagnosis(args.base, args.rl, args.env, args.tasks)
        parameters = {"base": d.base, "rl": d.rl, "env": d.env, "tasks": args.tasks}
        page = write_page(run_notebook(ROOT / "notebooks" / "diagnose.ipynb", OUT, parameters), OUT / "index.html")
        print(in_words(d, findings(d)))
        print(page)
    except (ValueError, OSError, RuntimeError, NotebookFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
