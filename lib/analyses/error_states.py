"""Error states (§3.3): moments at which the agent has gone wrong; who acts better there, and who still gets home?

A step is an error when it loses at least delta of step quality (`Env.step_loss`; where V* is known: best quality of the
state minus that of the action).
Two constructions, both a proxy as the paper says of its own: "visited", the state after an error in a stored episode;
"forced", the state after a uniformly random error that is played in a stored state, so that no policy chose it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from lib.analyses.clustered import clustered_mean
from lib.analyses.config import AnalysisConfig
from lib.analyses.continuation import continue_from
from lib.analyses.states import State, shuffled_turns, stable_seed, state_at
from lib.analyses.step_quality import compare_actions
from lib.envs.base import Env
from lib.episode import Episode

if TYPE_CHECKING:  # it loads torch, which a reader of tables does not need
    from lib.policies.hf import HFPolicy

CONSTRUCTIONS = ("visited", "forced")
_EPS = 1e-9


def visited_error_states(
    episodes: Sequence[Episode], env: Env, source: str, per_task: int, delta: float, seed: int
) -> list[State]:
    """Up to `per_task` states of each task's trajectories that follow a step which lost at least `delta` and did not
    end the episode. Raises ValueError for episodes without snapshots or step quality."""
    out = []
    for _, turns in shuffled_turns(episodes, seed, source, "visited", last=False):
        found: list[State] = []
        while len(found) < per_task and (at := next(turns, None)):
            episode, i = at
            if math.isnan(episode.turns[i].quality):
                raise ValueError(f"episode {episode.task}/{episode.sample} has no step quality: use quality=True")
            env.restore(state_at(source, episode, i).snapshot)
            loss = env.step_loss(episode.turns[i].text)
            if loss >= delta - _EPS:
                found.append(state_at(source, episode, i + 1, loss))
        out += found
    return out


def forced_error_states(
    episodes: Sequence[Episode], env: Env, policy: HFPolicy, source: str, per_task: int, delta: float, seed: int
) -> list[State]:
    """Up to `per_task` states of each task that follow a uniformly random one of the environment's action texts that
    lose at least `delta`, played in a state of a stored trajectory; none that ends the episode or fills the context.

    policy: for its chat format. Raises ValueError for an environment that names no action texts.
    """
    if not env.action_names:
        raise ValueError(f"{env.name} names no action texts to force an error with; use visited error states")
    out = []
    for _, turns in shuffled_turns(episodes, seed, source, "forced"):
        found: list[State] = []
        while len(found) < per_task and (at := next(turns, None)):
            s = state_at(source, *at)
            if s.turn < s.budget and (forced := _force(env, policy, s, delta, seed)):
                found.append(forced)
        out += found
    return out


def _force(env: Env, policy: HFPolicy, s: State, delta: float, seed: int) -> State | None:
    env.restore(s.snapshot)
    losses = {a: env.step_loss(a) for a in env.action_names}
    bad = [a for a, loss in losses.items() if loss >= delta - _EPS]
    if not bad:
        return None
    action = bad[np.random.default_rng(stable_seed(seed, "error", s.name)).integers(len(bad))]
    env.reseed(stable_seed(seed, "environment", s.name))
    observation, _, done, _ = env.step(action)
    if done:
        return None
    played = policy.chat.assistant(action)
    tokens = s.tokens + played + policy.chat.between(played, observation)
    if len(tokens) + policy.max_action_tokens > policy.max_context:
        return None
    return State(s.source, s.task, s.sample, s.turn + 1, s.budget, tokens, env.snapshot(), losses[action])


def error_states(
    base: HFPolicy, rl: HFPolicy, env_class: type[Env], config: Any, base_episodes: Sequence[Episode],
    rl_episodes: Sequence[Episode], analysis: AnalysisConfig, constructions: Sequence[str] = CONSTRUCTIONS,
) -> pd.DataFrame:  # fmt: skip
    """Both policies at error states of base's and RL's trajectories, one row a state.

    Columns: construction ("visited", "forced"), those of `compare_actions` (`loss`: quality lost by the error), and
    success_base, success_rl: share of `analysis.continuations` continuations that were solved within the turns left.
    States are drawn for the smallest of `analysis.deltas`; `at_delta` filters for a larger one.
    Raises ValueError for an unknown construction or one that the environment does not allow.
    """
    if bad := set(constructions) - set(CONSTRUCTIONS):
        raise ValueError(f"constructions {sorted(bad)}: known are {', '.join(CONSTRUCTIONS)}")
    n, delta, seed = analysis.error_states_per_task, analysis.deltas[0], analysis.seed
    env, parts = env_class(config), []
    for construction in constructions:
        states = []
        for source, episodes in (("base", base_episodes), ("rl", rl_episodes)):
            if construction == "visited":
                states += visited_error_states(episodes, env, source, n, delta, seed)
            else:
                states += forced_error_states(episodes, env, base, source, n, delta, seed)
        df = compare_actions(base, rl, env_class, config, states, analysis)
        df.insert(0, "construction", construction)
        for name, policy in (("base", base), ("rl", rl)):
            played = continue_from(policy, env_class, config, states, analysis.continuations, seed)
            df[f"success_{name}"] = [np.mean([e.solved for e in one]) for one in played]
        parts.append(df)
    env.close()
    return pd.concat(parts, ignore_index=True)


def at_delta(df: pd.DataFrame, delta: float, construction: str | None = None) -> pd.DataFrame:
    """The error states that follow a loss of at least `delta`, of one construction or (None) of all."""
    if construction is not None and construction not in CONSTRUCTIONS:
        raise ValueError(f"construction {construction!r}: known are {', '.join(CONSTRUCTIONS)}")
    keep = df.loss >= delta - _EPS
    return df[keep] if construction is None else df[keep & (df.construction == construction)]


def picks_better(df: pd.DataFrame, ties: str = "half", column: str = "outcome") -> float:
    """Share of error states at which RL picks the better action (C3b): one number of a training seed.

    ties: "half" splits states where both are equal between the two, "drop" leaves them out (NaN if nothing is left),
    "lose" counts them against RL.
    """
    better, worse = (df[column] == "better").sum(), (df[column] == "worse").sum()
    equal = len(df) - better - worse
    if ties == "half":
        return float((better + equal / 2) / len(df)) if len(df) else math.nan
    if ties == "drop":
        return float(better / (better + worse)) if better + worse else math.nan
    if ties == "lose":
        return float(better / len(df)) if len(df) else math.nan
    raise ValueError(f"ties {ties!r}: known are half, drop, lose")


def continuation_success(df: pd.DataFrame, policy: str) -> float:
    """Mean continuation success of "base" or "rl" (C3c): one number of a training seed."""
    if policy not in ("base", "rl"):
        raise ValueError(f"policy {policy!r}: 'base' or 'rl'")
    return float(df[f"success_{policy}"].mean())


def summary(df: pd.DataFrame, deltas: Sequence[float], level: float = 0.95) -> pd.DataFrame:
    """Every construction at every delta: who picks the better action and who gets home, with intervals over tasks.

    Columns: construction, delta, states, tasks, measure, estimate, low, high. Measures: better, equal, worse (shares of
    states), better_half (ties half/half), success_base, success_rl, success_difference (RL − base).
    Intervals over tasks speak of these two checkpoints; a cell with fewer than 2 tasks has NaN ends.
    """
    rows = []
    for construction in df.construction.unique():
        for delta in deltas:
            d = at_delta(df, delta, construction)
            measures = {o: (d.outcome == o).astype(float) for o in ("better", "equal", "worse")}
            measures["better_half"] = measures["better"] + measures["equal"] / 2
            measures |= {c: d[c] for c in ("success_base", "success_rl")}
            measures["success_difference"] = d.success_rl - d.success_base
            for name, value in measures.items():
                row = (construction, delta, len(d), d.task.nunique(), name, value.mean())
                if d.task.nunique() < 2:
                    rows.append((*row, math.nan, math.nan))
                    continue
                clip = (-1.0, 1.0) if name == "success_difference" else (0.0, 1.0)
                i = clustered_mean(value, d.task, level, clip)
                rows.append((*row, i.low, i.high))
    columns = ["construction", "delta", "states", "tasks", "measure", "estimate", "low", "high"]
    return pd.DataFrame(rows, columns=columns)
