"""Budgets: the grid exactly, BudgetMix's distribution, the stages."""

from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from lib.trainers.budgets import BudgetMix, Fixed, Staged, grid_budgets


def test_grids_by_hand():
    assert grid_budgets(0.1, 20) == list(range(2, 21, 2))  # 0.7 * 20 and 0.55 * 20 are above 14 and 11 as floats
    assert grid_budgets(0.05, 20) == list(range(1, 21))
    assert grid_budgets(0.1, 7) == [1, 2, 3, 3, 4, 5, 5, 6, 7, 7]
    assert grid_budgets(0.25, 10) == [3, 5, 8, 10]
    assert grid_budgets(1 / 3, 6) == [2, 4, 6] and grid_budgets(1, 5) == [5] and grid_budgets(0.5, 1) == [1, 1]


@given(st.integers(1, 40), st.integers(1, 200))
def test_budgets_are_the_exact_ceilings(n, t_max):
    exact = [ceil(Fraction(i * t_max, n)) for i in range(1, n + 1)]
    assert grid_budgets(1 / n, t_max) == exact
    assert [int(Fixed(i / n).budgets(0, 0, 1, t_max)[0]) for i in range(1, n + 1)] == exact


@pytest.mark.parametrize("grid", [0.3, 0.15, 0, -0.1, 1.5, 0.1001])
def test_a_grid_that_does_not_divide_one_is_refused(grid):
    with pytest.raises(ValueError, match=f"budget grid {grid}: .*whole number"):
        BudgetMix(grid)


def test_budgetmix_is_uniform_on_the_grid_over_tasks_and_over_updates():
    mix = BudgetMix()
    over_tasks = mix.budgets(0, 0, 5000, 20)
    over_updates = np.concatenate([mix.budgets(1, u, 8, 20) for u in range(600)])
    over_seeds = np.concatenate([mix.budgets(s, 3, 8, 20) for s in range(600)])
    for found in (over_tasks, over_updates, over_seeds):
        counts = np.bincount(found, minlength=21)
        assert counts[2::2].sum() == len(found) and chisquare(counts[2::2]).pvalue > 1e-3
    # Tmax 7: 3, 5 and 7 stand twice in the grid and are drawn twice as often
    counts = np.bincount(mix.budgets(0, 0, 5000, 7), minlength=8)
    assert chisquare(counts[1:], 500 * np.array([1, 1, 2, 1, 2, 1, 2])).pvalue > 1e-3
    following = np.stack([mix.budgets(0, u, 8, 20) for u in range(600)])[:, 0]
    assert abs(np.corrcoef(following[:-1], following[1:])[0, 1]) < 0.15


def test_samplers_keep_no_state():
    for sampler in (BudgetMix(), Staged((0.25, 0.5, 1.0), 2), Fixed(0.5)):
        drawn = [sampler.budgets(5, u, 4, 20).tolist() for u in range(6)]
        again = [sampler.budgets(5, u, 4, 20).tolist() for u in reversed(range(6))][::-1]
        assert drawn == again
    assert BudgetMix().budgets(5, 0, 50, 20).tolist() != BudgetMix().budgets(5, 1, 50, 20).tolist()
    assert BudgetMix().budgets(5, 0, 50, 20).tolist() != BudgetMix().budgets(6, 0, 50, 20).tolist()


def test_staged_by_hand():
    staged = Staged((0.25, 0.5, 1.0), every=3)
    found = [staged.budgets(0, u, 2, 10).tolist() for u in range(9)]
    assert found == [[3, 3]] * 3 + [[5, 5]] * 3 + [[10, 10]] * 3
    assert staged.budgets(0, 1000, 1, 10).tolist() == [10]
    assert Staged((0.5,), 1).budgets(0, 7, 1, 10).tolist() == [5]


def test_bad_samplers_are_refused():
    for fraction in (0, -0.5, 1.1):
        with pytest.raises(ValueError, match=f"fraction {fraction}"):
            Fixed(fraction)
        with pytest.raises(ValueError, match=f"fraction {fraction}"):
            Staged((fraction, 1.0))
    for args in (((), 3), ((0.5,), 0)):
        with pytest.raises(ValueError, match="at least one stage"):
            Staged(*args)
