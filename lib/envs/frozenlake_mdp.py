"""FrozenLake as a decision process: maps, gymnasium's dynamics, and exact finite-horizon Q*, V* and Q^pi.

All values are undiscounted and indexed by the number of turns left: without a horizon all safe actions would tie
(paper §3.3 takes FrozenLake's exact Q* as step quality, §3.2 V* as structural bound). States are numbered
row * size + column and actions 0-3 as in gymnasium.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

ACTIONS = ("Left", "Down", "Right", "Up")
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))  # row and column steps of the actions

Map = tuple[str, ...]  # rows of S (start), F (ice), H (hole), G (goal), as gymnasium's desc
Dynamics = dict[int, dict[int, list[tuple[float, int, float, bool]]]]


def random_map(size: int, frozen_share: float, start: str, goal: str, seed: int) -> Map:
    """A map of independent cells with a "random" or "fixed" (top left, bottom right) start and goal; it may be one on
    which the goal cannot be reached."""
    rng, cells = np.random.default_rng(seed), size**2
    grid = np.where(rng.random(cells) < frozen_share, "F", "H")
    s = g = 0
    while s == g:
        s = 0 if start == "fixed" else int(rng.integers(cells))
        g = cells - 1 if goal == "fixed" else int(rng.integers(cells))
    grid[s], grid[g] = "S", "G"
    text = "".join(grid)
    return tuple(text[i : i + size] for i in range(0, cells, size))


def check_map(desc: Map, size: int) -> None:
    """Raises ValueError for a map of another size or without exactly one start and one goal."""
    cells = "".join(desc)
    if [len(row) for row in desc] != [size] * size or set(cells) - set("SFHG"):
        raise ValueError(f"map {list(desc)}: must be {size} rows of {size} letters S, F, H, G")
    if cells.count("S") != 1 or cells.count("G") != 1:
        raise ValueError(f"map {list(desc)}: must have one S and one G")


def _arrays(P: Dynamics) -> tuple[np.ndarray, np.ndarray]:
    """Expected rewards (S, A) and transitions (S, A, S) without those that end the episode."""
    states, actions = len(P), len(P[0])
    reward, move = np.zeros((states, actions)), np.zeros((states, actions, states))
    for s in range(states):
        for a in range(actions):
            for p, s2, r, done in P[s][a]:
                reward[s, a] += p * r
                move[s, a, s2] += p * (not done)
    return reward, move


def q_star(P: Dynamics, horizon: int) -> np.ndarray:
    """Optimal action values by backward induction, undiscounted: (horizon + 1, S, A), index t = turns left, Q[0] = 0.

    P is gymnasium's `P[s][a] = [(probability, next state, reward, done), ...]`. Raises ValueError for horizon < 0.
    """
    return _backup(P, horizon, lambda t, q: q.max(axis=1))


def v_star(P: Dynamics, horizon: int) -> np.ndarray:
    """Optimal state values (horizon + 1, S), index t = turns left."""
    return q_star(P, horizon).max(axis=2)


def q_pi(P: Dynamics, policy: np.ndarray, horizon: int) -> np.ndarray:
    """Action values (horizon + 1, S, A) of a policy, by the same backup as `q_star`; index t = turns left.

    policy: probabilities (S, A), or (horizon, S, A) where `policy[t - 1]` is used with t turns left.
    Raises ValueError for another shape or rows that are not probability distributions.
    """
    policy = np.asarray(policy, dtype=float)
    shape = (len(P), len(P[0]))
    if policy.shape not in (shape, (horizon, *shape)):
        raise ValueError(f"policy of shape {policy.shape}: must be {shape} or {(horizon, *shape)}")
    if (policy < 0).any() or not np.allclose(policy.sum(axis=-1), 1):
        raise ValueError("policy: each row must be a probability distribution over actions")
    policy = np.broadcast_to(policy, (horizon, *shape))
    return _backup(P, horizon, lambda t, q: (policy[t - 1] * q).sum(axis=1))


def _backup(P: Dynamics, horizon: int, value: Callable[[int, np.ndarray], np.ndarray]) -> np.ndarray:
    if horizon < 0:
        raise ValueError(f"horizon={horizon}: must be at least 0")
    reward, move = _arrays(P)
    q = np.zeros((horizon + 1, *reward.shape))
    for t in range(1, horizon + 1):
        q[t] = reward + (move @ value(t - 1, q[t - 1]) if t > 1 else 0)
    return q


@lru_cache(maxsize=1024)
def dynamics(desc: Map, success_rate: float) -> Dynamics:
    """gymnasium's P of a map; shared between callers, not to be changed."""
    return FrozenLakeEnv(desc=list(desc), is_slippery=success_rate < 1, success_rate=success_rate).P


@lru_cache(maxsize=1024)
def q_table(desc: Map, success_rate: float, horizon: int) -> np.ndarray:
    """Q* of a map (horizon + 1, S, 4) in [0, 1], read-only."""
    q = np.minimum(q_star(dynamics(desc, success_rate), horizon), 1.0)  # sums of probabilities round above 1
    q.flags.writeable = False
    return q


@lru_cache(maxsize=1024)
def goal_distance(desc: Map) -> tuple[float, ...]:
    """Moves from each cell to the goal around the holes and without slipping, inf where there is no way.

    V*_T(s) > 0 exactly where this is at most T: each move of the way succeeds with positive probability.
    """
    size = len(desc)
    cells = "".join(desc)
    dist = [float("inf")] * len(cells)
    queue = deque([cells.index("G")])
    dist[queue[0]] = 0
    while queue:
        cell = queue.popleft()
        for row, col in ((cell // size + dr, cell % size + dc) for dr, dc in MOVES):
            near = row * size + col
            if 0 <= row < size and 0 <= col < size and cells[near] != "H" and dist[near] == float("inf"):
                dist[near] = dist[cell] + 1
                queue.append(near)
    return tuple(dist)


def shortest_moves(desc: Map, position: int) -> list[int]:
    """The actions that start a shortest way to the goal from a cell, if the ice did not slip."""
    size, dist = len(desc), goal_distance(desc)
    row, col = divmod(position, size)
    near = [(row + dr, col + dc) for dr, dc in MOVES]
    ways = [dist[r * size + c] if 0 <= r < size and 0 <= c < size else float("inf") for r, c in near]
    return [a for a in range(4) if ways[a] == min(ways)]
