"""The plan of a profile: counts by hand, and refusals before anything starts."""

from dataclasses import replace

import pytest
import torch

from lib import gpu_check, reproduce
from lib.config import EvalConfig
from lib.plan import check_device, need, plan_table
from lib.profiles import experiment, experiments
from lib.trainers.config import TrainConfig


def test_counts_by_hand():
    x = replace(
        experiment("qwen3-4b"), arms=("grpo", "budgetmix"), probe_tasks=5,
        train=TrainConfig(updates=10, tasks_per_update=3, group_size=4, probe_every=5, probe_samples=2, lora_rank=8),
        evaluation=EvalConfig(tasks=7, samples=8, train_tasks=2, train_samples=3),
    )  # fmt: skip
    found = need(x, seeds=3)
    probes, evaluation = 5 * 2 * 3, 7 * 8 + 2 * 3  # at updates 0, 5, 10
    assert found.runs == 6
    assert found.episodes == 6 * (10 * 12 + probes + evaluation) + evaluation  # and the base policy's
    longest = min(x.policy.max_context, 20 * (256 + 128) + 512)
    assert found.tokens == found.episodes * longest
    flops = 2 * 4.02e9 * found.tokens / 0.05 + 4 * 4.02e9 * 6 * 120 * longest / 0.35
    assert found.gpu_hours == pytest.approx(flops / 989e12 / 3600)
    keys_and_values, activations = 3 * 36 * 2 * 8 * 128 * 2, x.train.micro_batch or 12
    activations *= 36 * 2560 * 2
    assert found.memory_gb == pytest.approx((4.02e9 * 2 + longest * max(keys_and_values, activations)) / 1e9)
    table = plan_table([x, x], 3)
    assert table.runs.tolist() == [6, 6, 12] and table.memory_gb[2] == table.memory_gb[0]


def test_the_tiny_profile_needs_little():
    assert need(experiment("tiny"), 3).memory_gb < 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
def test_no_gpu_is_said_before_work_starts(capsys, monkeypatch):
    monkeypatch.setattr(reproduce, "run_all", lambda *a: pytest.fail("work started"))
    with pytest.raises(ValueError, match="needs a CUDA GPU"):
        check_device(experiments("qwen3-8b"), 3)
    assert reproduce.main(["--profile", "qwen3-8b"]) == 1
    assert "needs a CUDA GPU" in capsys.readouterr().err
    assert reproduce.main(["--profile", "qwen3-8b", "--dry-run"]) == 0
    assert "gpu_hours" in capsys.readouterr().err
    assert gpu_check.main([]) == 0 and "no CUDA GPU is visible" in capsys.readouterr().out


def test_a_model_for_a_profile_that_trains_its_own_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(reproduce, "run_all", lambda *a: pytest.fail("work started"))
    monkeypatch.setenv("MODEL", "somewhere/else")
    assert reproduce.main(["--profile", "tiny"]) == 1
    assert "profile tiny trains its own" in capsys.readouterr().err


def test_gpu_check_runs_where_there_is_none_on_a_small_shape():
    table = gpu_check.measure("small", "cpu", updates=2, tasks=2).set_index("quantity").value
    assert table["rollout: sampled tokens"] > 0 and table["update"] > 0
    assert table["gap of log-probabilities, rollout to trainer"] < 1e-4
