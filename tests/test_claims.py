"""Verdict rules against cases worked by hand; curves and tables from success rates that are known."""

import numpy as np
import pandas as pd
import pytest

from lib import curves
from lib.analyses import claims, verdicts
from lib.figures import claim_intervals, save_figure
from lib.metrics.intervals import Interval
from lib.profiles import experiment
from lib.tables import save_table

X = experiment("tiny")


def interval(low, high):
    return Interval((low + high) / 2, low, high, "seeds", 3, "t")


@pytest.mark.parametrize(
    ("low", "high", "boundary", "above", "below"),
    [
        (0.1, 0.3, 0.0, "supported", "opposite"),
        (-0.3, -0.1, 0.0, "opposite", "supported"),
        (-0.1, 0.3, 0.0, "inconclusive", "inconclusive"),
        (0.1, 0.3, 0.5, "opposite", "supported"),
        (0.0, 0.3, 0.0, "inconclusive", "inconclusive"),
        (0.2, 0.2, 0.0, "inconclusive", "inconclusive"),  # all seeds agree: no interval
    ],
)
def test_verdicts(low, high, boundary, above, below):
    assert verdicts.verdict(interval(low, high), boundary) == above
    assert verdicts.below(interval(low, high), boundary) == below


def rates(monkeypatch, table):
    """Make `per_seed` answer from `table[policy]`, a function of (K, T)."""
    monkeypatch.setattr(claims, "per_seed", lambda x, policy, seeds, k, t: np.asarray(table[policy](k, t), float))


def test_c1_needs_every_k(monkeypatch):
    base = {"base": lambda k, t: [0.3] * 3}
    rates(monkeypatch, base | {"grpo": lambda k, t: [0.5, 0.52, 0.48]})
    c = claims.c1_breadth(X, [0, 1, 2])
    half = 4.302653 * 0.02 / 3**0.5  # t quantile of 2 degrees of freedom, sd 0.02
    assert (c.verdict, c.estimate) == ("supported", pytest.approx(0.2))
    assert (c.low, c.high) == (pytest.approx(0.2 - half, abs=1e-6), pytest.approx(0.2 + half, abs=1e-6))
    rates(monkeypatch, base | {"grpo": lambda k, t: [0.5, 0.52, 0.48] if k < 8 else [0.3, 0.34, 0.28]})
    c = claims.c1_breadth(X, [0, 1, 2])
    assert c.verdict == "inconclusive" and "K = 8" in c.rule
    rates(monkeypatch, base | {"grpo": lambda k, t: [0.5, 0.52, 0.48] if k < 8 else [0.1, 0.101, 0.099]})
    c = claims.c1_breadth(X, [0, 1, 2])
    assert c.verdict == "opposite" and "K = 8" in c.rule and c.estimate == pytest.approx(-0.2)
    for same in (0.2, -0.2):  # at one K all seeds agree: nothing is known there
        rates(monkeypatch, base | {"grpo": lambda k, t, d=same: [0.5, 0.52, 0.48] if k < 8 else [0.3 + d] * 3})
        assert claims.c1_breadth(X, [0, 1, 2]).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("ppo", "expected"),
    [([0.51, 0.52, 0.5], "supported"), ([0.7, 0.71, 0.69], "opposite"), ([0.5, 0.6, 0.56], "inconclusive")],
)
def test_c6b_asks_that_no_method_leads_by_the_margin(monkeypatch, ppo, expected):
    rates(
        monkeypatch, {"grpo": lambda k, t: [0.5] * 3, "gigpo": lambda k, t: [0.4, 0.41, 0.4], "ppo": lambda k, t: ppo}
    )
    c = claims.c6b_dense_signals(X, [0, 1, 2])
    assert c.verdict == expected and c.estimate == pytest.approx(np.mean(ppo) - 0.5) and "shown: ppo" in c.rule


def test_a_seed_without_a_number_leaves_a_claim_open(monkeypatch):
    solved_nothing = iter([0.5, np.nan, 0.7, 0.1, np.nan, 0.1])
    monkeypatch.setattr(claims, "likelihood", lambda *_: None)
    monkeypatch.setattr(claims.nll, "mean_cumulative_llr", lambda *_: next(solved_nothing))
    c = claims.c4b_trajectories(X, [0, 1, 2])
    assert c.verdict == "inconclusive" and "no value for 2 of 3 seeds" in c.rule
    assert np.isnan([c.estimate, c.low, c.high, c.detectable]).all()


def test_c2_is_a_difference_of_leads(monkeypatch):
    grpo = {True: [0.5, 0.51, 0.49], False: [0.3, 0.3, 0.3]}
    rates(monkeypatch, {"base": lambda k, t: [0.2] * 3, "grpo": lambda k, t: grpo[t == 20]})
    c = claims.c2_depth(X, [0, 1, 2])
    assert c.estimate == pytest.approx(0.2) and c.verdict == "supported"


def test_c7_and_its_parity(monkeypatch):
    full = {"grpo": lambda k, t: [0.5, 0.6, 0.55]}
    rates(
        monkeypatch,
        full | {"budgetmix": lambda k, t: np.array([0.5, 0.6, 0.55]) + {5: 0.06, 10: 0.03, 15: 0.03, 20: 0}[t]},
    )
    assert claims.c7_budgetmix(X, [0, 1, 2]).estimate == pytest.approx(0.04)
    c = claims.c7_parity(X, [0, 1, 2])
    assert c.low == c.high == pytest.approx(0) and c.verdict == "inconclusive"  # seeds that agree decide nothing
    rates(monkeypatch, full | {"budgetmix": lambda k, t: [0.51, 0.6, 0.56]})
    c = claims.c7_parity(X, [0, 1, 2])
    half = 2.919986 * 0.0057735 / 3**0.5  # 95 % t quantile of 2 degrees of freedom, sd of (0.01, 0, 0.01)
    assert (c.verdict, c.high - c.estimate) == ("supported", pytest.approx(half, abs=1e-6))
    rates(monkeypatch, full | {"budgetmix": lambda k, t: [0.4, 0.5, 0.44]})
    assert claims.c7_parity(X, [0, 1, 2]).verdict == "opposite"
    rates(monkeypatch, full | {"budgetmix": lambda k, t: [0.5, 0.7, 0.45]})
    assert claims.c7_parity(X, [0, 1, 2]).verdict == "inconclusive"


def test_an_environment_without_a_step_measure_has_no_stepwise_claims():
    from dataclasses import replace

    from lib.envs.bfcl import BFCLConfig

    x = replace(X, env="bfcl", env_config=BFCLConfig(), arms=("grpo", "budgetmix"))
    assert claims.claims_of(x) == ["C1", "C2", "C4a", "C4b", "C7", "C7-parity"]
    assert claims.claims_of(replace(x, analysed=())) == ["C1", "C2", "C7", "C7-parity"]
    assert "C6b" in claims.claims_of(replace(x, arms=("grpo", "gigpo", "ppo")))
    assert claims.claims_of(X) == [c for c in claims.CLAIMS if c != "C6b"]


def test_pass_curves_are_means_over_tasks_and_seeds(monkeypatch):
    per_task = {None: [0.0, 0.5], 0: [0.2, 0.6], 1: [0.4, 1.0]}

    def fake(x, policy, seed, ks, ts, split="test"):
        return np.array(per_task[seed])[:, None, None] * np.ones((1, 1, 1))

    monkeypatch.setattr(curves, "surface", fake)
    found = curves.pass_curves(X, ["base", "grpo"], [0, 1], [1], [5]).set_index(["policy", "seed"])["pass"]
    grpo = "GRPO, full budget"
    assert found[("Base", "mean")] == 0.25
    assert [found[(grpo, s)] for s in ("0", "1", "mean")] == pytest.approx([0.4, 0.7, 0.55])
    lead = curves.lead_table(X, [("grpo", "base")], [0, 1], [(1, 5)]).iloc[0]
    assert lead.lead == pytest.approx(0.3) and [lead["seed 0"], lead["seed 1"]] == pytest.approx([0.15, 0.45])


def test_tables_and_figures_land_whole_and_with_their_data(tmp_path, monkeypatch):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    monkeypatch.setattr("lib.tables.results_dir", lambda profile: tmp_path / profile)
    monkeypatch.setattr("lib.figures.results_dir", lambda profile: tmp_path / profile)
    df = pd.DataFrame([{"claim": "C1", "environment": "lake", "estimate": 0.12345, "low": 0.1, "high": 0.2,
                        "boundary": 0.0, "side": ">", "verdict": "supported"}])  # fmt: skip
    assert pd.read_csv(save_table(df, "t", "p")).estimate[0] == 0.12345
    assert "0.123 " in (tmp_path / "p/tables/t.md").read_text() and (tmp_path / "p/tables/t.tex").exists()
    with pytest.raises(ValueError, match="empty"):
        save_table(df[:0], "t", "p")
    bytes_of = []
    for _ in range(2):
        fig, ax = plt.subplots()
        claim_intervals(df, ax)
        save_figure(fig, "f", df, "p")
        plt.close(fig)
        bytes_of.append([(tmp_path / f"p/figures/f.{e}").read_bytes() for e in ("png", "pdf", "csv")])
    assert bytes_of[0] == bytes_of[1]
