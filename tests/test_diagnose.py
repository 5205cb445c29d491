"""Two checkpoints compared: a policy with itself shows no difference at all, and the words follow the intervals."""

import pytest

from lib import diagnose
from lib.analyses.config import AnalysisConfig
from lib.config import EvalConfig
from lib.diagnose import Finding
from lib.policies.config import PolicyConfig


@pytest.fixture
def same(base, lake, tmp_path, monkeypatch):
    monkeypatch.setattr(diagnose, "RUNS", tmp_path)
    folder = str(base.folder)
    return diagnose.Diagnosis(
        folder, folder, "frozenlake", lake.config, PolicyConfig(max_context=512),
        EvalConfig(tasks=6, samples=4, ks=(1, 2), budget_k=2), AnalysisConfig(group=4, likelihood_samples=2),
    )  # fmt: skip


def test_a_policy_is_no_better_than_itself(same):
    found = {f.aspect: f for f in diagnose.findings(same)}
    assert list(found)[:5] == ["first sample", "breadth", "tight budget", "depth", "step quality"]
    for f in found.values():
        assert f.estimate == f.low == f.high == 0 and f.gained == "not shown"
    parts = diagnose.tables(same)
    assert parts["likelihood"].llr.abs().max() < 1e-4  # teacher forcing gives back what was sampled
    assert (parts["matched"].outcome == "equal").all() and (parts["errors"].outcome == "equal").all()
    assert diagnose.in_words(same, list(found.values())).startswith("No gain of RL over base is shown")


def finding(aspect, estimate):
    gained = "yes" if estimate > 0 else "no, it lost" if estimate < 0 else "not shown"
    return Finding(aspect, "", estimate, estimate - 0.01, estimate + 0.01, gained)


@pytest.mark.parametrize(
    ("estimates", "said", "unsaid"),
    [
        ((0.2, 0.1, -0.1, 0.3, 0.0, 0.1), ["RL gained in: breadth, recovery.", "only with enough turns",
                                           "RL lost in: tight budget."], []),
        ((0.2, 0.0, 0.1, 0.1, 0.0, 0.0), ["none of the other aspects", "grows with the interaction budget"], ["only"]),
        ((0.2, 0.1, 0.1, 0.0, 0.1, 0.0), ["gained in: breadth, step quality.", "tight budget too"], ["grows"]),
        ((0.0, 0.0, 0.0, 0.0, 0.0, 0.0), ["No gain of RL"], ["grows", "gained in"]),
    ],
)  # fmt: skip
def test_the_words_follow_the_intervals(same, estimates, said, unsaid):
    names = ("first sample", "breadth", "tight budget", "depth", "step quality", "recovery")
    text = diagnose.in_words(same, [finding(n, e) for n, e in zip(names, estimates, strict=True)])
    assert all(s in text for s in said) and not any(s in text for s in unsaid)
    short = diagnose.in_words(same, [finding(n, e) for n, e in zip(names[:4], estimates, strict=False)])
    assert "Not measured, as frozenlake has no step measure: step quality, recovery." in short


def test_bad_arguments_are_refused_before_any_rollout(capsys, tmp_path):
    assert diagnose.main([str(tmp_path), str(tmp_path)]) == 1
    assert "no model in" in capsys.readouterr().err
    assert diagnose.main([str(tmp_path), str(tmp_path), "--env", "moonlake"]) == 1
    assert "unknown environment 'moonlake'; known: " in capsys.readouterr().err
