"""The reward of InterCode-SQL (arXiv 2306.14898).

Official score: A, E = multisets of the rows (as Python prints them) of the last result and of the gold,
r = |A ∩ E| / Σ max(A, E), 1 where both are empty, times Kendall's tau-b between the common rows in the agent's order
and in the gold's (compared as strings, position by position), rounded to two digits; 0 where the last action gave no
rows to score. Quirks, kept: order counts where the gold has no ORDER BY, r can be negative, r >= 0.995 counts as 1,
any empty result scores 1 where the gold is empty (88 of the 1034 questions).
Strict score: no rounding, order counts (tau clipped at 0) only where the gold orders; tasks with an empty gold are left
out. Rows that tie in the gold's ORDER BY are still expected in the gold's order.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np


def _tau_b(a: list[str], b: list[str]) -> float:
    """Kendall's tau-b of two orders of the same multiset of strings; NaN where all are equal.

    In SciPy's arithmetic, as InterCode uses it: its last bit decides which way -0.375 is rounded.
    """
    rank = {s: i for i, s in enumerate(sorted(set(a)))}
    x, y = np.array([rank[s] for s in a]), np.array([rank[s] for s in b])
    n = len(x)
    concordance = sum(int((np.sign(x[i + 1 :] - x[i]) * np.sign(y[i + 1 :] - y[i])).sum()) for i in range(n - 1))
    pairs = math.comb(n, 2) - sum(math.comb(c, 2) for c in Counter(a).values())  # the same number for a and b
    return max(-1.0, min(1.0, concordance / math.sqrt(pairs) / math.sqrt(pairs))) if pairs else math.nan


def _overlap(rows: list[tuple], gold: list[tuple]) -> tuple[float, float]:
    """(intersection over union of the multisets, tau-b of the common rows)."""
    a, e = [str(r) for r in rows], [str(r) for r in gold]
    union = sum((Counter(a) | Counter(e)).values())
    if not union:
        return 1.0, math.nan

    def common(items: list[str]) -> list[str]:
        left, out = Counter(a) & Counter(e), []
        for item in items:
            if left[item]:
                left[item] -= 1
                out.append(item)
        return out

    x, y = common(a), common(e)
    return len(x) / union, _tau_b(x, y)


def official_score(rows: list[tuple] | None, gold: list[tuple]) -> float:
    """InterCode's reward in [-1, 1] of a submitted result; None stands for no result (an error, USE, nothing run)."""
    if rows is None:
        return 0.0
    r, tau = _overlap(rows, gold)
    return r if math.isnan(tau) else float(np.round(tau * r, 2))  # as round() does on SciPy's number, not on a float


def strict_score(rows: list[tuple] | None, gold: list[tuple], ordered: bool) -> float:
    """In [0, 1]: intersection over union, times tau clipped at 0 where the gold orders its rows."""
    if rows is None:
        return 0.0
    r, tau = _overlap(rows, gold)
    return r * max(0.0, round(tau, 12)) if ordered and not math.isnan(tau) else r
