"""Pass@(K,T) curves as tidy tables: one row a policy, seed, K and T, and their means with intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.config import ARMS, Experiment
from lib.envs.frozenlake import FrozenLakeConfig
from lib.metrics.bounds import frozenlake_bound
from lib.metrics.intervals import paired_seeds, task_curve_interval
from lib.stages import surface, test_panel, tokens_trained, update_at_tokens


def label(policy: str) -> str:
    """How a policy is called in figures and tables."""
    return "Base" if policy == "base" else ARMS[policy].label


def pass_curves(
    x: Experiment, policies: Sequence[str], seeds: Sequence[int], ks: Sequence[int], ts: Sequence[int],
    split: str = "test",
) -> pd.DataFrame:  # fmt: skip
    """Pass@(K,T) of policies: columns environment, policy, seed ("mean": over seeds), K, T, pass, low, high.

    low and high are on the mean rows only: a 95 % bootstrap band over tasks, of each task's mean over seeds.
    """
    rows = []
    for policy in policies:
        which = [None] if policy == "base" else list(seeds)
        per_seed = np.stack([surface(x, policy, s, tuple(ks), tuple(ts), split) for s in which])  # seeds, tasks, K, T
        mean = per_seed.mean(0)
        band = task_curve_interval(mean)
        for i, k in enumerate(ks):
            for j, t in enumerate(ts):
                at = {"environment": x.env, "policy": label(policy), "K": int(k), "T": int(t)}
                low, high = band[:, i, j]
                rows.append(at | {"seed": "mean", "pass": mean[:, i, j].mean(), "low": low, "high": high})
                if policy != "base":
                    each = zip(which, per_seed, strict=True)
                    rows += [at | {"seed": str(s), "pass": p[:, i, j].mean()} for s, p in each]
    return pd.DataFrame(rows, columns=["environment", "policy", "seed", "K", "T", "pass", "low", "high"])


def bound_curve(x: Experiment, ks: Sequence[int], ts: Sequence[int]) -> pd.DataFrame | None:
    """The structural bound on the test panel, same columns; None where the environment has no exact one."""
    if not isinstance(x.env_config, FrozenLakeConfig):
        return None
    bound = frozenlake_bound(x.env_config, test_panel(x).tasks, list(ks), list(ts))
    rows = [
        {
            "environment": x.env,
            "policy": "Structural bound",
            "seed": "mean",
            "K": int(k),
            "T": int(t),
            "pass": bound[i, j],
        }
        for i, k in enumerate(ks)
        for j, t in enumerate(ts)
    ]
    return pd.DataFrame(rows)


def per_seed(x: Experiment, policy: str, seeds: Sequence[int], k: int, t: int, split: str = "test") -> np.ndarray:
    """Pass@(K,T) of each seed, (seeds,); the base policy, which has no seed, is repeated."""
    if policy == "base":
        return np.repeat(surface(x, "base", None, (k,), (t,), split).mean(), len(seeds))
    return np.array([surface(x, policy, s, (k,), (t,), split).mean() for s in seeds])


def lead_table(
    x: Experiment, pairs: Sequence[tuple[str, str]], seeds: Sequence[int], points: Sequence[tuple[int, int]]
) -> pd.DataFrame:
    """Leads of policies over others at (K, T) points, paired over training seeds: columns environment, policy, over, K,
    T, lead, low, high (95 % t interval over seeds), and one of each seed's lead."""
    rows = []
    for a, b in pairs:
        for k, t in points:
            values = per_seed(x, a, seeds, k, t), per_seed(x, b, seeds, k, t)
            rows.append({"environment": x.env} | _lead_row(label(a), label(b), k, t, *values, seeds))
    return pd.DataFrame(rows)


def equal_tokens_table(x: Experiment, seeds: Sequence[int], points: Sequence[tuple[int, int]]) -> pd.DataFrame:
    """`lead_table` of BudgetMix over the GRPO snapshot of the same seed that had seen at most as many tokens (§5.4)."""
    updates = [update_at_tokens(x, "grpo", s, tokens_trained(x, "budgetmix", s)) for s in seeds]
    rows = []
    for k, t in points:
        ours = per_seed(x, "budgetmix", seeds, k, t)
        theirs = [surface(x, "grpo", s, (k,), (t,), update=u).mean() for s, u in zip(seeds, updates, strict=True)]
        row = _lead_row(label("budgetmix"), "GRPO at equal tokens", k, t, ours, np.array(theirs), seeds)
        rows.append({"environment": x.env} | row)
    return pd.DataFrame(rows).assign(updates="/".join(map(str, updates)))


def _lead_row(policy: str, over: str, k: int, t: int, a: np.ndarray, b: np.ndarray, seeds: Sequence[int]) -> dict:
    i = paired_seeds(a, b)
    row = {"policy": policy, "over": over, "K": k, "T": t, "lead": i.estimate, "low": i.low, "high": i.high}
    return row | {f"seed {s}": d for s, d in zip(seeds, a - b, strict=True)}
