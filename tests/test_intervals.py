"""Intervals: against scipy, hand-worked examples, and simulated coverage, type-I error and power."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from lib.metrics.intervals import (
    METHODS,
    Interval,
    generalisation_gap,
    holm,
    minimum_detectable_effect,
    paired_seeds,
    paired_t_pvalue,
    paired_tasks,
    seed_interval,
    task_curve_interval,
    task_interval,
    tost,
)
from lib.metrics.pass_kt import pass_at_k

shares = arrays(float, st.integers(2, 30), elements=st.floats(0, 1, width=32))


def _per_task(rng, tasks, n=16, k=1, a=0.8, b=1.6):
    """Pass@k of tasks whose success rates are Beta(a, b): as skewed and as clustered as real panels."""
    return pass_at_k(n, rng.binomial(n, rng.beta(a, b, size=tasks)), k)


@pytest.mark.parametrize("method", METHODS)
def test_coverage_of_task_intervals(method):
    a, b, n, k = 0.8, 1.6, 16, 4
    c = np.arange(n + 1)
    truth = float(stats.betabinom(n, a, b).pmf(c) @ pass_at_k(n, c, k))
    rng = np.random.default_rng(11)
    hits = 0
    for i in range(1500):
        ci = task_interval(_per_task(rng, 120, n, k, a, b), method, seed=i, n_boot=1000)
        hits += ci.low <= truth <= ci.high
    assert 0.93 <= hits / 1500 <= 0.97


def test_coverage_of_the_unpaired_gap():
    rng = np.random.default_rng(12)
    truth = 0.8 / 2.4 - 1 / 4
    hits = 0
    for i in range(1000):
        ci = generalisation_gap(_per_task(rng, 150), _per_task(rng, 100, a=1, b=3), seed=i, n_boot=1000)
        hits += ci.low <= truth <= ci.high
    assert 0.93 <= hits / 1000 <= 0.97


def test_bca_and_percentile_agree_with_scipy():
    x = np.random.default_rng(0).gamma(0.5, 1.0, size=40)  # skewed: BCa and percentile differ clearly
    se = x.std(ddof=1) / np.sqrt(len(x))
    for method, theirs in (("bca", "BCa"), ("percentile", "percentile")):
        ours = task_interval(x, method, n_boot=50_000, clip=None)
        ref = stats.bootstrap(
            (x,), np.mean, n_resamples=50_000, method=theirs, rng=np.random.default_rng(1)
        ).confidence_interval
        np.testing.assert_allclose([ours.low, ours.high], [ref.low, ref.high], atol=0.05 * se)
    shift = task_interval(x, "bca", clip=None).high - task_interval(x, "percentile", clip=None).high
    assert shift > 0.1 * se  # a right-skewed sample moves BCa to the right


def test_bca_of_two_samples_agrees_with_scipy():
    rng = np.random.default_rng(3)
    a, b = rng.gamma(0.5, 1.0, size=40), rng.gamma(0.7, 0.5, size=25)
    ours = generalisation_gap(a, b, n_boot=50_000)
    ref = stats.bootstrap(
        (a, b), lambda x, y, axis: x.mean(axis) - y.mean(axis), n_resamples=50_000, method="BCa", rng=rng
    ).confidence_interval
    np.testing.assert_allclose([ours.low, ours.high], [ref.low, ref.high], atol=0.01)
    assert (ours.n, ours.unit) == (65, "tasks")
    welch = generalisation_gap(a, b, "t")
    ref = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    np.testing.assert_allclose([welch.low, welch.high], [ref.low, ref.high])


def test_t_intervals_agree_with_scipy():
    x = np.array([0.31, 0.38, 0.29, 0.42])
    y = np.array([0.28, 0.33, 0.30, 0.35])
    for ours, data in ((seed_interval(x, 0.9), x), (paired_seeds(x, y, 0.9), x - y), (task_interval(x, "t", 0.9), x)):
        ref = stats.t.interval(0.9, len(data) - 1, data.mean(), stats.sem(data))
        np.testing.assert_allclose([ours.low, ours.high], ref)
        assert ours.estimate == pytest.approx(data.mean()) and ours.level == 0.9 and ours.method == "t"
    assert paired_t_pvalue(x, y) == pytest.approx(stats.ttest_rel(x, y).pvalue)


@given(shares, st.sampled_from(METHODS), st.integers(0, 3))
def test_task_interval_properties(x, method, seed):
    ci = task_interval(x, method, seed=seed, n_boot=300)
    assert ci == task_interval(x, method, seed=seed, n_boot=300)
    assert 0 <= ci.low <= ci.high <= 1 and ci.estimate == x.mean()
    assert (ci.unit, ci.n, ci.method) == ("tasks", len(x), method)


def test_seeds_matter_and_chunks_do_not_show(monkeypatch):
    x = np.random.default_rng(0).random(50)
    assert task_interval(x, seed=1) == task_interval(x, seed=1) != task_interval(x, seed=2)
    whole = task_curve_interval(x)
    monkeypatch.setattr("lib.metrics.intervals._CHUNK", 1000)
    np.testing.assert_allclose(task_curve_interval(x), whole)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_no_spread_gives_zero_width(method, value):
    ci = task_interval([value] * 7, method)
    assert ci.low == ci.high == ci.estimate == pytest.approx(value)
    gap = generalisation_gap([value] * 7, [0.5] * 3, method)
    assert gap.low == gap.high == pytest.approx(value - 0.5)


def test_t_interval_is_clipped_and_values_outside_the_range_are_refused():
    x = [0.0] * 9 + [0.4]
    assert task_interval(x, "t", clip=None).low < 0 == task_interval(x, "t").low
    with pytest.raises(ValueError, match="from 0.2 to 12.2 lie outside"):
        task_interval([0.2, 12.2])
    assert task_interval([0.2, 12.2, 3.0], clip=None).high > 1


def test_curve_band():
    x = np.random.default_rng(4).random((80, 3, 5))
    band = task_curve_interval(x, n_boot=20_000)
    assert band.shape == (2, 3, 5)
    point = task_interval(x[:, 1, 2], "percentile", n_boot=20_000)
    np.testing.assert_allclose(band[:, 1, 2], [point.low, point.high], atol=0.003)
    # tasks are resampled whole: a curve that is a shifted copy gets the shifted band, exactly
    both = task_curve_interval(np.stack([x[:, 0, 0], x[:, 0, 0] + 1], axis=1))
    np.testing.assert_allclose(both[:, 1], both[:, 0] + 1)


def test_pairing_on_tasks_narrows_the_interval():
    rng = np.random.default_rng(6)
    difficulty = rng.beta(0.8, 1.6, size=200)
    a, b = (rng.binomial(16, np.clip(difficulty + d, 0, 1)) / 16 for d in (0.05, 0.0))
    paired, unpaired = paired_tasks(a, b), generalisation_gap(a, b)
    assert paired.estimate == pytest.approx(unpaired.estimate)
    # the standard errors by the textbook formulas give the ratio that the widths must show
    ratio = (a - b).std() / np.sqrt(a.var() + b.var())
    assert ratio < 0.5
    assert (paired.high - paired.low) / (unpaired.high - unpaired.low) == pytest.approx(ratio, rel=0.05)


def test_type_one_error_of_paired_seeds_is_nominal():
    rng = np.random.default_rng(7)
    seeds = 4
    reject = disagree = 0
    for _ in range(3000):
        shared = rng.normal(0, 0.05, size=seeds)  # initial weights and task order
        a, b = (0.4 + shared + rng.normal(0, 0.02, size=seeds) for _ in range(2))
        ci = paired_seeds(a, b)
        outside = not ci.low <= 0 <= ci.high
        reject += outside
        disagree += outside != (paired_t_pvalue(a, b) < 0.05)
    assert 0.04 <= reject / 3000 <= 0.06 and disagree == 0


@pytest.mark.parametrize(("n", "power", "level"), [(2, 0.8, 0.95), (3, 0.8, 0.95), (5, 0.9, 0.99), (10, 0.2, 0.9)])
def test_minimum_detectable_effect_has_its_power(n, power, level):
    effect = minimum_detectable_effect(0.03, n, power, level)
    d = np.random.default_rng(8).normal(effect, 0.03, size=(200_000, n))
    t = d.mean(axis=1) / (d.std(axis=1, ddof=1) / np.sqrt(n))
    assert np.mean(np.abs(t) > stats.t.ppf((1 + level) / 2, n - 1)) == pytest.approx(power, abs=0.005)


def test_minimum_detectable_effect_approaches_the_normal_formula():
    z = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    assert minimum_detectable_effect(1.0, 2000) == pytest.approx(z / np.sqrt(2000), rel=2e-3)
    assert minimum_detectable_effect(0.0, 3) == 0.0
    for bad in ((-1.0, 3, 0.8), (1.0, 1, 0.8), (1.0, 3, 1.0), (1.0, 3, 0.01), (np.nan, 3, 0.8)):
        with pytest.raises(ValueError, match="need sd >= 0"):
            minimum_detectable_effect(*bad)


def test_holm_by_hand():
    # sorted .005 .01 .03 .04 times 4 3 2 1 = .02 .03 .06 .04, then the running maximum
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.6, 0.5]), [1, 1])
    np.testing.assert_allclose(holm([0.2]), [0.2])
    for bad in ([], [0.1, np.nan], [1.1], [-0.1], [[0.1]]):
        with pytest.raises(ValueError, match="p-values must be"):
            holm(bad)


def test_tost_is_two_one_sided_tests():
    x = np.array([0.004, -0.006, 0.003, 0.001, -0.002])
    p, ci = tost(x, margin=0.01)
    below = stats.ttest_1samp(x, 0.01, alternative="less").pvalue
    above = stats.ttest_1samp(x, -0.01, alternative="greater").pvalue
    assert p == pytest.approx(max(below, above)) and p < 0.05
    assert ci.level == 0.9 and -0.01 < ci.low < ci.high < 0.01
    p, ci = tost(x, margin=0.003)
    assert p > 0.05 and ci.high > 0.003
    assert tost(x + 0.05, margin=0.01)[0] > 0.99
    with pytest.raises(ValueError, match="margin must be positive"):
        tost(x, 0.0)


def test_tests_without_spread():
    assert paired_t_pvalue([0.2, 0.4], [0.2, 0.4]) == 1.0
    with pytest.raises(ValueError, match="needs spread"):
        paired_t_pvalue([0.3, 0.4, 0.5], [0.2, 0.3, 0.4])  # equal up to rounding
    with pytest.raises(ValueError, match="needs spread"):
        tost([0.0, 0.0], 0.1)


@pytest.mark.parametrize("call", [task_interval, task_curve_interval, seed_interval])
@pytest.mark.parametrize("bad", [[], 0.5, [0.1, np.nan], [0.1, np.inf], [0.5]])
def test_bad_samples_are_refused(call, bad):
    with pytest.raises(ValueError, match="need an array|not finite|add more"):
        call(bad)


def test_bad_arguments_are_refused():
    x = [0.1, 0.2, 0.4]
    with pytest.raises(ValueError, match="at least 2 seeds, got 1: add more seeds"):
        paired_seeds([0.1], [0.2])
    with pytest.raises(ValueError, match="got 3 and 2"):
        paired_tasks(x, x[:2])
    with pytest.raises(ValueError, match="got 3 and 2"):
        paired_seeds(x, x[:2])
    with pytest.raises(ValueError, match="'normal'; known: bca, percentile, t"):
        task_interval(x, "normal")
    with pytest.raises(ValueError, match="level must be"):
        task_curve_interval(x, level=95)
    with pytest.raises(ValueError, match="n_boot must be at least 200"):
        task_interval(x, n_boot=10)
    with pytest.raises(ValueError, match="low must not exceed high"):
        Interval(0.5, 0.6, 0.4, "tasks", 3, "t")
