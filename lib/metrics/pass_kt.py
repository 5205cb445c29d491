"""Pass@(K,T): at least one of K sampled trajectories of a task solves it within T turns (paper §2.2).

Everything is returned per task, since the task is the unit of the intervals in `lib.metrics.intervals`; the mean over
tasks is the number the paper plots. The paper's two slices of the surface are
    Pass@K, T = Tmax:   pass_kt(success_turn, ks, [t_max], t_max)[:, :, 0]
    Pass@T, K = C = 8:  pass_kt(success_turn, [8], ts, t_max)[:, 0, :]
Sample n >= 2K rollouts a task: at n = K the estimator is `any` of them, with its large variance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike


def _integers(name: str, values: ArrayLike, low: int) -> np.ndarray:
    """`values` as an integer array; raises ValueError where one is not a whole number of at least `low`."""
    x = np.asarray(values)
    if x.size == 0 or x.dtype.kind not in "iuf":
        raise ValueError(f"{name} must be one or more numbers, got {values!r}")
    bad = ~(np.isfinite(x) & (x == np.floor(x)) & (x >= low))
    if bad.any():
        raise ValueError(f"{name} must be whole numbers >= {low}, got {x[bad].ravel()[:5].tolist()}")
    return x.astype(np.int64)


def _axis(name: str, values: Sequence[int]) -> np.ndarray:
    x = _integers(name, values, 1)
    if x.ndim != 1 or len(set(x.tolist())) != x.size:
        raise ValueError(f"{name} must be a flat list without repeats, got {values!r}")
    return x


def _check_turns(success_turn: ArrayLike, t_max: int) -> np.ndarray:
    """(tasks, n) success turns: whole numbers in 1..t_max, or inf for never."""
    s = np.asarray(success_turn, dtype=float)
    if s.ndim != 2 or s.size == 0:
        raise ValueError(f"success_turn must be (tasks, samples) and not empty, got shape {s.shape}")
    bad = ~((s == np.inf) | ((s >= 1) & (s <= t_max) & (s == np.floor(s))))  # NaN fails every comparison
    if bad.any():
        raise ValueError(f"success turns must be whole, in 1..{t_max}, or inf for never; got {s[bad][:5].tolist()}")
    return s


def pass_at_k(n: ArrayLike, c: ArrayLike, k: ArrayLike) -> np.ndarray:
    """Unbiased estimate of P(at least one of k samples succeeds) from c successes in n samples.

    1 − C(n−c, k) / C(n, k), as the product ∏_{j<k} (n−c−j)/(n−j), which neither overflows nor cancels (Chen et al.,
    arXiv 2107.03374). `n`, `c`, `k` broadcast against each other; the result has the broadcast shape.

    Raises ValueError where a value is not whole or is negative, n or k is 0, c > n or k > n.
    """
    n, c, k = np.broadcast_arrays(_integers("n", n, 1), _integers("c", c, 0), _integers("k", k, 1))
    for name, x in (("c", c), ("k", k)):
        if (x > n).any():
            i = np.argmax(x > n)
            raise ValueError(
                f"{name} = {x.flat[i]} is larger than n = {n.flat[i]}; sample more rollouts or lower {name}"
            )
    none = np.ones(n.shape)
    for j in range(int(k.max())):
        use = j < k
        none = np.where(use, none * np.maximum(n - c - j, 0) / np.where(use, n - j, 1), none)
    return 1.0 - none


def pass_kt(success_turn: ArrayLike, ks: Sequence[int], ts: Sequence[int], t_max: int) -> np.ndarray:
    """The Pass@(K,T) surface of every task, (tasks, len(ks), len(ts)), from ONE set of rollouts at Tmax (paper §2.2).

    Only for a policy that is not told its budget: it acts the same under every T, so a rollout that succeeds at turn t
    is a success for every T >= t. Use `pass_kt_resampled` for a policy that is told it.

    success_turn: (tasks, n), the 1-based turn at which each rollout succeeded, inf for never. Truncated, invalid and
    failed rollouts are inf and stay in the denominator. t_max: the budget, in turns, the rollouts were made with.

    Raises ValueError for NaN, for turns outside 1..t_max, for T outside 1..t_max and for k > n.
    """
    t_max = int(_integers("t_max", t_max, 1))
    ks, ts = _axis("ks", ks), _axis("ts", ts)
    s = _check_turns(success_turn, t_max)
    if ts.max() > t_max:
        raise ValueError(f"T = {ts.max()} is beyond t_max = {t_max}: these rollouts were cut there; sample longer ones")
    successes = (s[:, :, None] <= ts).sum(axis=1)
    return pass_at_k(s.shape[1], successes[:, None, :], ks[None, :, None])


def pass_kt_resampled(
    success_turn: Mapping[int, ArrayLike], ks: Sequence[int], tasks: Mapping[int, Sequence[str]] | None = None
) -> np.ndarray:
    """The surface from one set of rollouts per budget: for a policy that is told its budget.

    success_turn: {T: (tasks, n_T)}, from rollouts made with budget T; a row is one task for every T, n_T may differ.
    tasks: {T: task ids of the rows}; where given, the ids must be the same, in the same order, for every T.
    Returns (tasks, len(ks), number of T), T in the order of the mapping.

    Raises ValueError where the tasks differ between budgets, and as `pass_kt` does.
    """
    ks, ts = _axis("ks", ks), _axis("T", list(success_turn))
    sets = [_check_turns(s, int(t)) for t, s in success_turn.items()]
    rows = {int(t): len(s) for t, s in zip(ts, sets, strict=True)}
    if len(set(rows.values())) != 1:
        raise ValueError(f"every T needs the same tasks, got these numbers of tasks per T: {rows}")
    if tasks is not None:
        if set(tasks) != set(success_turn):
            raise ValueError(f"task ids for T = {sorted(tasks)}, rollouts for T = {sorted(success_turn)}")
        ids = {tuple(names) for names in tasks.values()}
        if len(ids) != 1 or len(ids.pop()) != len(sets[0]):
            raise ValueError("every T needs the same task ids in the same order, one per row of success_turn")
    columns = [pass_at_k(s.shape[1], np.isfinite(s).sum(axis=1)[:, None], ks[None, :]) for s in sets]
    return np.stack(columns, axis=-1)
