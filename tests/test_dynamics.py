"""Training dynamics from written probes, by hand; and the analyses as steps of the cache."""

from dataclasses import replace

import numpy as np
import pytest
from test_stages import X as SMALL

from lib import stages
from lib.analyses import stages as analysis_stages
from lib.analyses.config import AnalysisConfig
from lib.analyses.dynamics import change, change_intervals, changes, probe_curve, probe_curves
from lib.store import append_jsonl


def write(folder, multi, single):
    folder.mkdir()
    for i, (m, s) in enumerate(zip(multi, single, strict=True)):
        row = {"update": 10 * i, "r_multi": m, "r_single": s, "episodes": 4, "tokens": 100 * i}
        append_jsonl(folder / "probe.jsonl", row)
    return folder


def test_changes_by_hand(tmp_path):
    runs = [("grpo", 0, write(tmp_path / "a", [0.2, 0.6, 0.5], [0.4, 0.3, 0.3])),
            ("grpo", 1, write(tmp_path / "b", [0.2, 0.1, 0.7], [0.4, 0.5, 0.5]))]  # fmt: skip
    curves = probe_curves(runs)
    assert curves.columns.tolist() == ["arm", "seed", "update", "r_multi", "r_single", "episodes", "tokens"]
    assert len(curves) == 6 and curves.tokens.tolist() == [0, 100, 200] * 2
    assert changes(curves).change.tolist() == pytest.approx([0.3, -0.1, 0.5, 0.1])
    assert change(curves, "grpo", 1, "r_multi") == pytest.approx(0.5)
    table = change_intervals(curves).set_index("measure")
    assert table.loc["r_multi", "estimate"] == pytest.approx(0.4) and table.loc["r_multi", "seeds"] == 2
    half = 12.7062 * 0.1  # t of 1 degree of freedom times |0.5 − 0.3| / 2
    assert table.loc["r_multi", "low"] == pytest.approx(0.4 - half, abs=1e-4)
    with pytest.raises(ValueError, match="at least 2 seeds"):
        change_intervals(curves[curves.seed == 0])
    with pytest.raises(ValueError, match="measure 'x'"):
        change(curves, "grpo", 0, "x")
    with pytest.raises(ValueError, match="no run of arm 'ppo'"):
        change(curves, "ppo", 0, "r_multi")


def test_runs_without_probes_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no probes"):
        probe_curve(tmp_path)
    with pytest.raises(ValueError, match="no probes"):
        probe_curve(write(tmp_path / "one", [0.2], [0.4]))
    with pytest.raises(ValueError, match="no training runs"):
        probe_curves([])
    unmeasured = probe_curve(write(tmp_path / "c", [0.2, 0.3], [None, None]))  # no step measure
    assert unmeasured.r_single.isna().all() and unmeasured.r_multi.tolist() == [0.2, 0.3]


X = replace(SMALL, arms=("grpo", "budgetmix_shown"))


def fail(*args):
    raise AssertionError("made a second time")


def test_analyses_are_made_once_and_found_again(tmp_path, monkeypatch):
    for module in (stages, analysis_stages):
        monkeypatch.setattr(module, "RUNS", tmp_path)
    stages.episodes.cache_clear()
    analysis = AnalysisConfig(group=3, continuations=1, likelihood_samples=2)
    calls = (analysis_stages.matched_states, analysis_stages.error_states, analysis_stages.likelihood)
    for arm in X.arms:  # one that is told its budget is compared with the base policy that is told it too
        first = [call(X, arm, 0, analysis) for call in calls]
        with monkeypatch.context() as m:
            m.setattr(analysis_stages, "_make", fail)
            again = [call(X, arm, 0, analysis) for call in calls]
        assert all(a.equals(b) and len(a) for a, b in zip(first, again, strict=True))
        assert len(first[0]) == 2 * 4 * analysis.states_per_task
        assert set(first[1].construction) <= {"visited", "forced"} and np.isfinite(first[2].llr).all()
        both = stages.episodes(X, "base_shown" if arm == "budgetmix_shown" else "base"), stages.episodes(X, arm, 0)
        turns = sum(len(e.turns) for es in both for e in es if e.sample < 2)
        assert len(first[2]) == turns
    assert analysis_stages.training_dynamics(X, [0], ["grpo"])["update"].tolist() == [0, 2]
    with pytest.raises(ValueError, match="arm 'ppo'"):
        analysis_stages.likelihood(X, "ppo", 0, analysis)
    stages.episodes.cache_clear()
