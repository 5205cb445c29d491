"""The exact values of FrozenLake and the structural bound against brute force, hand computation and simulation."""

from itertools import product

import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.envs.frozenlake import ACTIONS, FrozenLake, FrozenLakeConfig, q_pi, q_star, v_star
from lib.envs.frozenlake_mdp import goal_distance, random_map
from lib.metrics.bounds import frozenlake_bound, structural_bound

MAP3 = ["SFF", "FHF", "FFG"]


def gym_p(desc, rate):
    return FrozenLakeEnv(desc=desc, is_slippery=rate < 1, success_rate=rate).P


def success(P, s0, rule, horizon):
    """Probability of reaching the goal under rule(turn, state) -> action, by pushing the distribution forward."""
    alive, won = {s0: 1.0}, 0.0
    for turn in range(horizon):
        after = {}
        for s, mass in alive.items():
            for p, s2, r, done in P[s][rule(turn, s)]:
                won += mass * p * r
                if not done:
                    after[s2] = after.get(s2, 0.0) + mass * p
        alive = after
    return won


def test_values_by_hand():
    # Right from S: 0.8 goal, 0.1 bump into the wall and try again, 0.1 down to a cell two moves from the goal.
    q = q_star(gym_p(["SG", "FF"], 0.8), 2)
    assert q[0].max() == 0
    np.testing.assert_allclose(q[1, 0], [0, 0.1, 0.8, 0.1])
    np.testing.assert_allclose(q[2, 0, 2], 0.8 + 0.1 * 0.8)
    np.testing.assert_allclose(q[2, 0, 3], 0.8 * 0.8 + 0.1 * 0.8 + 0.1)
    assert v_star(gym_p(["SG", "FF"], 0.8), 2)[2, 1] == 0  # at the goal nothing more is to be won
    ends = {0: {0: [(1.0, 1, 1.0, True)]}, 1: {0: [(1.0, 1, 1.0, False)]}}
    np.testing.assert_array_equal(v_star(ends, 3)[3], [1, 3])  # no value flows back through the end of an episode


def test_not_slippery_values_are_those_of_the_best_action_sequence():
    P, horizon = gym_p(["SFH", "FHF", "FFG"], 1.0), 5
    q = q_star(P, horizon)
    for s, t in product(range(9), range(1, horizon + 1)):
        best = np.zeros(4)
        for sequence in product(range(4), repeat=t):
            best[sequence[0]] = max(best[sequence[0]], success(P, s, lambda i, _: sequence[i], t))  # noqa: B023
        np.testing.assert_array_equal(q[t, s], best)


@pytest.mark.parametrize("desc", [["SF", "HG"], ["SHG", "FFF"]])
def test_slippery_values_are_those_of_the_best_of_all_policies(desc):
    P, horizon = gym_p(desc, 0.7), 3 if len(desc[0]) == 2 else 2
    cells = "".join(desc)
    live = [s for s, c in enumerate(cells) if c in "SF"]
    best = np.zeros(len(cells))
    for choice in product(range(4), repeat=len(live) * horizon):
        rule = {(t, s): choice[t * len(live) + i] for t in range(horizon) for i, s in enumerate(live)}
        for s in live:
            best[s] = max(best[s], success(P, s, lambda t, x: rule[t, x], horizon))  # noqa: B023
    np.testing.assert_allclose(v_star(P, horizon)[horizon], best)


def test_values_match_an_expectimax_that_knows_no_table():
    def value(row, col, t):
        return 0.0 if t == 0 else max(action(row, col, a, t) for a in range(4))

    def action(row, col, a, t):
        total = 0.0
        for turn, p in ((-1, 0.1), (0, 0.8), (1, 0.1)):
            dr, dc = [(0, -1), (1, 0), (0, 1), (-1, 0)][(a + turn) % 4]
            r, c = min(max(row + dr, 0), 2), min(max(col + dc, 0), 2)
            total += p * (float(MAP3[r][c] == "G") if MAP3[r][c] in "GH" else value(r, c, t - 1))
        return total

    q = q_star(gym_p(MAP3, 0.8), 4)
    for row, col in ((0, 0), (0, 2), (1, 2), (2, 0)):
        np.testing.assert_allclose(q[4, row * 3 + col], [action(row, col, a, 4) for a in range(4)])


def test_policy_values():
    P, horizon = gym_p(MAP3, 0.8), 6
    q = q_star(P, horizon)
    greedy = np.eye(4)[q[1:].argmax(axis=2)]  # row t - 1 acts with t turns left
    np.testing.assert_allclose(q_pi(P, greedy, horizon), q)
    walk = np.array([0, 1, 2, 2, 1, 1, 2, 3, 0])
    fixed = q_pi(P, np.eye(4)[walk], horizon)
    for s in (0, 1, 2, 3, 5, 6, 7):
        np.testing.assert_allclose(fixed[horizon, s, walk[s]], success(P, s, lambda _, x: walk[x], horizon))
    for bad in (np.ones((9, 4)), np.ones((9, 3)) / 3, np.ones((5, 9, 4)) / 4):
        with pytest.raises(ValueError, match="policy"):
            q_pi(P, bad, horizon)
    with pytest.raises(ValueError, match="horizon"):
        q_star(P, -1)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 4), st.sampled_from([0.4, 0.8, 1.0]))
def test_values_are_probabilities_that_grow_with_the_turns(seed, size, rate):
    desc = random_map(size, 0.7, "random", "random", seed)
    q = q_star(gym_p(list(desc), rate), 8)
    assert q.min() >= 0 and q.max() <= 1 + 1e-12
    assert (np.diff(q, axis=0) >= -1e-12).all()
    s0 = "".join(desc).index("S")
    assert [t for t in range(9) if q[t, s0].max() > 0] == [t for t in range(9) if t >= goal_distance(desc)[s0]]


def test_bound_by_hand_and_errors():
    values = [[0, 0.5, 1.0], [0, 0.0, 0.5]]
    np.testing.assert_allclose(structural_bound(values, [1, 2], [1, 2]), [[0.25, 0.75], [0.375, 0.875]])
    for ks, ts in (([0], [1]), ([1], [0]), ([1], [3]), ([], [1]), ([1.5], [1]), ([1], 2)):
        with pytest.raises(ValueError, match="whole numbers"):
            structural_bound(values, ks, ts)
    for bad in ([[0, 1.5]], [[0, np.nan]], [0, 1], [[0]]):
        with pytest.raises(ValueError, match="values"):
            structural_bound(bad, [1], [1])
    with pytest.raises(ValueError, match="no tasks"):
        frozenlake_bound(FrozenLakeConfig(), [], [1], [1])


def test_bound_is_what_the_optimal_policy_reaches():
    config = FrozenLakeConfig(max_turns=8)
    tasks, env = FrozenLake.tasks(config, "test", 10), FrozenLake(config)
    wins = np.zeros((10, 200))
    for i, seed in product(range(10), range(200)):
        env.reset(tasks[i], seed, budget=5)
        while env.turns_left and not env.over:
            wins[i, seed] = env.step(ACTIONS[env.q_values().argmax()]).reward
    pairs = np.maximum(wins[:, ::2], wins[:, 1::2])
    bound = frozenlake_bound(config, tasks, [1, 2], [5])[:, 0]
    assert abs(wins.mean() - bound[0]) < 4 * wins.std() / np.sqrt(wins.size)
    assert abs(pairs.mean() - bound[1]) < 4 * pairs.std() / np.sqrt(pairs.size)
