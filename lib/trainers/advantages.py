"""Advantages: the part of the training in which the algorithms differ.

An algorithm is a function `(groups, config) -> advantages`: `groups` is a list of groups (lists of episodes of one task
instance), and for each episode it returns one number a turn, or one number a sampled token. The trainer gives a turn's
number to all its sampled tokens; tokens of the environment get none. Episodes that ended in an infrastructure error
take no part: they enter no mean and get zeros. To add an algorithm: write the function, add a line to ALGORITHMS. An
algorithm in USES_VALUES gets a third argument, the critic's values; for one in USES_ORACLE the rollouts record the
exact Q* and V* of each turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lib.episode import End, Episode
from lib.trainers.rewards import oracle_q_rewards, outcome_rewards, returns_to_go

Groups = list[list[Episode]]
Advantages = list[list[np.ndarray]]


def group_advantages(rewards: np.ndarray, scale: bool = True, eps: float = 1e-4) -> np.ndarray:
    """GRPO's outcome advantage (arXiv 2402.03300): reward minus the group's mean, over its standard deviation.

    rewards: (groups, G), NaN for an episode without a reward. The standard deviation is the sample's (G - 1), as in
    TRL. scale: divide by it (False is Dr. GRPO's variant). Returns (groups, G), 0 where the reward is NaN and in groups
    with fewer than two rewards.
    """
    rewards = np.asarray(rewards, dtype=float)
    known = ~np.isnan(rewards)
    count = known.sum(1, keepdims=True)
    filled = np.where(known, rewards, 0.0)
    mean = filled.sum(1, keepdims=True) / np.maximum(count, 1)
    centred = np.where(known, rewards - mean, 0.0)
    if scale:
        std = np.sqrt((centred**2).sum(1, keepdims=True) / np.maximum(count - 1, 1))
        centred = centred / (std + eps)
    return np.where(count > 1, centred, 0.0)


def grpo(groups: Groups, config: Any) -> Advantages:
    """Every turn of an episode gets the episode's group advantage."""
    rewards = np.array([[e.reward for e in g] for g in groups])
    adv = group_advantages(rewards, config.scale_rewards)
    return [[np.full(len(e.turns), a) for e, a in zip(g, row, strict=True)] for g, row in zip(groups, adv, strict=True)]


def gigpo(groups: Groups, config: Any) -> Advantages:
    """GiGPO (arXiv 2505.10978): A = A^E + omega * A^S, for each turn.

    A^E: the episode's reward, normalised in its group. With `gigpo.statistics` "trajectories" each episode counts once
    in mean and deviation, as the paper writes it; with "steps" an episode counts once a turn, as the default of its
    public code does, so that long episodes weigh more. A^S: the return-to-go of the turn, discounted by `gigpo.gamma`,
    normalised among all turns of the group that were taken in the same state (`Turn.key`, the anchor state; an episode
    may visit it several times); 0 for a state seen once. `scale_rewards`: the paper's F_norm is the sample's standard
    deviation, or 1 if False, on both levels.
    """
    out = []
    for group in groups:
        played = [e for e in group if e.end is not End.ERROR]
        counts = [len(e.turns) if config.gigpo.statistics == "steps" else 1 for e in played]
        rewards = [e.reward for e, n in zip(played, counts, strict=True) for _ in range(n)]
        episode = group_advantages([rewards], config.scale_rewards)[0][np.cumsum(counts, dtype=int) - 1]
        returns = [returns_to_go(outcome_rewards(e), config.gigpo.gamma) for e in played]
        anchors: dict[str, list[tuple[int, int]]] = {}
        for i, e in enumerate(played):
            for t, turn in enumerate(e.turns):
                anchors.setdefault(turn.key, []).append((i, t))
        step = [np.zeros(len(e.turns)) for e in played]
        for visits in anchors.values():
            found = group_advantages([[returns[i][t] for i, t in visits]], config.scale_rewards)[0]
            for (i, t), a in zip(visits, found, strict=True):
                step[i][t] = a
        joint = iter([a + config.gigpo.omega * s for a, s in zip(episode, step, strict=True)])
        out.append([np.zeros(len(e.turns)) if e.end is End.ERROR else next(joint) for e in group])
    return out


def gae(rewards: np.ndarray, values: np.ndarray, gamma: float, lam: float) -> np.ndarray:
    """Generalised advantage estimation (arXiv 1506.02438) of one episode, (n,).

    delta_i = r_i + gamma V_{i+1} - V_i,  A_i = delta_i + gamma lam A_{i+1}. rewards, values: (n,), of the successive
    decisions (turns, or sampled tokens with the environment's left out). V after the last is 0: the budget belongs to
    the task, so running out of it is an end like any other and nothing is bootstrapped.
    """
    after = np.append(values[1:], 0.0)
    return returns_to_go(rewards + gamma * after - values, gamma * lam)


def ppo(groups: Groups, config: Any, values: Advantages) -> Advantages:
    """PPO (arXiv 1707.06347): GAE from the critic's values, shifted and scaled to mean 0, deviation 1 over the batch.

    values: of each episode, one for each sampled token (the state in which it was chosen). `ppo.level` "turn": the
    decisions of the recursion are turns, valued at their first token; one advantage a turn. "token": they are the
    sampled tokens of all turns in a row; a turn's reward falls on its last token; one advantage a sampled token.
    """
    raw = [
        [gae_episode(e, v, config.ppo) for e, v in zip(g, row, strict=True)]
        for g, row in zip(groups, values, strict=True)
    ]
    return _whiten(groups, raw)


def gae_episode(episode: Episode, values: np.ndarray, ppo: Any) -> np.ndarray:
    """GAE of one episode at the level `ppo.level`: (turns,) or (sampled tokens,). values: (sampled tokens,)."""
    last, rewards = last_tokens(episode), outcome_rewards(episode)
    if ppo.level == "turn":
        return gae(rewards, values[first_tokens(episode)], ppo.gamma, ppo.lam)
    per_token = np.zeros(len(values))
    per_token[last] = rewards
    return gae(per_token, values, ppo.gamma, ppo.lam)


def first_tokens(episode: Episode) -> np.ndarray:
    """Where each turn begins among the episode's sampled tokens, (turns,)."""
    return last_tokens(episode) + 1 - np.array([len(t.action) for t in episode.turns], dtype=int)


def last_tokens(episode: Episode) -> np.ndarray:
    """Where each turn ends among the episode's sampled tokens, (turns,)."""
    return np.cumsum([len(t.action) for t in episode.turns], dtype=int) - 1


def oracle_q(groups: Groups, config: Any) -> Advantages:
    """The oracle-Q process reward (paper §5.1) in place of the outcome: for each turn its return-to-go of
    `oracle_q_rewards`, discounted by `oracle_gamma`, shifted and scaled to mean 0, deviation 1 over the batch. At
    gamma 1 its mean given state and action is Q^pi_t(s, a) - V*_t(s): the outcome's policy gradient, with V* as
    baseline and the chance within each turn averaged out."""
    return _whiten(groups, [[returns_to_go(oracle_q_rewards(e), config.oracle_gamma) for e in g] for g in groups])


def _whiten(groups: Groups, raw: Advantages, eps: float = 1e-4) -> Advantages:
    """Minus the mean, over the standard deviation of all numbers of the batch; zeros for errored episodes."""
    used = [
        a for g, row in zip(groups, raw, strict=True) for e, a in zip(g, row, strict=True) if e.end is not End.ERROR
    ]
    flat = np.concatenate(used) if used else np.zeros(1)
    mean, scale = flat.mean(), flat.std() + eps
    return [
        [np.zeros_like(a) if e.end is End.ERROR else (a - mean) / scale for e, a in zip(g, row, strict=True)]
        for g, row in zip(groups, raw, strict=True)
    ]


ALGORITHMS: dict[str, Callable[..., Advantages]] = {
    "grpo": grpo,
    "gigpo": gigpo,
    "ppo": ppo,
    "oracle_q": oracle_q,
}
USES_VALUES = ("ppo",)
USES_ORACLE = ("oracle_q",)


def token_advantages(episode: Episode, advantages: np.ndarray) -> list[float]:
    """The advantage of each completion token (see Episode.completion): 0 at tokens of the environment.

    advantages: (turns,), a turn's number goes to all its sampled tokens; or (sampled tokens,). Raises ValueError for
    another length.
    """
    _, mask, _, turn = episode.completion()
    if episode.end is End.ERROR:
        return [0.0] * len(mask)
    if len(advantages) == len(episode.turns):
        return [float(advantages[t]) if m else 0.0 for m, t in zip(mask, turn, strict=True)]
    if len(advantages) != sum(mask):
        raise ValueError(f"{len(advantages)} advantages for {len(episode.turns)} turns of {sum(mask)} sampled tokens")
    given = iter(advantages)
    return [float(next(given)) if m else 0.0 for m in mask]
