"""Training through vLLM: every update is sampled from the weights before it, and corrected for the difference."""

import json

import numpy as np
import pytest
import torch
from test_rollout import check_teacher_forcing
from trainer_parts import SMALL, Lengths, make, rows

from lib.policies.vllm_engine import weights
from lib.trainers.config import TrainConfig
from lib.trainers.trainer import train


@pytest.mark.parametrize(
    "change", [{}, {"algorithm": "ppo"}, {"lora_rank": 4}, {"iterations": 2}], ids=["grpo", "ppo", "lora", "twice"]
)
def test_a_run_samples_each_update_from_the_weights_before_it(vllm_policy, lake, tmp_path, change, monkeypatch):
    run = TrainConfig(**SMALL | {"updates": 4, "lr": 1e-2, "probe_every": 2, "probe_samples": 1} | change)
    pushed, push = [], vllm_policy.engine.push
    total = lambda model: sum(p.double().sum().item() for _, p in weights(model))  # noqa: E731
    monkeypatch.setattr(vllm_policy.engine, "push", lambda model: (pushed.append(total(model)), push(model)))
    train(vllm_policy, Lengths, lake.config, run, lake.tasks, lake.probe, tmp_path)
    found = [json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(found) == 4 and all(r["logp_gap"] < 1e-4 and r["grad_norm"] > 0 for r in found)
    # rollouts: probe at 0, update 1, 2, probe at 2, update 3, 4, probe at 4: weights change with each update
    assert len(pushed) == 7 and len(set(pushed)) == 5
    assert [json.loads(x)["update"] for x in (tmp_path / "probe.jsonl").read_text().splitlines()] == [0, 2, 4]


def test_the_update_is_the_one_of_the_models_own_probabilities(vllm_policy, lake, tmp_path):
    trainer = make(vllm_policy, lake, tmp_path)
    out = trainer._generate_and_score_completions(rows(trainer))
    check_teacher_forcing(trainer.model, trainer.episodes)
    action = (out["completion_mask"] * out["tool_mask"]).bool()
    ratio = out["importance_sampling_ratio"]
    assert ratio.shape == action.shape and 0 < (ratio[action] - 1).abs().max() < 1e-3
    own = trainer._get_per_token_logps_and_entropies(
        trainer.model, torch.cat([out["prompt_ids"], out["completion_ids"]], 1),
        torch.cat([out["prompt_mask"], out["completion_mask"]], 1), action.shape[1],
    )[0]  # fmt: skip
    np.testing.assert_allclose(out["old_per_token_logps"][action], own.detach()[action], atol=1e-6)
    assert torch.isfinite(trainer._compute_loss(trainer.model, out))
