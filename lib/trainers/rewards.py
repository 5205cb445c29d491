"""Rewards of turns: the environment's outcome, and the oracle-Q process reward (paper §5.1)."""

from __future__ import annotations

import numpy as np

from lib.envs.base import NoStepMeasure
from lib.episode import Episode


def outcome_rewards(episode: Episode) -> np.ndarray:
    """The environment's reward of each turn, (turns,)."""
    return np.array([t.reward for t in episode.turns], dtype=float)


def oracle_q_rewards(episode: Episode) -> np.ndarray:
    """The oracle-Q process reward of each turn, (turns,): what the action loses against the best one,

        r_t = A*_t(s_t, a_t) = Q*_t(s_t, a_t) - V*_t(s_t)  <=  0,      t: with the turns of the budget that are left.

    Its expected sum under a policy pi is V^pi(s_0) - V*(s_0) (performance difference lemma, Kakade and Langford 2002):
    it ranks policies as the task does, and its largest value, 0, belongs to the optimal policies. The potential-based
    reward r + V*_{t-1}(s') - V*_t(s) has the same mean given (s, a); A* is that mean, without the chance of the turn.
    Q* alone would also be a dense reward, but its sum grows with the number of turns and so pays for dawdling.

    Raises NoStepMeasure for an episode without exact values (rolled out without `quality`, or an environment that does
    not know them).
    """
    loss = np.array([t.quality - t.value for t in episode.turns], dtype=float)
    if np.isnan(loss).any():
        raise NoStepMeasure(f"{episode.env} gives no exact Q* and V*: the oracle-Q process reward needs both")
    return loss


def returns_to_go(rewards: np.ndarray, gamma: float) -> np.ndarray:
    """R_t = sum over k >= t of gamma^(k - t) r_k, (turns,)."""
    out = np.array(rewards, dtype=float)
    for t in range(len(out) - 2, -1, -1):
        out[t] += gamma * out[t + 1]
    return out
