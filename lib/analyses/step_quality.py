"""Matched-state step quality (§3.3): at one and the same state and the very same tokens, whose actions are better?

Both policies are given the same random numbers at a state, so that two equal policies tie everywhere and a difference
is one of the policies. Beside the G samples stands the exact expectation where an environment's action texts are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from lib.analyses.clustered import clustered_mean
from lib.analyses.config import AnalysisConfig
from lib.analyses.states import State, check_same_tokens, draw_states, stable_seed
from lib.envs.base import Env
from lib.episode import Episode

if TYPE_CHECKING:  # it loads torch, which a reader of tables does not need
    from lib.policies.hf import HFPolicy

OUTCOMES = ("better", "equal", "worse")
SOURCES = ("base", "rl", "both")


def matched_states(
    base: HFPolicy, rl: HFPolicy, env_class: type[Env], config: Any, base_episodes: Sequence[Episode],
    rl_episodes: Sequence[Episode], analysis: AnalysisConfig,
) -> pd.DataFrame:  # fmt: skip
    """Step quality of both policies' actions at states of base's and of RL's trajectories, one row a state.

    The same number of states per task and policy (`analysis.states_per_task`), drawn uniformly from the visits.
    Columns: see `compare_actions`; `source` says whose trajectory a state is from, all rows together are the mixture
    ("both"). Raises ValueError for episodes without snapshots and policies with different tokens, NoStepMeasure.
    """
    n, seed = analysis.states_per_task, analysis.seed
    states = draw_states(base_episodes, "base", n, seed) + draw_states(rl_episodes, "rl", n, seed)
    return compare_actions(base, rl, env_class, config, states, analysis)


def compare_actions(
    base: HFPolicy, rl: HFPolicy, env_class: type[Env], config: Any, states: Sequence[State], analysis: AnalysisConfig
) -> pd.DataFrame:
    """Mean step quality of G actions of each policy at each state, one row a state.

    Columns: source, task, sample, turn (t, from 1), depth (d_t = t / Tmax), turns_left, loss; best: see
    `Env.best_quality`; quality_base, quality_rl: means over `analysis.group` actions; difference (RL − base);
    outcome: "better", "equal" (within `analysis.tie`) or "worse". And without sampling noise, NaN where the environment
    names no action texts: exact_base, exact_rl, exact_difference, exact_outcome, with the probability other_base,
    other_rl of all else but the action texts counted at the quality of an answer without an action.
    """
    from lib.analyses.sampling import sample_actions, text_probabilities

    check_same_tokens(base, rl)
    contexts = [s.tokens for s in states]
    seeds = [stable_seed(analysis.seed, "action", s.name) for s in states]
    env = env_class(config)
    drawn, exact = {}, {}
    for name, policy in (("base", base), ("rl", rl)):
        drawn[name] = [
            [policy.chat.text(a) for a in g] for g in sample_actions(policy, contexts, analysis.group, seeds)
        ]
        if env.action_names:
            exact[name] = text_probabilities(policy, contexts, env.action_names)
    rows = []
    for i, s in enumerate(states):
        env.restore(s.snapshot)
        texts = dict.fromkeys(t for name in drawn for t in drawn[name][i])
        quality = {t: env.step_quality(t) for t in [*texts, *env.action_names, ""]}
        row = {"source": s.source, "task": s.task, "sample": s.sample, "turn": s.turn}
        row |= {"depth": s.turn / config.max_turns, "turns_left": s.budget - s.turn + 1, "loss": s.loss}
        row["best"] = env.best_quality()
        for name in drawn:
            row[f"quality_{name}"] = np.mean([quality[t] for t in drawn[name][i]])
        for name, p in exact.items():
            row[f"other_{name}"] = max(0.0, 1 - p[i].sum())
            row[f"exact_{name}"] = p[i] @ [quality[t] for t in env.action_names] + row[f"other_{name}"] * quality[""]
        rows.append(row)
    env.close()
    numbers = ["other_base", "other_rl", "exact_base", "exact_rl"]
    df = pd.DataFrame(rows, columns=[*(rows[0] if rows else ()), *(c for c in numbers if not exact)])
    if df.empty:
        raise ValueError("no states to compare actions at")
    df["difference"] = df.quality_rl - df.quality_base
    df["outcome"] = _outcome(df.difference, analysis.tie)
    df["exact_difference"] = df.exact_rl - df.exact_base
    df["exact_outcome"] = _outcome(df.exact_difference, analysis.tie)
    return df


def _outcome(difference: pd.Series, tie: float) -> np.ndarray:
    found = np.select([difference > tie + 1e-9, difference < -tie - 1e-9], ["better", "worse"], "equal").astype(object)
    found[difference.isna()] = None
    return found


def of_source(df: pd.DataFrame, source: str) -> pd.DataFrame:
    """The states of "base", "rl" or "both" policies' trajectories. Raises ValueError for another word."""
    if source not in SOURCES:
        raise ValueError(f"source {source!r}: known are {', '.join(SOURCES)}")
    return df if source == "both" else df[df.source == source]


def outcome_shares(df: pd.DataFrame, outcome: str = "outcome", level: float = 0.95) -> pd.DataFrame:
    """Share of states at which RL is better, equal, worse, for each source of states (C3a).

    outcome: "outcome" or "exact_outcome". Columns: source, outcome, states, tasks, estimate, low, high (over tasks: it
    speaks of these two checkpoints).
    """
    rows = []
    for source in SOURCES:
        part = of_source(df, source)
        for o in OUTCOMES:
            i = clustered_mean(part[outcome] == o, part.task, level, clip=(0.0, 1.0))
            rows.append((source, o, len(part), i.n, i.estimate, i.low, i.high))
    return pd.DataFrame(rows, columns=["source", "outcome", "states", "tasks", "estimate", "low", "high"])


def share(df: pd.DataFrame, outcome: str, source: str = "both", column: str = "outcome") -> float:
    """Share of states with this outcome ("better", "equal" or "worse"): one number of a training seed."""
    if outcome not in OUTCOMES:
        raise ValueError(f"outcome {outcome!r}: known are {', '.join(OUTCOMES)}")
    return float((of_source(df, source)[column] == outcome).mean())


def better_share(df: pd.DataFrame, source: str = "both", column: str = "outcome") -> float:
    """Share of matched states at which RL raises step quality (C3a): one number of a training seed."""
    return share(df, "better", source, column)


def late_minus_early(df: pd.DataFrame, column: str = "difference", split: float = 0.5) -> float:
    """Mean of `column` at d_t > split minus at d_t <= split (C3d): one number of a training seed, NaN where a side is
    empty."""
    late = df.depth > split + 1e-9
    return float(df[late][column].mean() - df[~late][column].mean())
