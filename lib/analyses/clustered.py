"""Means over states or turns with intervals over tasks: the task is the cluster, whatever it holds of rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from lib.metrics.intervals import Interval, task_interval


def clustered_mean(
    values: ArrayLike, tasks: ArrayLike, level: float = 0.95, clip: tuple[float, float] | None = None
) -> Interval:
    """Mean of `values` (rows,) with a t interval over `tasks` (rows,), which says the task of each row.

    With m tasks, n_j rows and sum y_j in task j, r = sum(y) / sum(n): the ratio estimator's linearised values
    r + (y_j - r n_j) / mean(n) take the place of task means (Cochran, Sampling Techniques, 1977, §6.3), so that tasks
    may hold different numbers of rows; with equal numbers it is the t interval of the task means. clip: ends are cut
    to it. Raises ValueError for values that are not finite and for fewer than 2 tasks.
    """
    frame = pd.DataFrame({"value": np.asarray(values, dtype=float), "task": np.asarray(tasks)})
    per_task = frame.groupby("task").value.agg(["sum", "count"])
    if len(per_task) < 2:
        raise ValueError(f"an interval needs at least 2 tasks, got {len(per_task)}")
    r = frame.value.mean()
    linear = r + (per_task["sum"] - r * per_task["count"]) / per_task["count"].mean()
    if not np.isfinite(frame.value).all():
        raise ValueError(f"{int((~np.isfinite(frame.value)).sum())} of {len(frame)} values are not finite")
    i = task_interval(linear.to_numpy(), method="t", level=level, clip=None)
    low, high = (i.low, i.high) if clip is None else np.clip((i.low, i.high), *clip)
    return Interval(i.estimate, float(low), float(high), "tasks", i.n, "t", level)


def by_depth(
    df: pd.DataFrame, value: str, bins: int = 5, level: float = 0.95, clip: tuple[float, float] | None = None
) -> pd.DataFrame:
    """Mean of the column `value` by normalised depth d_t = t / Tmax (§3.3), in `bins` equal parts of (0, 1].

    df: columns `depth`, `task` and `value`. Columns: depth (middle of the bin), rows, tasks, estimate, low, high (over
    tasks; NaN below 2 tasks). Bins without rows are left out.
    """
    if bins < 1:
        raise ValueError(f"bins {bins}: it must be at least 1")
    if ((df.depth <= 0) | (df.depth > 1)).any():
        raise ValueError(f"depths from {df.depth.min()} to {df.depth.max()}: they must be in (0, 1]")
    part = np.ceil(df.depth * bins - 1e-9).astype(int)  # t / Tmax on an edge belongs to the bin that ends there
    rows = []
    for b, found in df.groupby(part):
        n = found.task.nunique()
        ends = (np.nan, np.nan)
        if n > 1:
            i = clustered_mean(found[value], found.task, level, clip)
            ends = i.low, i.high
        rows.append(((b - 0.5) / bins, len(found), n, found[value].mean(), *ends))
    return pd.DataFrame(rows, columns=["depth", "rows", "tasks", "estimate", "low", "high"])
