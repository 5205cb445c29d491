"""The trainer on real TRL: its hooks, the tokens and advantages that it trains on, errors, LoRA."""

import inspect
import json
import math

import numpy as np
import pytest
import torch
import trl
from trainer_parts import SMALL, Flaky, Lengths, make, rows, rows_with_tasks
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from lib.envs.frozenlake import FrozenLake
from lib.episode import End
from lib.policies.hf import HFPolicy
from lib.policies.session import Session
from lib.trainers.budgets import BudgetMix
from lib.trainers.config import TrainConfig
from lib.trainers.trainer import train

HOOKS = {
    "_generate_and_score_completions": ["self", "inputs"],
    "_compute_loss": ["self", "model", "inputs"],
    "_get_per_token_logps_and_entropies": [
        "self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy",
        "compute_aux_loss",
    ],
}  # fmt: skip
OUTPUT = {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask", "advantages",
          "num_items_in_batch"}  # fmt: skip


def check_hooks(cls):
    where = f"TRL {trl.__version__}: {cls.__name__}"
    then = "adapt lib/trainers/trainer.py and this test, or pin trl==1.16.*"
    assert "rollout_func" in inspect.signature(cls.__init__).parameters, f"{where} takes no rollout_func: {then}"
    for name, names in HOOKS.items():
        assert hasattr(cls, name), f"{where} has no {name}: {then}"
        found = list(inspect.signature(getattr(cls, name)).parameters)
        exact = found == names or (len(names) > 3 and found[: len(names)] == names)
        assert exact, f"{where}.{name} takes {found}, not {names}: {then}"


def test_the_hooks_of_trl_are_where_the_trainer_expects_them(policy, lake, tmp_path):
    check_hooks(GRPOTrainer)

    class Moved(GRPOTrainer):
        def _compute_loss(self, model, batch):
            pass

    with pytest.raises(AssertionError, match=r"TRL .*Moved._compute_loss takes \['self', 'model', 'batch'\].*adapt"):
        check_hooks(Moved)
    trainer = make(policy, lake, tmp_path)
    seen = []
    inner = trainer.rollout_func
    trainer.rollout_func = lambda prompts, t: seen.append((len(prompts), t is trainer)) or inner(prompts, t)
    out = GRPOTrainer._generate_and_score_completions(trainer, rows_of := rows_with_tasks(trainer))
    assert seen == [(8, True)], "TRL no longer calls rollout_func(prompts, trainer) once a batch"
    assert OUTPUT <= out.keys(), f"TRL {trl.__version__} no longer returns {OUTPUT - out.keys()}"
    assert out["advantages"].shape == (8,) and out["tool_mask"].shape == out["completion_ids"].shape
    ours = trainer._generate_and_score_completions(rows_of)
    assert ours["advantages"].shape == ours["completion_ids"].shape  # (B, T), which the loss takes:
    assert torch.isfinite(trainer._compute_loss(trainer.model, ours))


def test_what_was_sampled_is_what_is_trained_on(policy, lake, tmp_path):
    trainer = make(policy, lake, tmp_path, Flaky, budget=BudgetMix(0.5), tasks_per_update=4)
    out = trainer._generate_and_score_completions(rows(trainer))
    budgets = BudgetMix(0.5).budgets(0, 0, 4, 6)
    assert len(trainer.episodes) == 16 and len(set(budgets)) == 2
    for i, e in enumerate(trainer.episodes):
        assert (e.task, e.sample) == (lake.tasks[trainer.train_dataset[i // 4]["task"]].id, i % 4)
        assert e.budget == budgets[i // 4]  # one budget a group
        ids, mask, logps, _ = e.completion()
        real = out["completion_mask"][i].bool()
        if e.turns:
            assert out["prompt_ids"][i][out["prompt_mask"][i].bool()].tolist() == e.prompt_ids()
            assert out["completion_ids"][i][real].tolist() == ids
            np.testing.assert_allclose(out["old_per_token_logps"][i][real], logps, atol=1e-6)
        trained = mask if e.end is not End.ERROR else [0] * max(1, len(mask))
        assert out["tool_mask"][i][real].tolist() == trained
    mask = out["completion_mask"] * out["tool_mask"]
    assert out["num_items_in_batch"] == mask.sum()
    assert mask.sum() == sum(len(t.action) for e in trainer.episodes if e.end is not End.ERROR for t in e.turns)


def test_group_advantages_are_trls_and_errors_take_no_part(policy, lake, tmp_path):
    trainer = make(policy, lake, tmp_path, Flaky, tasks_per_update=4, group_size=6)
    trl_own = GRPOTrainer._generate_and_score_completions(trainer, rows_with_tasks(trainer))["advantages"]
    out = trainer._generate_and_score_completions(rows(trainer))
    ends = [e.end is End.ERROR for e in trainer.episodes]
    assert 3 < sum(ends) < 20 and any(e.turns for e in trainer.episodes if e.end is End.ERROR)
    for g in range(0, 24, 6):
        group = trainer.episodes[g : g + 6]
        known = np.array([e.reward for e in group if e.end is not End.ERROR])
        assert len(known) > 1 and not np.isnan(known).any()
        for i, e in enumerate(group, g):
            expected = 0.0 if e.end is End.ERROR else (e.reward - known.mean()) / (known.std(ddof=1) + 1e-4)
            assert trl_own[i].item() == pytest.approx(expected, abs=1e-4)
            sampled = (out["completion_mask"][i] * out["tool_mask"][i]).bool()
            assert sampled.any() != (e.end is End.ERROR)
            np.testing.assert_allclose(out["advantages"][i], np.where(sampled, expected, 0), atol=1e-4)


def test_when_every_episode_errs_nothing_is_learned_and_it_is_counted(policy, lake, tmp_path):
    class Broken(FrozenLake):
        def reset(self, task, seed, budget=None):
            raise OSError("no disk")

    before = {k: v.clone() for k, v in policy.model.state_dict().items()}
    train(policy, Broken, lake.config, TrainConfig(**SMALL | {"updates": 1}), lake.tasks, lake.probe, tmp_path)
    (row,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert row["end_error"] == 1 and row["no_spread"] == 1 and row["loss"] == 0 and row["kl"] is None
    assert row["reward"] is None or math.isnan(row["reward"])  # never 0
    after = HFPolicy.load(tmp_path / "model").model.state_dict()
    assert all(torch.equal(v, after[k]) for k, v in before.items())


class External(HFPolicy):
    """Says log-probabilities that differ from the model's by `shift`, as another implementation's would."""

    external, shift = True, 0.0

    def session(self):
        session, act = super().session(), Session.act
        session.act = lambda *a: [(t, [x - self.shift for x in logps]) for t, logps in act(session, *a)]
        return session


@pytest.mark.parametrize(("shift", "ratio"), [(0.0, 1.0), (0.5, math.exp(0.5)), (-0.5, math.exp(-0.5)), (2.0, 3.0)])
def test_another_samplers_probabilities_are_corrected_token_by_token(base, lake, tmp_path, shift, ratio):
    policy = External.load(base.folder, max_context=512)
    policy.shift = shift
    trainer = make(policy, lake, tmp_path, kl_episodes=0)
    out = trainer._generate_and_score_completions(rows(trainer))
    action = (out["completion_mask"] * out["tool_mask"]).bool()
    correction = out["importance_sampling_ratio"][action]
    np.testing.assert_allclose(correction, ratio, rtol=1e-4)  # truncated at 3, and no episode is dropped
    own = torch.tensor([x for e in trainer.episodes for t in e.turns for x in t.logprobs]) + shift
    np.testing.assert_allclose(out["old_per_token_logps"][action], own, atol=1e-5)  # the clip is about the model's own
    loss = trainer._compute_loss(trainer.model, out).item()
    uncorrected = trainer._compute_loss(trainer.model, out | {"importance_sampling_ratio": 1.0}).item()
    assert uncorrected != 0 and loss == pytest.approx(ratio * uncorrected, rel=1e-3)
    assert trainer._metrics["train"]["logp_gap"][0] == pytest.approx(abs(shift), abs=1e-5)


def test_lora_trains_adapters_only(policy, base, lake, tmp_path):
    run = TrainConfig(**SMALL | {"lora_rank": 4, "lr": 1e-2})
    trainer = make(policy, lake, tmp_path / "inspected", lora_rank=4)
    names = [n for n, p in trainer.model.named_parameters() if p.requires_grad]
    assert names and all("lora_" in n for n in names)
    shapes = {tuple(p.shape) for n, p in trainer.model.named_parameters() if p.requires_grad}
    assert all(4 in s for s in shapes)
    train(HFPolicy.load(base.folder), Lengths, lake.config, run, lake.tasks, lake.probe, tmp_path / "run")
    saved = {p.name for p in (tmp_path / "run" / "model").iterdir()}
    assert "adapter_model.safetensors" in saved and "model.safetensors" not in saved
    original = HFPolicy.load(base.folder).model.state_dict()
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").state_dict()
    plain = {k.replace(".base_layer", ""): v for k, v in found.items() if "lora_" not in k}
    assert plain.keys() == original.keys()
    assert all(torch.equal(v, plain[k]) for k, v in original.items())
    assert all(v.abs().max() > 0 for k, v in found.items() if "lora_B" in k)  # they start at 0
    (last,) = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()][-1:]
    assert last["kl"] > 0 and last["logp_gap"] < 1e-5
