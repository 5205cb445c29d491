"""Likelihood (§4.1): are RL's actions plausible to the base policy, and its whole trajectories?

Everything is scored on stored tokens. Of the policy that played, the stored log-probabilities are taken; the other one
is scored by teacher forcing. All in nats, at the temperature of sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from lib.analyses.clustered import clustered_mean
from lib.analyses.states import check_same_tokens
from lib.episode import End, Episode
from lib.metrics.intervals import Interval

if TYPE_CHECKING:  # it loads torch, which a reader of tables does not need
    from lib.policies.hf import HFPolicy


def action_logprobs(policy: HFPolicy, episodes: Sequence[Episode]) -> list[np.ndarray]:
    """Log-probability of each action under `policy`, the sum over its tokens: one array (turns,) an episode."""
    import torch

    from lib.policies.hf import score

    rows, masks, turns = [], [], []
    for e in episodes:
        ids, mask, _, turn = e.completion()
        prompt = e.prompt_ids()
        rows.append(torch.tensor(prompt + ids))
        masks.append(torch.tensor([False] * len(prompt) + [bool(m) for m in mask]))
        turns.append(np.array(turn)[np.array(mask, dtype=bool)])
    with torch.no_grad():
        logps, _ = score(policy.model, rows, masks, policy.temperature)
    return [
        np.bincount(t, weights=p.double().cpu().numpy(), minlength=len(e.turns))
        for e, t, p in zip(episodes, turns, logps, strict=True)
    ]


def action_likelihood(
    base: HFPolicy, rl: HFPolicy, base_episodes: Sequence[Episode], rl_episodes: Sequence[Episode],
    t_max: int, samples: int,
) -> pd.DataFrame:  # fmt: skip
    """Likelihood of each action of base's and RL's trajectories under both policies, one row a turn.

    samples: the first so many trajectories of each task and policy; those that the infrastructure broke are left out.
    Columns: source ("base", "rl": who played), task, sample, turn (from 1), depth (t / t_max), solved (the trajectory
    was), nll_base and nll_rl (action NLL under each policy, the sum over the action's tokens), llr (log p_RL − log
    p_base). Raises ValueError for policies with different tokens and where a task has fewer trajectories.
    """
    check_same_tokens(base, rl)
    rows = []
    for source, episodes, other in (("base", base_episodes, rl), ("rl", rl_episodes, base)):
        known = [e for e in episodes if e.sample < samples]
        if len(known) < samples * len({e.task for e in episodes}):
            raise ValueError(f"{samples} trajectories a task asked for, {source} has {len(known)} in all")
        known = [e for e in known if e.end is not End.ERROR]
        for e, scored in zip(known, action_logprobs(other, known), strict=True):
            own = np.array([sum(t.logprobs) for t in e.turns])
            logp_base, logp_rl = (own, scored) if source == "base" else (scored, own)
            for i in range(len(e.turns)):
                rows.append((source, e.task, e.sample, i + 1, (i + 1) / t_max, e.solved, -logp_base[i], -logp_rl[i]))
    columns = ["source", "task", "sample", "turn", "depth", "solved", "nll_base", "nll_rl"]
    df = pd.DataFrame(rows, columns=columns)
    df["llr"] = df.nll_base - df.nll_rl
    return df


def trajectories(df: pd.DataFrame) -> pd.DataFrame:
    """One row a trajectory: source, task, sample, solved, turns, llr (cumulative: sum over the turns of log p_RL − log
    p_base), nll_base (sum over the turns)."""
    groups = df.groupby(["source", "task", "sample", "solved"], as_index=False)
    return groups.agg(turns=("turn", "size"), llr=("llr", "sum"), nll_base=("nll_base", "sum"))


def _of(df: pd.DataFrame, source: str) -> pd.DataFrame:
    if source not in ("base", "rl"):
        raise ValueError(f"source {source!r}: 'base' or 'rl'")
    return df[df.source == source]


def mean_action_nll(df: pd.DataFrame, source: str) -> float:
    """Mean NLL under base of the actions that `source` played, over all its turns (C4a): one number of a seed."""
    return float(_of(df, source).nll_base.mean())


def mean_cumulative_llr(df: pd.DataFrame, source: str, solved: bool = True) -> float:
    """Mean cumulative LLR of the (un)solved trajectories of `source` (C4b): one number of a seed, NaN if none."""
    t = trajectories(_of(df, source))
    return float(t[t.solved == solved].llr.mean())


def summary(df: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
    """Both measures with intervals over tasks: columns source, solved ("all", True, False), measure ("nll_base": mean
    action NLL under base; "llr": mean cumulative LLR), n (turns or trajectories), estimate, low, high.

    They speak of these two checkpoints. Ends are NaN below 2 tasks.
    """
    rows = []
    for measure, table in (("nll_base", df), ("llr", trajectories(df))):
        for source in ("base", "rl"):
            for solved in ("all", True, False):
                part = table[table.source == source]
                part = part if solved == "all" else part[part.solved == solved]
                i = _interval(part, measure, level)
                ends = (i.low, i.high) if i else (np.nan, np.nan)
                rows.append((source, str(solved), measure, len(part), part[measure].mean(), *ends))
    return pd.DataFrame(rows, columns=["source", "solved", "measure", "n", "estimate", "low", "high"])


def _interval(part: pd.DataFrame, measure: str, level: float) -> Interval | None:
    return clustered_mean(part[measure], part.task, level) if part.task.nunique() > 1 else None
