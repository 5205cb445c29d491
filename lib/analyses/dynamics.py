"""Training dynamics (§4.2): does the trajectory reward rise through better steps, or beside them?

On a fixed panel of validation tasks, sampled anew at regular updates:
R_multi: the mean reward of an episode (where the reward is 1 on success, the share that is solved).
R_single: the mean step quality over the turns of an episode, then the mean over episodes, so that a long episode weighs
no more than a short one. FrozenLake: Q* of the action with the turns that are left; a policy that lingers in hopeless
states lowers it. The paper's aggregation is not known; this one is ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from lib.metrics.intervals import seed_interval
from lib.store import read_jsonl

MEASURES = ("r_multi", "r_single")


def probe_curve(run: str | Path) -> pd.DataFrame:
    """R_multi and R_single through one training run, from `probe.jsonl` in its directory.

    Columns: update (0: before training), r_multi, r_single (NaN where the environment has no step measure), episodes
    (of the probe), tokens (of all training episodes up to that update). Raises ValueError for a run that was not probed
    before training and after it.
    """
    path = Path(run, "probe.jsonl")
    rows = read_jsonl(path) if path.is_file() else []
    if len(rows) < 2 or min(r["update"] for r in rows) != 0:
        raise ValueError(f"{run} has no probes at update 0 and later: train with probe_every between 1 and updates")
    df = pd.DataFrame(rows)[["update", *MEASURES, "episodes", "tokens"]]
    return df.astype(dict.fromkeys(MEASURES, float)).sort_values("update", ignore_index=True)


def probe_curves(runs: Iterable[tuple[str, int, str | Path]]) -> pd.DataFrame:
    """`probe_curve` of several runs (arm, seed, directory), with the columns arm and seed in front."""
    parts = []
    for arm, seed, run in runs:
        part = probe_curve(run)
        part.insert(0, "seed", seed)
        part.insert(0, "arm", arm)
        parts.append(part)
    if not parts:
        raise ValueError("no training runs given")
    return pd.concat(parts, ignore_index=True)


def changes(curves: pd.DataFrame) -> pd.DataFrame:
    """From the first probe to the last (C5), one row an arm, seed and measure: first, last, change."""
    rows = []
    for (arm, seed), run in curves.groupby(["arm", "seed"]):
        run = run.sort_values("update")
        for m in MEASURES:
            first, last = float(run[m].iloc[0]), float(run[m].iloc[-1])
            rows.append((arm, seed, m, first, last, last - first))
    return pd.DataFrame(rows, columns=["arm", "seed", "measure", "first", "last", "change"])


def change_intervals(curves: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
    """Mean change of each arm and measure with a t interval over training seeds: arm, measure, seeds, estimate, low,
    high.

    Raises ValueError for an arm with fewer than 2 seeds.
    """
    rows = []
    for (arm, measure), found in changes(curves).groupby(["arm", "measure"]):
        i = seed_interval(found.change.to_numpy(), level)
        rows.append((arm, measure, i.n, i.estimate, i.low, i.high))
    return pd.DataFrame(rows, columns=["arm", "measure", "seeds", "estimate", "low", "high"])


def change(curves: pd.DataFrame, arm: str, seed: int, measure: str) -> float:
    """Last minus first probe of "r_multi" or "r_single" of one run: one number of a training seed."""
    if measure not in MEASURES:
        raise ValueError(f"measure {measure!r}: known are {', '.join(MEASURES)}")
    c = changes(curves)
    found = c[(c.arm == arm) & (c.seed == seed) & (c.measure == measure)]
    if len(found) != 1:
        raise ValueError(f"no run of arm {arm!r} with seed {seed!r} in the curves")
    return float(found.change.iloc[0])
