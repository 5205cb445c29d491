"""The paper's claims as rows with an effect, an interval and a verdict.

The rules below were written before any result of the default profile was looked at. For every claim: the training seed
is the unit (a paired t interval over seeds, same base policy and order of tasks), there is one primary end point, and
    supported     the interval lies on the claim's side of the boundary
    opposite      it lies on the other side
    inconclusive  neither; `detectable` says how large an effect would have had to be
A claim that must hold at several points (C1: at every K) is supported only if the interval at each of them is on its
side, which needs no correction; it is opposite if, after Holm's correction, one of them is on the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from lib.config import Experiment
from lib.curves import per_seed
from lib.metrics.intervals import (
    Interval, holm, minimum_detectable_effect, paired_seeds, paired_t_pvalue, seed_interval, tost,
)  # fmt: skip

TIGHT = (0.25, 0.5, 0.75)  # of Tmax: the budgets at which §5.4 compares
PARITY = 0.05  # success rates closer than this count as equal at full budget


@dataclass(frozen=True)
class Claim:
    """One row of claims.csv. estimate, low, high: the primary end point; detectable: the smallest effect that this run
    would have found with probability 0.8; paper: the paper's figure, for comparison only."""

    claim: str
    environment: str
    profile: str
    statement: str
    estimate: float
    low: float
    high: float
    unit: str
    n_tasks: int
    n_seeds: int
    verdict: str
    detectable: float
    paper: str
    rule: str


def verdict(interval: Interval, boundary: float = 0.0) -> str:
    """Which side of the boundary the whole interval lies on; "supported" is above."""
    if interval.low > boundary:
        return "supported"
    return "opposite" if interval.high < boundary else "inconclusive"


def _row(x: Experiment, claim: str, statement: str, values: np.ndarray, paper: str, rule: str, **changes) -> Claim:
    """A row from one number a seed."""
    i = seed_interval(values)
    sd = float(np.std(values, ddof=1))
    row = Claim(
        claim=claim, environment=x.env, profile=x.profile, statement=statement, estimate=i.estimate, low=i.low,
        high=i.high, unit="seeds", n_tasks=x.evaluation.tasks, n_seeds=len(values), verdict=verdict(i),
        detectable=minimum_detectable_effect(sd, len(values)), paper=paper, rule=rule,
    )  # fmt: skip
    return Claim(**(asdict(row) | changes))


def c1_breadth(x: Experiment, seeds: Sequence[int]) -> Claim:
    """C1 (§3.1): RL is ahead of base at every K, T = Tmax. End point: the lead at the K where its lower end is lowest."""
    leads = {
        k: per_seed(x, "grpo", seeds, k, x.t_max) - per_seed(x, "base", seeds, k, x.t_max) for k in x.evaluation.ks
    }
    intervals = {k: seed_interval(d) for k, d in leads.items()}
    worst = min(intervals, key=lambda k: intervals[k].low)
    outcome = verdict(intervals[worst])
    if outcome != "supported":
        adjusted = holm([_pvalue(d) for d in leads.values()])
        against = any(p < 0.05 and d.mean() < 0 for p, d in zip(adjusted, leads.values(), strict=True))
        outcome = "opposite" if against else "inconclusive"
    rule = f"lead of GRPO over base > 0 at every K in {list(leads)}; shown: K = {worst}, the weakest"
    return _row(x, "C1", "RL is ahead of base at every K", leads[worst], "ahead at every K", rule, verdict=outcome)


def c2_depth(x: Experiment, seeds: Sequence[int]) -> Claim:
    """C2 (§3.2): at K = 8 the lead of RL grows with T. End point: the lead at Tmax minus the lead at 25 % of Tmax."""
    k, tight = x.evaluation.budget_k, x.turns(TIGHT[0])
    leads = [per_seed(x, "grpo", seeds, k, t) - per_seed(x, "base", seeds, k, t) for t in (x.t_max, tight)]
    rule = f"lead of GRPO over base at K = {k}: T = {x.t_max} minus T = {tight} > 0"
    statement = "The lead of RL grows with the interaction budget"
    return _row(x, "C2", statement, leads[0] - leads[1], "grows with T, may reverse at small T", rule)


def c7_budgetmix(x: Experiment, seeds: Sequence[int]) -> Claim:
    """C7 (§5.4): BudgetMix beats full-budget RL at 25, 50 and 75 % of Tmax. End point: the mean of the three leads."""
    ts = [x.turns(f) for f in TIGHT]
    leads = [per_seed(x, "budgetmix", seeds, 1, t) - per_seed(x, "grpo", seeds, 1, t) for t in ts]
    rule = f"success of BudgetMix minus GRPO, mean over T = {ts}, > 0"
    statement = "BudgetMix beats full-budget RL under tight budgets"
    return _row(x, "C7", statement, np.mean(leads, 0), "+7.5, +5.3, +4.0 points", rule)


def c7_parity(x: Experiment, seeds: Sequence[int]) -> Claim:
    """C7 (§5.4), second part: the two tie at Tmax. Two one-sided t tests with a margin of 5 points; 90 % interval."""
    d = per_seed(x, "budgetmix", seeds, 1, x.t_max) - per_seed(x, "grpo", seeds, 1, x.t_max)
    p, i90 = tost(d, PARITY)
    outside = abs(seed_interval(d).low) > PARITY and abs(seed_interval(d).high) > PARITY and verdict(
        seed_interval(d)) != "inconclusive"  # fmt: skip
    outcome = "supported" if p < 0.05 else "opposite" if outside else "inconclusive"
    rule = f"|BudgetMix − GRPO| < {PARITY} at T = {x.t_max}: 90 % interval inside the margin"
    statement = "BudgetMix ties with full-budget RL at full budget"
    return _row(x, "C7-parity", statement, d, "parity", rule, low=i90.low, high=i90.high, verdict=outcome)


def _pvalue(d: np.ndarray) -> float:
    """p-value of the paired t test; 0 where all seeds differ by the same amount, 1 where none differs."""
    return paired_t_pvalue(d, np.zeros_like(d)) if np.ptp(d) > 1e-12 else float(not d.any())


CLAIMS: dict[str, Callable[[Experiment, Sequence[int]], Claim]] = {
    "C1": c1_breadth,
    "C2": c2_depth,
    "C7": c7_budgetmix,
    "C7-parity": c7_parity,
}


def claims_table(experiments: Sequence[Experiment], seeds: Sequence[int]) -> pd.DataFrame:
    """All claims for all environments of a profile, one row each, in the paper's order."""
    return pd.DataFrame([asdict(claim(x, seeds)) for claim in CLAIMS.values() for x in experiments])
