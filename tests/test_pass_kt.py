"""Pass@(K,T): against enumeration, exact probabilities and re-sampled rollouts."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lib.metrics.pass_kt import pass_at_k, pass_kt, pass_kt_resampled

T_MAX = 6
NEVER = np.inf
surfaces = arrays(
    float,
    st.tuples(st.integers(1, 4), st.integers(1, 8)),
    elements=st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, NEVER]),
)


def test_pass_at_k_equals_the_share_of_subsets_with_a_success():
    for n in range(1, 9):
        for c in range(n + 1):
            for k in range(1, n + 1):
                subsets = list(combinations([1] * c + [0] * (n - c), k))
                assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-14)


def test_pass_at_k_broadcasts_and_survives_large_n():
    out = pass_at_k(16, np.array([0, 3, 16])[:, None], np.array([1, 8]))
    assert out.shape == (3, 2)
    # by hand: 1 - (13 choose 8) / (16 choose 8) = 1 - 1287 / 12870 = 0.9
    np.testing.assert_allclose(out, [[0, 0], [3 / 16, 0.9], [1, 1]], atol=1e-15)
    assert pass_at_k(5000, 1, 2500) == pytest.approx(0.5)  # one success among n is drawn with probability k / n


def test_pass_at_k_is_unbiased():
    n, k, p = 8, 3, 0.2  # exact expectation over c ~ Binomial(n, p) by summing the pmf
    pmf = np.array([1.0])
    for _ in range(n):
        pmf = np.convolve(pmf, [1 - p, p])
    assert pmf @ pass_at_k(n, np.arange(n + 1), k) == pytest.approx(1 - (1 - p) ** k)


@pytest.mark.parametrize(
    ("n", "c", "k", "message"),
    [
        (4, 2, 5, "k = 5 is larger than n = 4"),
        (4, 5, 1, "c = 5 is larger than n = 4"),
        ([4, 8], [4, 9], 1, "c = 9 is larger than n = 8"),
        (4, -1, 1, r"c must be whole numbers >= 0, got \[-1\]"),
        (-4, 0, 1, "n must be"),
        (4, 1, 0, "k must be"),
        (4, 1.5, 1, "got \\[1.5\\]"),
        (4, np.nan, 1, "nan"),
        (4, [], 1, "c must be one or more numbers"),
        (4, "1", 1, "c must be one or more numbers"),
    ],
)
def test_pass_at_k_refuses(n, c, k, message):
    with pytest.raises(ValueError, match=message):
        pass_at_k(n, c, k)


def test_surface_by_hand():
    turns = [[1, 3, NEVER, NEVER], [NEVER] * 4]
    out = pass_kt(turns, ks=[1, 2, 4], ts=[1, 2, 3, 6], t_max=6)
    # task 0: one of four succeeds by T = 1 and 2, two of four from T = 3; two of six pairs hold no success then
    expected = [[1 / 4, 1 / 4, 1 / 2, 1 / 2], [1 / 2, 1 / 2, 5 / 6, 5 / 6], [1, 1, 1, 1]]
    np.testing.assert_allclose(out, [expected, np.zeros((3, 4))])


@given(surfaces)
def test_surface_k1_is_the_mean_kn_is_any_and_monotone(turns):
    n = turns.shape[1]
    out = pass_kt(turns, range(1, n + 1), range(1, T_MAX + 1), T_MAX)
    assert out.shape == (len(turns), n, T_MAX)
    for j in range(T_MAX):
        solved = turns <= j + 1
        np.testing.assert_allclose(out[:, 0, j], solved.mean(axis=1), atol=1e-12)
        np.testing.assert_array_equal(out[:, -1, j], solved.any(axis=1))
    assert (np.diff(out, axis=1) >= -1e-12).all() and (np.diff(out, axis=2) >= 0).all()
    assert ((out >= 0) & (out <= 1)).all()


@given(surfaces, st.randoms())
def test_the_order_of_samples_does_not_matter(turns, random):
    order = list(range(turns.shape[1]))
    random.shuffle(order)
    args = ([1, turns.shape[1]] if turns.shape[1] > 1 else [1], [2, 5], T_MAX)
    np.testing.assert_array_equal(pass_kt(turns, *args), pass_kt(turns[:, order], *args))


def _budget_blind_rollouts(hazard, n, budget, rng):
    """Every turn solves task i with probability hazard[i], whatever the budget is."""
    turns = rng.geometric(np.repeat(hazard[:, None], n, axis=1)).astype(float)
    return np.where(turns <= budget, turns, NEVER)


def test_one_set_of_rollouts_agrees_with_new_rollouts_per_budget():
    rng = np.random.default_rng(5)
    ks, ts, n = [1, 4, 8], [1, 2, 5, 10], 16
    hazard = rng.beta(0.6, 6, size=600)
    one = pass_kt(_budget_blind_rollouts(hazard, n, 10, rng), ks, ts, t_max=10)
    many = pass_kt_resampled({t: _budget_blind_rollouts(hazard, n, t, rng) for t in ts}, ks)
    assert one.shape == many.shape == (600, 3, 4)
    within = np.array(ts)[None, None, :]
    exact = 1 - (1 - hazard[:, None, None]) ** (within * np.array(ks)[None, :, None])
    for got in (one, many, one - many + exact):  # each against the truth, and against each other
        error = got - exact
        z = error.mean(axis=0) / (error.std(axis=0, ddof=1) / np.sqrt(len(error)))
        assert np.abs(z).max() < 3.5


def test_resampled_counts_each_budget_by_itself():
    # told T = 1 the policy hurries and always succeeds; told T = 3 it does in one of four: not monotone, and kept so
    out = pass_kt_resampled({3: [[3, NEVER, NEVER, NEVER]], 1: [[1, 1]]}, ks=[1, 2])
    np.testing.assert_allclose(out, [[[1 / 4, 1], [1 / 2, 1]]])


@pytest.mark.parametrize(
    ("turns", "ks", "ts", "message"),
    [
        ([[1, 7]], [1], [1], r"in 1..6, or inf for never; got \[7.0\]"),
        ([[0, 1]], [1], [1], r"got \[0.0\]"),
        ([[1.5, 1]], [1], [1], r"got \[1.5\]"),
        ([[np.nan, 1]], [1], [1], "nan"),
        ([[-np.inf, 1]], [1], [1], "-inf"),
        ([1, 2], [1], [1], "tasks, samples"),
        (np.empty((0, 4)), [1], [1], "not empty"),
        ([[1, 2]], [3], [1], "k = 3 is larger than n = 2"),
        ([[1, 2]], [1], [7], "T = 7 is beyond t_max = 6"),
        ([[1, 2]], [1], [0], "ts must be whole numbers >= 1"),
        ([[1, 2]], [0], [1], "ks must be"),
        ([[1, 2]], [], [1], "ks must be"),
        ([[1, 2]], [1, 1], [1], "without repeats"),
    ],
)
def test_surface_refuses(turns, ks, ts, message):
    with pytest.raises(ValueError, match=message):
        pass_kt(turns, ks, ts, T_MAX)


def test_resampled_refuses_tasks_that_do_not_match():
    a, b = [[1, NEVER]], [[1, 2], [2, 2]]
    with pytest.raises(ValueError, match="same tasks.*{1: 1, 2: 2}"):
        pass_kt_resampled({1: a, 2: b}, [1])
    with pytest.raises(ValueError, match="same task ids in the same order"):
        pass_kt_resampled({2: b, 3: b}, [1], tasks={2: ["x", "y"], 3: ["y", "x"]})
    with pytest.raises(ValueError, match="same task ids"):
        pass_kt_resampled({2: b}, [1], tasks={2: ["x"]})
    with pytest.raises(ValueError, match="task ids for T"):
        pass_kt_resampled({2: b}, [1], tasks={3: ["x", "y"]})
    with pytest.raises(ValueError, match="in 1..1"):  # a success later than its budget
        pass_kt_resampled({1: [[2, NEVER]]}, [1])
    assert pass_kt_resampled({2: b, 3: b}, [1], tasks={2: ["x", "y"], 3: ["x", "y"]}).shape == (2, 1, 2)
