"""A run that was interrupted and resumed ends with the weights and the metrics of one that was not."""

import json

import pytest
import torch
from transformers import TrainerCallback

from lib.envs.frozenlake import FrozenLake
from lib.policies.hf import HFPolicy
from lib.trainers.budgets import BudgetMix
from lib.trainers.config import TrainConfig
from lib.trainers.trainer import AgentTrainer, train

RUN = TrainConfig(
    updates=5, tasks_per_update=2, group_size=4, iterations=2, warmup=1, save_every=2, probe_every=2, probe_samples=1,
    kl_episodes=2, budget=BudgetMix(0.5), seed=3,
)  # fmt: skip
METRICS = {
    "update", "updates", "reward", "turns", "budget", "no_spread", "action_tokens", "tokens", "end_solved",
    "end_failed", "end_budget", "end_invalid", "end_error", "kl", "entropy", "clip_share", "grad_norm", "loss", "lr",
    "logp_gap", "seconds_rollout", "seconds_update", "seconds_sampling",
}  # fmt: skip


class Crash(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 7:  # in the middle of update 4, after the checkpoint of update 2
            raise KeyboardInterrupt("power cut")


def lines(path):
    return [json.loads(x) for x in path.read_text().splitlines()]


def without_clock(rows):
    return [{k: v for k, v in r.items() if not k.startswith("seconds_")} for r in rows]


def test_resume_gives_what_an_uninterrupted_run_gives(base, lake, tmp_path):
    def load():
        return HFPolicy.load(base.folder, max_context=512)

    args = (FrozenLake, lake.config, RUN, lake.tasks, lake.probe)
    result = train(load(), *args, tmp_path / "whole")
    trainer = AgentTrainer(load(), *args, tmp_path / "cut")
    trainer.add_callback(Crash)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert [r["update"] for r in lines(tmp_path / "cut" / "metrics.jsonl")] == [1, 2, 3]
    assert not (tmp_path / "cut" / "model").exists()
    assert train(load(), *args, tmp_path / "cut") == result

    whole, cut = (HFPolicy.load(tmp_path / x / "model").model.state_dict() for x in ("whole", "cut"))
    start = load().model.state_dict()
    assert all(torch.equal(whole[k], cut[k]) for k in start)
    assert any(not torch.equal(whole[k], start[k]) for k in start)
    rows = lines(tmp_path / "whole" / "metrics.jsonl")
    assert without_clock(rows) == without_clock(lines(tmp_path / "cut" / "metrics.jsonl"))
    probes = lines(tmp_path / "whole" / "probe.jsonl")
    assert probes == lines(tmp_path / "cut" / "probe.jsonl")
    assert [p["update"] for p in probes] == [0, 2, 4]
    assert all(p["episodes"] == 2 and 0 <= p["r_multi"] <= 1 and 0 <= p["r_single"] <= 1 for p in probes)

    assert [r["update"] for r in rows] == [1, 2, 3, 4, 5] and all(r.keys() >= METRICS for r in rows)
    for r in rows:
        assert sum(v for k, v in r.items() if k.startswith("end_")) == pytest.approx(1)
        assert 0 < r["action_tokens"] < r["tokens"] and 0 <= r["turns"] <= r["budget"] <= 6
        assert r["entropy"] > 0 and 0 <= r["clip_share"] <= 1 and r["kl"] >= 0 and 0 <= r["no_spread"] <= 1
        assert r["seconds_sampling"] > 0 and r["seconds_update"] > 0
        assert r["logp_gap"] < 1e-5  # sampling and scoring agree
    assert rows[0]["kl"] < 1e-8  # before the first step it is the base policy
    assert result["updates"] == 5 and result["tokens"] == sum(r["tokens"] for r in rows)


def test_a_finished_run_is_not_trained_further(base, lake, tmp_path):
    run = TrainConfig(updates=1, tasks_per_update=1, group_size=2, save_every=1, warmup=0, kl_episodes=0)
    args = (FrozenLake, lake.config, run, lake.tasks, lake.probe, tmp_path)
    first = train(HFPolicy.load(base.folder), *args)
    weights = (tmp_path / "model" / "model.safetensors").read_bytes()
    assert train(HFPolicy.load(base.folder), *args) == first
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == weights
    assert len(lines(tmp_path / "metrics.jsonl")) == 1


def test_arms_of_a_seed_see_the_same_tasks_in_the_same_order(policy, lake, tmp_path):
    def order(**change):
        run = TrainConfig(**{"updates": 10, "tasks_per_update": 2, "group_size": 2, "kl_episodes": 0} | change)
        trainer = AgentTrainer(policy, FrozenLake, lake.config, run, lake.tasks, lake.probe, tmp_path)
        return trainer.train_dataset["task"][:]

    whole = order()
    assert len(whole) == 20 and sorted(whole[:8]) == sorted(whole[8:16]) == list(range(8)) and whole[:8] != whole[8:16]
    assert order(budget=BudgetMix(), lr=1e-4) == whole != order(seed=1)
