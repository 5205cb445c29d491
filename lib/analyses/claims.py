"""The paper's claims as rows with an effect, an interval and a verdict.

Each claim's rule was written before any result of that claim was looked at. For every claim: the training seed
is the unit (a paired t interval over seeds, same base policy and order of tasks), there is one primary end point, and
    supported     the interval lies on the claim's side of the boundary
    opposite      it lies on the other side
    inconclusive  neither, or all seeds agree to the last digit, which is no interval; `detectable` says how large an
                  effect would have had to be
A claim that must hold at several points (C1: at every K) is supported only if the interval at each of them is on its
side, which needs no correction; it is opposite if, after Holm's correction, one of them is on the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np
import pandas as pd

from lib.analyses import error_states as errors
from lib.analyses import likelihood as nll
from lib.analyses import step_quality as quality
from lib.analyses.dynamics import change
from lib.analyses.stages import error_states, likelihood, matched_states, training_dynamics
from lib.analyses.verdicts import Claim, below, row, verdict, weakest, within
from lib.config import Experiment
from lib.curves import per_seed
from lib.envs.base import Env, env_class
from lib.metrics.intervals import seed_interval
from lib.profiles import experiments

TIGHT = (0.25, 0.5, 0.75)  # of Tmax: the budgets at which §5.4 compares
PARITY = 0.05  # success rates closer than this count as equal at full budget
PLAUSIBLE = 1.5  # RL's action NLL under base may be this multiple of base's own (the paper's figures: 1.19)
FLAT = 0.02  # a rise of R_single of less than this counts as none


def _visited_errors(x: Experiment, seed: int) -> pd.DataFrame:
    return errors.at_delta(error_states(x, "grpo", seed), x.analysis.delta, "visited")


def c1_breadth(x: Experiment, seeds: Sequence[int]) -> Claim:
    """C1 (§3.1): RL is ahead of base at every K, T = Tmax. End point: the lead at the K whose interval is lowest."""
    leads = {
        k: per_seed(x, "grpo", seeds, k, x.t_max) - per_seed(x, "base", seeds, k, x.t_max) for k in x.evaluation.ks
    }
    worst, outcome = weakest(leads)
    rule = f"lead of GRPO over base > 0 at every K in {list(leads)}; shown: K = {worst}, the weakest"
    return row(x, "C1", "RL is ahead of base at every K", leads[worst], "ahead at every K", rule, verdict=outcome)


def c2_depth(x: Experiment, seeds: Sequence[int]) -> Claim:
    """C2 (§3.2): at K = 8 the lead of RL grows with T. End point: the lead at Tmax minus the lead at 25 % of Tmax."""
    k, tight = x.evaluation.budget_k, x.turns(TIGHT[0])
    leads = [per_seed(x, "grpo", seeds, k, t) - per_seed(x, "base", seeds, k, t) for t in (x.t_max, tight)]
    rule = f"lead of GRPO over base at K = {k}: T = {x.t_max} minus T = {tight} > 0"
    statement = "The lead of RL grows with the interaction budget"
    return row(x, "C2", statement, leads[0] - leads[1], "grows with T, may reverse at small T", rule)


def c3a_minority(x: Experiment, seeds: Sequence[int]) -> Claim:
    """C3a (§3.3): RL raises step quality in a minority of matched states, drawn from both policies' trajectories."""
    share = np.array([quality.better_share(matched_states(x, "grpo", s)) for s in seeds])
    rule = "share of matched states at which the mean quality of 16 actions of GRPO is better than base's, < 0.5"
    statement = "RL improves single steps in a minority of states only"
    paper = "46.8 % (DeepCoder-MT), 42.8 % (FrozenLake)"
    return row(x, "C3a", statement, share, paper, rule, boundary=0.5, side="<")


def c3b_better_action(x: Experiment, seeds: Sequence[int]) -> Claim:
    """C3b (§3.3): in error states RL picks the better action; ties count half for each."""
    share = np.array([errors.picks_better(_visited_errors(x, s)) for s in seeds])
    rule = f"share of error states (loss >= {x.analysis.delta}) at which GRPO's actions are better, ties half, > 0.5"
    statement = "In error states RL picks the better action"
    paper = "65.7 % (FrozenLake), 67.3 % (DeepCoder-MT)"
    return row(x, "C3b", statement, share, paper, rule, boundary=0.5)


def c3c_continuation(x: Experiment, seeds: Sequence[int]) -> Claim:
    """C3c (§3.3): continuation success from the same error states, GRPO minus base."""
    found = [_visited_errors(x, s) for s in seeds]
    gap = [errors.continuation_success(d, "rl") - errors.continuation_success(d, "base") for d in found]
    rule = f"continuation success from error states (loss >= {x.analysis.delta}), GRPO minus base, > 0"
    paper = "51.3 vs 38.6 % (FrozenLake), 38.5 vs 22.9 % (DeepCoder-MT)"
    return row(x, "C3c", "RL recovers from error states more often", np.array(gap), paper, rule)


def c3d_late(x: Experiment, seeds: Sequence[int]) -> Claim:
    """C3d (§3.3): the step-quality advantage of RL is larger in the later half of the trajectory."""
    gap = np.array([quality.late_minus_early(matched_states(x, "grpo", s)) for s in seeds])
    rule = "mean quality difference at matched states, depth d_t > 0.5 minus d_t <= 0.5, > 0"
    return row(x, "C3d", "The advantage of RL is larger late in the trajectory", gap, "grows with depth", rule)


def c4a_plausible(x: Experiment, seeds: Sequence[int]) -> Claim:
    """C4a (§4.1): under base RL's actions stay plausible: the ratio of mean action NLLs."""
    found = [likelihood(x, "grpo", s) for s in seeds]
    ratio = np.array([nll.mean_action_nll(d, "rl") / nll.mean_action_nll(d, "base") for d in found])
    rule = f"mean action NLL under base, GRPO's actions over base's, < {PLAUSIBLE}"
    statement = "RL's actions stay locally plausible to base"
    return row(x, "C4a", statement, ratio, "12.20 vs 10.25", rule, boundary=PLAUSIBLE, side="<")


def c4b_trajectories(x: Experiment, seeds: Sequence[int]) -> Claim:
    """C4b (§4.1): successful RL trajectories are far likelier under RL: cumulative LLR, RL's minus base's."""
    found = [likelihood(x, "grpo", s) for s in seeds]
    gap = np.array([nll.mean_cumulative_llr(d, "rl") - nll.mean_cumulative_llr(d, "base") for d in found])
    rule = "cumulative LLR (nats) of successful trajectories, GRPO's minus base's, > 0"
    return row(x, "C4b", "Whole successful RL trajectories are likelier under RL", gap, "about 228 vs 26", rule)


def c5_dynamics(x: Experiment, seeds: Sequence[int]) -> Claim:
    """C5 (§4.2): in standard RL training R_multi rises while R_single does not. End point: the change of R_single."""
    curves = training_dynamics(x, seeds, ["grpo"])
    multi, single = (np.array([change(curves, "grpo", s, m) for s in seeds]) for m in ("r_multi", "r_single"))
    outcome = below(seed_interval(single), FLAT)
    if outcome == "supported":
        outcome = outcome if verdict(seed_interval(multi)) == "supported" else "inconclusive"
    else:
        outcome = "opposite" if verdict(seed_interval(single)) == "supported" else "inconclusive"
    rule = (
        f"change of R_single over training < {FLAT} while R_multi rises ({multi.mean():+.3f}); opposite: R_single rises"
    )
    statement = "R_multi rises while R_single does not"
    return row(
        x, "C5", statement, single, "R_multi +0.331, R_single −0.097", rule, boundary=FLAT, side="<", verdict=outcome
    )


def c6a_process_reward(x: Experiment, seeds: Sequence[int]) -> Claim:
    """C6a (§5.1): with the oracle-Q reward, and with GiGPO, RL is ahead of base at every budget (K = 8). End point: the
    lead at the arm and T where its lower end is lowest; budgets at which no policy can succeed are left out."""
    k = x.evaluation.budget_k
    ts = [t for t in x.grid if max(per_seed(x, a, seeds, k, t).max() for a in ("oracle_q", "gigpo", "base")) > 0]
    leads = {
        (a, t): per_seed(x, a, seeds, k, t) - per_seed(x, "base", seeds, k, t)
        for a in ("oracle_q", "gigpo") for t in ts
    }  # fmt: skip
    worst, outcome = weakest(leads)
    rule = f"lead over base > 0 for oracle-Q and GiGPO at K = {k}, every T in {ts}; shown: {worst[0]}, T = {worst[1]}"
    statement = "Oracle-Q reward and GiGPO are stable across budgets"
    return row(x, "C6a", statement, leads[worst], "curves", rule, verdict=outcome)


def c6b_dense_signals(x: Experiment, seeds: Sequence[int]) -> Claim:
    """C6b (§5.1): where no exact step oracle exists, GiGPO and PPO do not help under tight budgets: the lead of each
    over GRPO, the mean over 25, 50 and 75 % of Tmax (K = 1), is below the margin. End point: the lead that reaches
    highest."""
    ts = [x.turns(f) for f in TIGHT]
    leads = {
        a: np.mean([per_seed(x, a, seeds, 1, t) - per_seed(x, "grpo", seeds, 1, t) for t in ts], 0)
        for a in ("gigpo", "ppo")
    }
    worst, outcome = weakest({a: PARITY - lead for a, lead in leads.items()})
    rule = f"success of GiGPO and of PPO minus GRPO, mean over T = {ts}, < {PARITY} for both; shown: {worst}"
    statement = "Without an exact step oracle, GiGPO and PPO do not help under tight budgets"
    return row(x, "C6b", statement, leads[worst], "curves", rule, boundary=PARITY, side="<", verdict=outcome)


def c7_budgetmix(x: Experiment, seeds: Sequence[int]) -> Claim:
    """C7 (§5.4): BudgetMix beats full-budget RL at 25, 50 and 75 % of Tmax. End point: the mean of the three leads."""
    ts = [x.turns(f) for f in TIGHT]
    leads = [per_seed(x, "budgetmix", seeds, 1, t) - per_seed(x, "grpo", seeds, 1, t) for t in ts]
    rule = f"success of BudgetMix minus GRPO, mean over T = {ts}, > 0"
    statement = "BudgetMix beats full-budget RL under tight budgets"
    return row(x, "C7", statement, np.mean(leads, 0), "+7.5, +5.3, +4.0 points", rule)


def c7_parity(x: Experiment, seeds: Sequence[int]) -> Claim:
    """C7 (§5.4), second part: the two tie at Tmax. Two one-sided t tests with a margin of 5 points; 90 % interval.
    Opposite: the interval lies wholly outside the margin."""
    d = per_seed(x, "budgetmix", seeds, 1, x.t_max) - per_seed(x, "grpo", seeds, 1, x.t_max)
    i90 = seed_interval(d, level=0.90)
    outcome = within(i90, PARITY)  # what the two one-sided tests ask at 5 %
    rule = f"difference of BudgetMix and GRPO within ±{PARITY} at T = {x.t_max}: 90 % interval inside the margin"
    statement = "BudgetMix ties with full-budget RL at full budget"
    return row(
        x,
        "C7-parity",
        statement,
        d,
        "parity",
        rule,
        low=i90.low,
        high=i90.high,
        boundary=PARITY,
        side="within",
        verdict=outcome,
    )


_STEPWISE = {"C3a": c3a_minority, "C3b": c3b_better_action, "C3c": c3c_continuation, "C3d": c3d_late}
CLAIMS: dict[str, Callable[[Experiment, Sequence[int]], Claim]] = {
    "C1": c1_breadth, "C2": c2_depth, **_STEPWISE, "C4a": c4a_plausible, "C4b": c4b_trajectories, "C5": c5_dynamics,
    "C6a": c6a_process_reward, "C6b": c6b_dense_signals, "C7": c7_budgetmix, "C7-parity": c7_parity,
}  # fmt: skip


def claims_of(x: Experiment) -> list[str]:
    """The claims that an experiment can speak of: it has the arms, and the step measure where one is needed."""
    needs = {"C6a": {"oracle_q", "gigpo"}, "C6b": {"gigpo", "ppo"}, "C7": {"budgetmix"}, "C7-parity": {"budgetmix"}}
    left_out = set() if env_class(x.env).has_step_measure else {*_STEPWISE, "C5"}
    left_out |= {"C6b"} if env_class(x.env).value is not Env.value else set()  # it is about environments without Q*
    left_out |= set() if "grpo" in x.analysed else {*_STEPWISE, "C4a", "C4b"}
    return [c for c in CLAIMS if c not in left_out and {"grpo"} | needs.get(c, set()) <= set(x.arms)]


def experiments_with(profile: str, env: str, *claims: str) -> tuple[Experiment, ...]:
    """The experiments of a profile ("all", or one environment's) that can speak of one of `claims`.

    Raises ValueError for an unknown name, and where there is none.
    """
    found = tuple(x for x in experiments(profile, env) if set(claims) & set(claims_of(x)))
    if not found:
        raise ValueError(f"profile {profile}, env {env}: nothing there speaks of {', '.join(claims)}")
    return found


def claims_table(experiments: Sequence[Experiment], seeds: Sequence[int]) -> pd.DataFrame:
    """All claims for all environments of a profile, one row each, in the paper's order."""
    return pd.DataFrame([asdict(CLAIMS[c](x, seeds)) for c in CLAIMS for x in experiments if c in claims_of(x)])


def print_verdicts(experiments: Sequence[Experiment], seeds: Sequence[int], *claims: str) -> None:
    """Print verdict, rule, estimate and interval of the claims that each experiment can speak of, one a line."""
    for x in experiments:
        for c in (CLAIMS[name](x, seeds) for name in claims if name in claims_of(x)):
            interval = f"{c.estimate:+.3f} [{c.low:+.3f}, {c.high:+.3f}]"
            print(f"{x.title}, {c.claim}: {c.verdict}. {c.rule}: {interval}")
