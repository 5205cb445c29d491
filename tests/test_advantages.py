"""GRPO's group advantages and their spread over tokens, by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.episode import End, Episode, Turn
from lib.trainers.advantages import ALGORITHMS, group_advantages, grpo, token_advantages

NAN = math.nan


def episode(reward, turns=2, end=End.FAILED):
    played = [Turn([9], [1, 2], [-1.0, -1.0], "a", 0.0, False) for _ in range(turns)]
    return Episode("lake", "t", 0, 0, 9, played, end, reward)


def test_group_advantages_by_hand():
    # mean 1/4, sample variance 3 * (1/4)^2 + (3/4)^2 over 3 = 1/4, standard deviation 1/2
    found = group_advantages([[1, 0, 0, 0], [2, 2, 2, 2]])
    np.testing.assert_allclose(found, [[0.75 / 0.5001, *[-0.25 / 0.5001] * 3], [0] * 4])
    np.testing.assert_allclose(group_advantages([[1, 0, 0, 0]], scale=False), [[0.75, -0.25, -0.25, -0.25]])


def test_missing_rewards_take_no_part():
    # 3 and 1: mean 2, standard deviation sqrt(2)
    found = group_advantages([[3, NAN, 1], [NAN, 5, NAN], [NAN] * 3])
    a = 1 / (math.sqrt(2) + 1e-4)
    np.testing.assert_allclose(found, [[a, 0, -a], [0] * 3, [0] * 3])


rewards = st.lists(st.one_of(st.floats(-5, 5), st.just(NAN)), min_size=2, max_size=8)


@given(rewards, st.booleans(), st.floats(-3, 3))
def test_advantages_have_mean_zero_and_ignore_a_constant(group, scale, constant):
    found = group_advantages([group], scale)[0]
    known = ~np.isnan(group)
    assert np.isfinite(found).all() and (found[~known] == 0).all()
    assert abs(found.sum()) < 1e-6
    moved = group_advantages([np.array(group) + constant], scale)[0]
    np.testing.assert_allclose(found, moved, atol=1e-6)
    order = np.argsort(np.where(known, group, 0)[known], kind="stable")
    assert known.sum() < 2 or (np.diff(found[known][order]) >= -1e-12).all()


def test_grpo_gives_every_turn_its_episodes_advantage():
    assert ALGORITHMS["grpo"] is grpo
    groups = [[episode(1.0, 3), episode(0.0, 1), episode(NAN, 2, End.ERROR)], [episode(0.5)] * 3]
    found = grpo(groups, SimpleNamespace(scale_rewards=False))
    assert [[a.tolist() for a in g] for g in found] == [[[0.5] * 3, [-0.5], [0.0] * 2], [[0.0] * 2] * 3]


def test_token_advantages_by_hand():
    e = episode(1.0, 3)  # completion: a a, c a a, c a a
    assert token_advantages(e, np.array([1.0, -2.0, 3.0])) == [1.0, 1.0, 0.0, -2.0, -2.0, 0.0, 3.0, 3.0]
    assert token_advantages(episode(NAN, 2, End.ERROR), np.array([1.0, 1.0])) == [0.0] * 5
    assert token_advantages(episode(NAN, 0, End.ERROR), np.array([])) == []


def test_two_groups_do_not_mix():
    a, b = [1.0, 0.0, 0.0], [7.0, 5.0, 6.0]
    both = group_advantages([a, b])
    np.testing.assert_array_equal(both, np.concatenate([group_advantages([a]), group_advantages([b])]))
    assert both.sum() == pytest.approx(0)
