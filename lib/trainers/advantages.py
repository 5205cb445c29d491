"""Advantages: the part of the training in which the algorithms differ.

An algorithm is a function `(groups, config) -> advantages`: `groups` is a list of groups (lists of episodes of one task
instance), and for each episode it returns one number a turn. The trainer gives every sampled token of a turn the turn's
advantage; tokens of the environment get none. Episodes that ended in an infrastructure error take no part: they enter no
mean and get zeros. To add an algorithm: write the function, add a line to ALGORITHMS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lib.episode import End, Episode

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


ALGORITHMS: dict[str, Callable[[Groups, Any], Advantages]] = {
    "grpo": grpo,
}


def token_advantages(episode: Episode, per_turn: np.ndarray) -> list[float]:
    """The advantage of each completion token (see Episode.completion): the turn's at sampled tokens, else 0."""
    if episode.end is End.ERROR:
        return [0.0] * len(episode.completion()[0])
    _, mask, _, turn = episode.completion()
    return [float(per_turn[t]) if m else 0.0 for m, t in zip(mask, turn, strict=True)]
