"""GiGPO's advantages against values computed by hand from the paper's formulas (arXiv 2505.10978)."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.episode import End, Episode, Turn
from lib.trainers.advantages import gigpo
from lib.trainers.config import GiGPOConfig, TrainConfig
from lib.trainers.rewards import returns_to_go


def episode(keys, rewards, end=End.FAILED):
    turns = [Turn([1], [2], [0.0], "", r, False, key=k) for k, r in zip(keys, rewards, strict=True)]
    return Episode("lake", "t", 0, 0, 9, turns, end, float("nan") if end is End.ERROR else sum(rewards))


def config(scale, statistics="trajectories", omega=2.0, gamma=0.5):
    return TrainConfig(scale_rewards=scale, gigpo=GiGPOConfig(omega, gamma, statistics))


# Three episodes of one task. Returns-to-go with gamma 0.5: (0.5, 1), (0, 0, 0), (0, 0).
GROUP = [episode("AB", [0, 1]), episode("AAC", [0, 0, 0]), episode("BD", [0, 0])]
# Anchor A: 0.5, 0, 0 (the second episode visits it twice), B: 1, 0; C and D are seen once.
STEP = [[1 / 3, 1 / 2], [-1 / 6, -1 / 6, 0], [-1 / 2, 0]]
STEP_STD = [[12**-0.5, 2**-0.5], [12**-0.5, 12**-0.5, 1], [2**-0.5, 1]]  # the sample's, of the turn's anchor group


@pytest.mark.parametrize(
    "statistics, mean, std",
    [("trajectories", 1 / 3, 3**-0.5), ("steps", 2 / 7, (10 / 42) ** 0.5)],  # of 1, 0, 0 and of 1, 1, 0, 0, 0, 0, 0
)
def test_by_hand(statistics, mean, std):
    plain = gigpo([GROUP], config(False, statistics))[0]
    scaled = gigpo([GROUP], config(True, statistics))[0]
    for i, reward in enumerate((1, 0, 0)):
        step, step_std = np.array(STEP[i]), np.array(STEP_STD[i])
        np.testing.assert_allclose(plain[i], reward - mean + 2 * step, atol=1e-12)
        np.testing.assert_allclose(scaled[i], (reward - mean) / std + 2 * step / step_std, rtol=2e-3)


def test_errored_episodes_take_no_part():
    errored, lost = episode("AB", [0, 5], End.ERROR), Episode("lake", "t", 0, 0, 9, [], End.ERROR, float("nan"))
    for statistics in ("trajectories", "steps"):
        with_errors = gigpo([[errored, *GROUP, lost]], config(True, statistics))[0]
        assert [a.tolist() for a in with_errors[1:4]] == [
            a.tolist() for a in gigpo([GROUP], config(True, statistics))[0]
        ]
        assert with_errors[0].tolist() == [0, 0] and with_errors[4].size == 0
    assert gigpo([[lost, lost]], config(True))[0][0].size == 0


def test_states_are_compared_within_a_task_only():
    both = gigpo([[episode("A", [0]), episode("B", [0])], [episode("A", [1]), episode("B", [1])]], config(False))
    assert [float(a[0]) for g in both for a in g] == [0, 0, 0, 0]


def test_returns_to_go():
    np.testing.assert_allclose(returns_to_go(np.array([1.0, 0, 2]), 0.95), [1 + 2 * 0.95**2, 1.9, 2])
    assert returns_to_go(np.zeros(0), 0.5).size == 0


plays = st.lists(st.tuples(st.sampled_from("ABC"), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=6)


@given(st.lists(plays, min_size=2, max_size=5), st.booleans())
def test_step_level_advantages_of_an_anchor_sum_to_zero(group, scale):
    episodes = [episode([k for k, _ in p], [r for _, r in p]) for p in group]
    with_steps = gigpo([episodes], config(scale, omega=1.0))[0]
    without = gigpo([episodes], config(scale, omega=0.0))[0]
    sums = {}
    for e, a, b in zip(episodes, with_steps, without, strict=True):
        assert np.ptp(b) == 0  # the episode level alone: one number an episode
        for turn, step in zip(e.turns, a - b, strict=True):
            sums[turn.key] = sums.get(turn.key, 0) + step
    assert all(abs(s) < 1e-9 for s in sums.values())


@pytest.mark.parametrize("bad", [{"omega": -1}, {"gamma": 1.1}, {"statistics": "turns"}])
def test_bad_values_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        GiGPOConfig(**bad)


def test_trains_with_a_budget_a_task(policy, lake, tmp_path):
    from trainer_parts import Lengths

    from lib.store import read_jsonl
    from lib.trainers.budgets import BudgetMix
    from lib.trainers.trainer import train

    run = TrainConfig("gigpo", BudgetMix(0.5), updates=2, tasks_per_update=4, group_size=4, lr=1e-3, kl_episodes=0)
    before = {k: v.clone() for k, v in policy.model.state_dict().items()}
    train(policy, Lengths, lake.config, run, lake.tasks, lake.probe, tmp_path)
    assert any(not before[k].equal(v) for k, v in policy.model.state_dict().items())
    rows = [SimpleNamespace(**r) for r in read_jsonl(tmp_path / "metrics.jsonl")]
    assert [r.update for r in rows] == [1, 2] and all(3 <= r.budget <= 6 and r.grad_norm > 0 for r in rows)
