"""Intervals and tests over the unit that varies: tasks for fixed checkpoints, training seeds for algorithms.

Which function answers which question:
    how good is this checkpoint on tasks like these?    task_interval, task_curve_interval
    do these two checkpoints differ?                    paired_tasks (speaks of these two checkpoints only)
    does it do better on training than on test tasks?   generalisation_gap
    how good is this algorithm? do two algorithms differ?   seed_interval, paired_seeds, paired_t_pvalue, tost

Never resample rollouts within a task: the per-task Pass@(K,T) estimate is a function of all n of them, a resample with
repeats biases it, and rollouts of one task are correlated, so pooling them gives intervals that are far too narrow.
Never pool rollouts or tasks to compare algorithms: what varies between two runs of an algorithm is the seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats

METHODS = ("bca", "percentile", "t")
_CHUNK = 2_000_000  # numbers held at once while resampling


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval, and all that a caption must say of it.

    estimate, low, high: in the units of the data. unit: what varies, "tasks" or "seeds". n: how many of them (both
    samples together where there are two). method: "bca", "percentile" or "t". level: nominal coverage.
    Zero width says that the units did not differ, not that the estimate is certain.
    """

    estimate: float
    low: float
    high: float
    unit: str
    n: int
    method: str
    level: float = 0.95

    def __post_init__(self):
        if not self.low <= self.high:
            raise ValueError(f"interval from {self.low} to {self.high}: low must not exceed high, nor be NaN")


def _sample(x: ArrayLike, unit: str, ndim: int | None = 1) -> np.ndarray:
    x = np.asarray(x, dtype=float)
    if x.size == 0 or x.ndim == 0 or (ndim is not None and x.ndim != ndim):
        raise ValueError(f"need an array of shape ({unit},{' ...' if ndim is None else ''}), got shape {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError(f"{np.sum(~np.isfinite(x))} of {x.size} values are not finite; fix them, do not drop {unit}")
    if len(x) < 2:
        raise ValueError(f"an interval needs at least 2 {unit}, got {len(x)}: add more {unit}")
    return x


def _difference(a: ArrayLike, b: ArrayLike, unit: str) -> np.ndarray:
    a, b = _sample(a, unit), _sample(b, unit)
    if a.shape != b.shape:
        raise ValueError(f"pairs need the same {unit} on both sides, got {len(a)} and {len(b)}")
    return a - b


def _check_level(level: float) -> float:
    if not 0 < level <= 0.999:
        raise ValueError(f"level must be in (0, 0.999], got {level}")
    return level


def _resampled_means(x: np.ndarray, rng: np.random.Generator, n_boot: int) -> Iterator[np.ndarray]:
    """Means of bootstrap resamples of the rows of x (n, cells), in chunks (resamples, cells)."""
    if n_boot < 200:
        raise ValueError(f"n_boot must be at least 200 for the tails to mean something, got {n_boot}")
    n, rows = len(x), max(1, _CHUNK // len(x))
    for start in range(0, n_boot, rows):
        m = min(rows, n_boot - start)
        drawn = rng.integers(0, n, size=(m, n)) + n * np.arange(m)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=m * n).reshape(m, n)
        yield counts @ x / n


def _mean_interval(
    terms: list[tuple[int, np.ndarray]], unit: str, method: str, level: float, seed: int, n_boot: int
) -> Interval:
    """Interval of Σ sign·mean(sample) over one sample, or over two independent ones."""
    _check_level(level)
    if method not in METHODS:
        raise ValueError(f"unknown interval method {method!r}; known: {', '.join(METHODS)}")
    estimate = float(sum(sign * x.mean() for sign, x in terms))
    n = sum(len(x) for _, x in terms)
    scale = max(np.abs(x).max() for _, x in terms)
    eps = 1e-12 * scale  # equal means differ by rounding
    if all(np.ptp(x) <= eps for _, x in terms):
        return Interval(estimate, estimate, estimate, unit, n, method, level)
    tails = np.array([(1 - level) / 2, (1 + level) / 2])
    if method == "t":  # Welch; with one sample this is the ordinary t with n - 1 degrees of freedom
        v = [x.var(ddof=1) / len(x) for _, x in terms]
        df = sum(v) ** 2 / sum(w**2 / (len(x) - 1) for w, (_, x) in zip(v, terms, strict=True))
        low, high = estimate + np.sqrt(sum(v)) * stats.t.ppf(tails, df)
        return Interval(estimate, float(low), float(high), unit, n, method, level)
    rng = np.random.default_rng(seed)
    boot = sum(sign * np.concatenate(list(_resampled_means(x[:, None], rng, n_boot)))[:, 0] for sign, x in terms)
    if method == "bca":  # Efron 1987: bias from the median, acceleration from the skewness of the influences
        share = np.mean(boot < estimate - eps) + 0.5 * np.mean(np.abs(boot - estimate) <= eps)
        influence = [sign * (x - x.mean()) / len(x) for sign, x in terms]
        third, second = (sum(np.sum(u**p) for u in influence) for p in (3, 2))
        z0, z = stats.norm.ppf(share), stats.norm.ppf(tails)
        tails = stats.norm.cdf(z0 + (z0 + z) / (1 - third / (6 * second**1.5) * (z0 + z)))
    low, high = np.quantile(boot, tails)
    return Interval(estimate, float(low), float(high), unit, n, method, level)


def task_interval(
    per_task: ArrayLike,
    method: str = "bca",
    level: float = 0.95,
    seed: int = 0,
    n_boot: int = 10_000,
    clip: tuple[float, float] | None = (0.0, 1.0),
) -> Interval:
    """Interval of the mean of `per_task` (tasks,) for a fixed checkpoint: tasks are resampled, never rollouts.

    method: "bca" (default; with "t" the one to use below about 100 tasks), "percentile" or "t". clip: the range of the
    quantity; ends are cut to it and values outside are refused. None for an unbounded one (NLL, turns).
    All values equal: zero width. Raises ValueError for non-finite or empty input, fewer than 2 tasks, values outside
    `clip`, an unknown method, a level outside (0, 0.999] or n_boot < 200.
    """
    x = _sample(per_task, "tasks")
    if clip is None:
        return _mean_interval([(1, x)], "tasks", method, level, seed, n_boot)
    if x.min() < clip[0] or x.max() > clip[1]:
        raise ValueError(f"values from {x.min()} to {x.max()} lie outside {clip}; pass clip=None or their real range")
    i = _mean_interval([(1, x)], "tasks", method, level, seed, n_boot)
    return Interval(i.estimate, max(i.low, clip[0]), min(i.high, clip[1]), i.unit, i.n, method, level)


def task_curve_interval(per_task: ArrayLike, level: float = 0.95, seed: int = 0, n_boot: int = 2_000) -> np.ndarray:
    """Percentile band of the mean over tasks of `per_task` (tasks, ...): (2, ...), low and high.

    All points share one set of resamples of tasks. The band is pointwise: it is no claim about the whole curve at once.
    It stays within the range of the data. For the difference of two checkpoints on the same tasks pass a − b.
    Raises ValueError as `task_interval` does.
    """
    x = _sample(per_task, "tasks", ndim=None)
    _check_level(level)
    boot = np.concatenate(list(_resampled_means(x.reshape(len(x), -1), np.random.default_rng(seed), n_boot)))
    return np.quantile(boot, [(1 - level) / 2, (1 + level) / 2], axis=0).reshape(2, *x.shape[1:])


def paired_tasks(
    a: ArrayLike, b: ArrayLike, method: str = "bca", level: float = 0.95, seed: int = 0, n_boot: int = 10_000
) -> Interval:
    """Interval of mean(a − b), two checkpoints on the same tasks (tasks,), in the same order.

    It speaks of these two checkpoints only; for the algorithms that made them use `paired_seeds`.
    Raises ValueError as `task_interval` does, and where the numbers of tasks differ.
    """
    return _mean_interval([(1, _difference(a, b, "tasks"))], "tasks", method, level, seed, n_boot)


def generalisation_gap(
    train: ArrayLike, test: ArrayLike, method: str = "bca", level: float = 0.95, seed: int = 0, n_boot: int = 10_000
) -> Interval:
    """Interval of mean(train) − mean(test), one checkpoint on two panels: unpaired, each panel resampled by task.

    train (tasks,), test (tasks',): per-task success. "t" is Welch's. Raises ValueError as `task_interval` does.
    """
    terms = [(1, _sample(train, "tasks")), (-1, _sample(test, "tasks"))]
    return _mean_interval(terms, "tasks", method, level, seed, n_boot)


def seed_interval(x: ArrayLike, level: float = 0.95) -> Interval:
    """t interval of the mean of x (seeds,), one number per training seed. Raises ValueError below 2 seeds."""
    return _mean_interval([(1, _sample(x, "seeds"))], "seeds", "t", level, 0, 0)


def paired_seeds(a: ArrayLike, b: ArrayLike, level: float = 0.95) -> Interval:
    """Paired t interval of mean(a − b), two algorithms on the same training seeds (seeds,).

    Entry i of both comes from the same initial weights and order of tasks. Raises ValueError below 2 seeds or where
    the numbers of seeds differ.
    """
    return seed_interval(_difference(a, b, "seeds"), level)


def paired_t_pvalue(a: ArrayLike, b: ArrayLike) -> float:
    """Two-sided p-value of the paired t test over training seeds (seeds,). 1 where all differences are 0.

    Raises ValueError as `paired_seeds` does, and where all differences are one value other than 0 (t is undefined).
    """
    d = _difference(a, b, "seeds")
    return float(2 * stats.t.sf(abs(d.mean()) / _standard_error(d), len(d) - 1)) if d.any() else 1.0


def _standard_error(d: np.ndarray) -> float:
    if np.ptp(d) <= 1e-12 * np.abs(d).max():
        raise ValueError(f"a t test needs spread, but all {len(d)} differences are {d[0]}: add seeds or tasks")
    return float(d.std(ddof=1) / np.sqrt(len(d)))


def tost(x: ArrayLike, margin: float) -> tuple[float, Interval]:
    """Parity: p-value of "mean(x) is at least `margin` away from 0" by two one-sided t tests, and the 90 % interval.

    x (seeds,): paired differences. p < 0.05 exactly when the 90 % interval lies within (−margin, margin). A large
    p-value of an ordinary test is no evidence of parity. Raises ValueError for margin <= 0, below 2 seeds, no spread.
    """
    x = _sample(x, "seeds")
    if not 0 < margin < np.inf:
        raise ValueError(f"margin must be positive and finite, got {margin}")
    t = (margin - abs(x.mean())) / _standard_error(x)
    return float(stats.t.sf(t, len(x) - 1)), seed_interval(x, level=0.90)


def minimum_detectable_effect(sd: float, n_seeds: int, power: float = 0.8, level: float = 0.95) -> float:
    """The smallest mean difference a two-sided paired t test at 1 − level finds with probability `power`.

    sd: standard deviation of the paired differences between seeds; the result has its units. Raises ValueError for
    sd < 0, fewer than 2 seeds, or a power not in (1 − level, 1).
    """
    _check_level(level)
    if not 0 <= sd < np.inf or n_seeds < 2 or n_seeds != int(n_seeds) or not 1 - level < power < 1:
        raise ValueError(
            f"need sd >= 0, at least 2 seeds and power in (1 - level, 1); got {sd=}, {n_seeds=}, {power=}, {level=}"
        )
    df = n_seeds - 1
    critical = stats.t.ppf((1 + level) / 2, df)

    def excess(ncp: float) -> float:
        # both tails as upper tails: scipy's nct.cdf returns NaN deep in the lower one
        return stats.nct.sf(critical, df, ncp) + stats.nct.sf(critical, df, -ncp) - power

    high = 1.0
    while excess(high) < 0:
        high *= 2
    return float(sd * optimize.brentq(excess, 0.0, high) / np.sqrt(n_seeds))


def holm(pvalues: ArrayLike) -> np.ndarray:
    """Holm's adjusted p-values, in the order given. Raises ValueError for empty input or values outside [0, 1]."""
    p = np.asarray(pvalues, dtype=float)
    if p.ndim != 1 or p.size == 0 or not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p-values must be a flat, non-empty list of numbers in [0, 1], got {pvalues!r}")
    order = np.argsort(p)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)), 1.0)
    return adjusted
