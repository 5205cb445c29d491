"""The structural upper bound on Pass@(K,T): what any policy can reach within T turns (paper §3.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from lib.envs.base import Task
from lib.envs.frozenlake import FrozenLakeConfig, q_table


def structural_bound(values: ArrayLike, ks: Sequence[int], ts: Sequence[int]) -> np.ndarray:
    """Mean over tasks of 1 − (1 − V*_T(s0))^K, shape (len(ks), len(ts)).

    values: V*_t(s0) of each task with t = 0..Tmax turns in all, shape (tasks, Tmax + 1), in [0, 1]. V* is the success
    probability of the best policy for that T, so for each T the bound may come from another policy, and one that knows
    its budget. K independent trajectories of one policy reach at most the bound, since each succeeds with at most V*.

    Raises ValueError for other shapes or values, K < 1, T < 1 or T > Tmax.
    """
    v = np.asarray(values, dtype=float)
    if v.ndim != 2 or v.shape[0] < 1 or v.shape[1] < 2:
        raise ValueError(f"values must be (tasks, Tmax + 1) with a task and Tmax >= 1, got shape {v.shape}")
    if not ((v >= 0) & (v <= 1)).all():
        raise ValueError(f"values must be in [0, 1], got {v[~((v >= 0) & (v <= 1))][:5].tolist()}")
    ks, ts = _whole("K", ks, None), _whole("T", ts, v.shape[1] - 1)
    return (1 - (1 - v[:, ts]) ** ks[:, None, None]).mean(axis=1)


def frozenlake_bound(
    config: FrozenLakeConfig, tasks: Iterable[Task], ks: Sequence[int], ts: Sequence[int]
) -> np.ndarray:
    """`structural_bound` of FrozenLake tasks by exact backward induction, shape (len(ks), len(ts))."""
    maps = [tuple(t.data["desc"]) for t in tasks]
    if not maps:
        raise ValueError("no tasks: the bound is a mean over tasks")
    starts = ["".join(m).index("S") for m in maps]
    tables = (q_table(m, config.success_rate, config.max_turns) for m in maps)
    return structural_bound([q[:, s].max(axis=1) for q, s in zip(tables, starts, strict=True)], ks, ts)


def _whole(name: str, values: Sequence[int], high: int | None) -> np.ndarray:
    x = np.asarray(values)
    if x.ndim != 1 or x.size == 0 or x.dtype.kind not in "iu" or x.min() < 1 or (high is not None and x.max() > high):
        limit = "" if high is None else f" and at most Tmax = {high}"
        raise ValueError(f"{name} must be a flat list of whole numbers of at least 1{limit}, got {values!r}")
    return x
