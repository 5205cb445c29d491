"""Verdicts: what is on which side of a rule's boundary, and the row that says so."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from lib.config import Experiment
from lib.metrics.intervals import Interval, holm, minimum_detectable_effect, paired_t_pvalue, seed_interval


@dataclass(frozen=True)
class Claim:
    """One row of claims.csv. estimate, low, high: the primary end point; boundary, side: supported means above (">") or
    below ("<") the boundary, or within ± it ("within"); detectable: the smallest
    effect that this run would have found with probability 0.8; paper: the paper's figure, for comparison only."""

    claim: str
    environment: str
    profile: str
    statement: str
    estimate: float
    low: float
    high: float
    boundary: float
    side: str
    unit: str
    n_tasks: int
    n_seeds: int
    verdict: str
    detectable: float
    paper: str
    rule: str


def verdict(interval: Interval, boundary: float = 0.0) -> str:
    """Which side of the boundary the whole interval lies on; "supported" is above. Seeds that agree to the last digit
    say nothing of how much seeds vary: "inconclusive"."""
    if interval.low == interval.high:
        return "inconclusive"
    if interval.low > boundary:
        return "supported"
    return "opposite" if interval.high < boundary else "inconclusive"


def below(interval: Interval, boundary: float) -> str:
    """`verdict` for a claim that something lies below the boundary."""
    return {"supported": "opposite", "opposite": "supported"}.get(outcome := verdict(interval, boundary), outcome)


def within(interval: Interval, margin: float) -> str:
    """`verdict` for a claim that something lies within ± margin; "opposite": wholly outside."""
    if interval.low == interval.high:
        return "inconclusive"
    if -margin < interval.low and interval.high < margin:
        return "supported"
    return "opposite" if interval.low > margin or interval.high < -margin else "inconclusive"


def weakest(leads: dict) -> tuple[Hashable, str]:
    """Of leads (seeds,) at several points: the point whose interval reaches lowest, and the verdict over all points."""
    intervals = {point: seed_interval(d) for point, d in leads.items()}
    worst = min(intervals, key=lambda point: intervals[point].low)
    if all(verdict(i) == "supported" for i in intervals.values()):
        return worst, "supported"
    adjusted = dict(zip(leads, holm([_pvalue(d) for d in leads.values()]), strict=True))
    against = [point for point, d in leads.items() if adjusted[point] < 0.05 and d.mean() < 0]
    if against:
        return min(against, key=lambda point: adjusted[point]), "opposite"
    return worst, "inconclusive"


def row(x: Experiment, claim: str, statement: str, values: np.ndarray, paper: str, rule: str, **changes) -> Claim:
    """A row from one number a seed; `changes` replace fields of it. The verdict follows from boundary and side, where
    it is not given. Where a seed has no number (NaN: it solved nothing, or met no error state) nothing is concluded."""
    about = dict(
        claim=claim, environment=x.env, profile=x.profile, statement=statement, boundary=0.0, side=">", unit="seeds",
        n_tasks=x.evaluation.tasks, n_seeds=len(values), paper=paper, rule=rule,
    )  # fmt: skip
    about |= changes
    if missing := int(np.isnan(values).sum()):
        about["rule"] += f" (no value for {missing} of {len(values)} seeds)"
        return Claim(**about | dict.fromkeys(("estimate", "low", "high", "detectable"), np.nan), verdict="inconclusive")
    i = seed_interval(values)
    judge = {">": verdict, "<": below}.get(about["side"])  # "within" comes with its verdict
    found = {"estimate": i.estimate, "low": i.low, "high": i.high}
    found["detectable"] = minimum_detectable_effect(float(np.std(values, ddof=1)), len(values))
    if judge is not None:
        found["verdict"] = judge(i, about["boundary"])
    return Claim(**found | about)


def _pvalue(d: np.ndarray) -> float:
    """p-value of the paired t test; 1 where all seeds agree, which is no evidence (see `verdict`)."""
    return paired_t_pvalue(d, np.zeros_like(d)) if np.ptp(d) > 1e-12 else 1.0
