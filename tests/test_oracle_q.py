"""The oracle-Q process reward (paper §5.1) against exact enumeration on small maps."""

import ast
import itertools
from dataclasses import replace

import numpy as np
import pytest

from lib.envs.base import Env, NoStepMeasure, Task
from lib.envs.frozenlake import ACTIONS, FrozenLake, FrozenLakeConfig, dynamics, q_star
from lib.episode import End, Episode, Turn, load_episodes, save_episodes
from lib.profiles import experiment
from lib.rollout import jobs, rollout
from lib.trainers.advantages import oracle_q
from lib.trainers.config import TrainConfig
from lib.trainers.rewards import oracle_q_rewards

T = 2


def one_turn(quality, value):
    turn = Turn([1], [2], [0.0], "", 0.0, False, quality, value=value)
    return Episode("lake", "t", 0, 0, 1, [turn], End.FAILED, 0.0)


def reward_of(env, action):
    """The process reward of an action in the environment's present state, by the path that training takes."""
    return oracle_q_rewards(one_turn(env.step_quality(action), env.value()))[0]


def test_by_hand_on_a_map_that_does_not_slip():
    env = FrozenLake(FrozenLakeConfig(size=2, max_turns=T, success_rate=1.0))
    env.reset(Task("x", {"desc": ["SF", "FG"]}), 0)
    assert reward_of(env, "Right") == 0 == reward_of(env, "Down")
    assert reward_of(env, "Left") == -1 == reward_of(env, "Up")  # a lost turn of two: the goal is out of reach
    env.step("Left")
    assert reward_of(env, "Right") == 0  # nothing is left to lose


@pytest.mark.parametrize("desc", [("SF", "HG"), ("SF", "FG")])
def test_the_optimal_policies_and_they_alone_get_the_largest_return(desc):
    """All deterministic policies, time-dependent, by enumeration: the expected sum of process rewards is
    J(pi) - V*(s_0), so it is largest, 0, exactly for the policies with the largest success probability."""
    P, env = dynamics(desc, 0.8), FrozenLake(FrozenLakeConfig(size=2, max_turns=T))
    task, open_cells = Task("x", {"desc": list(desc)}), [i for i, c in enumerate("".join(desc)) if c in "SF"]
    losses = {}
    for left, cell, a in itertools.product(range(1, T + 1), open_cells, range(4)):
        env.reset(task, 0, budget=left)
        env.position = cell
        losses[left, cell, a] = reward_of(env, ACTIONS[a])

    def expected(policy, left, cell, gain):
        """Expected sum of `gain(left, cell, action)` and, where gain is None, of the environment's reward."""
        if not left:
            return 0.0
        a = policy[left, cell]
        now = gain(left, cell, a) if gain else 0.0
        for p, after, reward, done in P[cell][a]:
            now += p * ((reward if gain is None else 0.0) + (0 if done else expected(policy, left - 1, after, gain)))
        return now

    spots = list(itertools.product(range(1, T + 1), open_cells))
    success, process = [], []
    for actions in itertools.product(range(4), repeat=len(spots)):
        policy = dict(zip(spots, actions, strict=True))
        success.append(expected(policy, T, 0, None))
        process.append(expected(policy, T, 0, lambda *where: losses[where]))
    success, process = np.array(success), np.array(process)
    np.testing.assert_allclose(process, success - success.max(), atol=1e-12)
    assert process.max() == pytest.approx(0, abs=1e-12) and process.min() < -0.1


def test_rollouts_record_exact_values(policy, lake, tmp_path):
    found = rollout(policy, FrozenLake, lake.config, jobs(lake.tasks[:3], 3, 4), quality=True)
    for e in found:
        for i, turn in enumerate(e.turns):
            desc, cell = ast.literal_eval(turn.key)
            q = q_star(dynamics(tuple(desc.split("/")), lake.config.success_rate), 4)[4 - i, cell]
            assert turn.value == pytest.approx(q.max(), abs=1e-12)
            assert turn.quality <= turn.value + 1e-12
    save_episodes(found, tmp_path / "e.parquet")
    assert load_episodes(tmp_path / "e.parquet") == found
    plain = rollout(policy, FrozenLake, lake.config, jobs(lake.tasks[:1], 1, 4))
    with pytest.raises(NoStepMeasure, match="exact"):
        oracle_q_rewards(plain[0])


def test_advantages_by_hand():
    losses = [(0.2, 0.7), (0.5, 0.5)], [(0.3, 0.8)]  # (Q*, V*): -0.5, 0 | -0.5
    turns = [[Turn([1], [2], [0.0], "", 0.0, False, q, value=v) for q, v in e] for e in losses]
    group = [Episode("lake", "t", 0, 0, 3, t, End.FAILED, 0.0) for t in turns]
    lost = Episode("lake", "t", 0, 0, 3, [], End.ERROR, float("nan"))
    now = oracle_q([[*group, lost]], TrainConfig("oracle_q", oracle_gamma=0.0))[0]  # mean -1/3, deviation sqrt(1/18)
    np.testing.assert_allclose(np.concatenate(now), [-(0.5**0.5), 2**0.5, -(0.5**0.5)], rtol=1e-3)
    later = oracle_q([group], TrainConfig("oracle_q", oracle_gamma=0.5))[0]
    np.testing.assert_allclose(np.concatenate(later), np.concatenate(now)[[0, 1, 2]], rtol=1e-3)
    turns[0].append(Turn([1], [2], [0.0], "", 0.0, False, 0.0, value=1.0))  # -0.5, 0, -1 -> to go: -0.75, -0.5, -1
    to_go = oracle_q([group], TrainConfig("oracle_q", oracle_gamma=0.5))[0]
    np.testing.assert_allclose(np.diff(to_go[0]) / np.diff(to_go[0])[0], [1, -2], rtol=1e-9)


def test_refused_where_values_are_not_exact(policy, lake, tmp_path):
    from lib.trainers.trainer import train

    class Vague(FrozenLake):
        value = Env.value

    with pytest.raises(ValueError, match="exact"):
        train(policy, Vague, lake.config, TrainConfig("oracle_q"), lake.tasks, lake.probe, tmp_path)
    from lib.envs.sql import Sql

    with pytest.raises(ValueError, match="oracle_q"):
        replace(experiment("smoke"), env="sql", env_config=Sql.Config(), arms=("oracle_q",))


def test_trains(policy, lake, tmp_path):
    from lib.store import read_jsonl
    from lib.trainers.budgets import Staged
    from lib.trainers.trainer import train

    run = TrainConfig("oracle_q", Staged((0.5, 1.0), 1), updates=2, tasks_per_update=4, group_size=2, lr=1e-3)
    train(policy, FrozenLake, lake.config, run, lake.tasks, lake.probe, tmp_path)
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    assert [r["budget"] for r in rows] == [3, 6] and all(r["grad_norm"] > 0 for r in rows)
