"""PPO: GAE against hand computation, the critic, and how the trainer carries it. And the optional KL term."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from trainer_parts import Lengths
from transformers import AutoModelForCausalLM, TrainerCallback

from lib.envs.frozenlake import FrozenLake
from lib.episode import End, Episode, Turn
from lib.policies.hf import HFPolicy, length_chunks, score
from lib.rollout import jobs, rollout
from lib.store import read_jsonl
from lib.trainers import critic
from lib.trainers.advantages import gae, gae_episode, ppo, token_advantages
from lib.trainers.config import PPOConfig, TrainConfig
from lib.trainers.trainer import AgentTrainer, train

SMALL = {"tasks_per_update": 4, "group_size": 2, "lr": 1e-3, "kl_episodes": 0}


def two_turns(between: int, end=End.FAILED) -> Episode:
    """Two sampled tokens (reward 0.5), `between` tokens of the environment, one sampled token (reward 1)."""
    turns = [Turn([1, 1], [2, 3], [0.0, 0.0], "", 0.5, False), Turn([1] * between, [2], [0.0], "", 1.0, False)]
    return Episode("lake", "t", 0, 0, 2, turns, end, float("nan") if end is End.ERROR else 1.5)


VALUES = np.array([0.1, 0.3, 0.2])  # of the three sampled tokens


def test_gae_by_hand():
    # delta: 0.9*0.5-0.2 = 0.25, 0.9*0.4-0.5 = -0.14, 1-0.4 = 0.6; A: 0.6, -0.14+0.72*0.6, 0.25+0.72*0.292
    found = gae(np.array([0, 0, 1.0]), np.array([0.2, 0.5, 0.4]), 0.9, 0.8)
    np.testing.assert_allclose(found, [0.46024, 0.292, 0.6], atol=1e-12)


@pytest.mark.parametrize("between", [1, 40])
def test_tokens_of_the_environment_do_not_enter_the_recursion(between):
    e = two_turns(between)
    token = PPOConfig("token", gamma=0.9, lam=0.5)
    # rewards 0, 0.5, 1; delta: 0.9*0.3-0.1 = 0.17, 0.5+0.9*0.2-0.3 = 0.38, 0.8; A: 0.8, 0.38+0.45*0.8, 0.17+0.45*0.74
    np.testing.assert_allclose(gae_episode(e, VALUES, token), [0.503, 0.74, 0.8], atol=1e-12)
    turn = PPOConfig("turn", gamma=0.9, lam=0.5)
    # rewards 0.5, 1; values 0.1, 0.2; delta: 0.5+0.9*0.2-0.1 = 0.58, 0.8
    np.testing.assert_allclose(gae_episode(e, VALUES, turn), [0.94, 0.8], atol=1e-12)
    spread = token_advantages(e, np.array([0.94, 0.8]))
    assert spread == [0.94, 0.94] + [0] * between + [0.8]
    assert token_advantages(e, np.array([1.0, 2.0, 3.0])) == [1, 2] + [0] * between + [3]
    with pytest.raises(ValueError, match="4 advantages"):
        token_advantages(e, np.zeros(4))

    both = [e, two_turns(2, End.ERROR)]
    inputs = critic.loss_inputs(both, [VALUES] * 2, turn, 3 + between, "cpu")
    assert inputs["value_mask"].tolist() == [[1, 0] + [0] * between + [1], [0] * (3 + between)]
    np.testing.assert_allclose(inputs["value_targets"][0, [0, -1]], [0.1 + 0.94, 0.2 + 0.8], rtol=1e-6)
    np.testing.assert_allclose(inputs["old_values"][0, [0, -1]], [0.1, 0.2], rtol=1e-6)
    # returns 0.5+0.9*1 = 1.4 and 1; errors 1.3 and 0.8, variance 0.0625 of 0.04
    assert critic.explained(both, [VALUES] * 2, turn) == pytest.approx(1 - 0.0625 / 0.04)
    inputs = critic.loss_inputs([e], [VALUES], token, 3 + between, "cpu")
    assert inputs["value_mask"].tolist() == [[1, 1] + [0] * between + [1]]
    np.testing.assert_allclose(inputs["value_targets"][0, [0, 1, -1]], [0.603, 1.04, 1.0], rtol=1e-6)


def test_whitened_over_the_batch_without_errors():
    errored = two_turns(1, End.ERROR)
    found = ppo([[two_turns(1), errored], [two_turns(3)]], TrainConfig("ppo"), [[VALUES, VALUES], [VALUES * 2]])
    used = np.concatenate([found[0][0], found[1][0]])
    assert used.mean() == pytest.approx(0, abs=1e-9) and used.std() == pytest.approx(1, abs=1e-3)
    assert found[0][1].tolist() == [0, 0]


def test_value_loss_and_explained_variance_by_hand():
    one = torch.ones(1, 1)
    for target, want in ((1.0, 0.5 * 0.3**2), (0.5, 0.5 * 0.4**2)):  # 0.9 is held at 0.7; the larger error counts
        assert critic.value_loss(0.9 * one, 0.5 * one, target * one, one, 0.2).item() == pytest.approx(want)
        free = critic.value_loss(0.9 * one, 0.5 * one, target * one, one, 0.0).item()
        assert free == pytest.approx(0.5 * (0.9 - target) ** 2)
    masked = critic.value_loss(torch.tensor([[1.0, 9]]), torch.zeros(1, 2), torch.zeros(1, 2), torch.eye(2)[:1], 0)
    assert masked.item() == 0.5
    assert critic.explained_variance([1, 2, 3], [1, 2, 3]) == 1
    assert critic.explained_variance([5, 5, 5], [1, 2, 3]) == 0
    assert critic.explained_variance([0, 0, 4], [1, 1, 4]) == pytest.approx(1 - (2 / 9) / 2)
    assert np.isnan(critic.explained_variance([1, 2], [3, 3]))


def test_explained_variance_rises_on_a_fixed_batch(policy, lake):
    found = rollout(policy, FrozenLake, lake.config, jobs(lake.tasks, 6, 6))
    head, config = critic.attach(policy.model, 64, 0), PPOConfig("token", lam=1.0)
    first = critic.values(policy.model, found)
    assert all((v == 0).all() for v in first) and [len(v) for v in first] == [sum(e.completion()[1]) for e in found]
    width = max(len(e.completion()[0]) for e in found)
    inputs, before = critic.loss_inputs(found, first, config, width, "cpu"), critic.explained(found, first, config)
    wanted = inputs["value_mask"].bool()
    rows = [torch.tensor(e.prompt_ids() + e.completion()[0]) for e in found]
    masks = [torch.tensor([0] * len(e.prompt_ids()) + e.completion()[1]) for e in found]
    states = []  # hidden states in the order of the batch: the trunk does not change, so one pass serves all steps
    score(policy.model, rows, masks, value_head=lambda hidden: states.append(hidden) or hidden[:, 0])
    order = [i for chunk in length_chunks([len(r) for r in rows]) for i in chunk]
    parts = torch.cat(states).split([int(masks[i].sum()) for i in order])
    hidden = torch.cat([parts[order.index(i)] for i in range(len(rows))])
    assert hidden.requires_grad
    optimizer = torch.optim.Adam(head.parameters(), 1e-2)
    for _ in range(400):
        values = torch.zeros(wanted.shape).masked_scatter(wanted, head(hidden))
        loss = critic.value_loss(values, *(inputs[k] for k in ("old_values", "value_targets", "value_mask")), 0.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all(p.grad is None for n, p in policy.model.named_parameters() if not n.startswith("critic."))
    after = critic.explained(found, critic.values(policy.model, found), config)
    assert before == 0 and after > 0.3


class Watch(TrainerCallback):
    """Looks at the gradients after clipping, and stops the run with an exception after an update if asked to."""

    def __init__(self, trainer, stop_after=0):
        self.trainer, self.stop_after, self.norms = trainer, stop_after, []

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        grads = [p.grad for p in self.trainer.model.parameters() if p.grad is not None]
        own = [p.grad for p in self.trainer.critic.parameters()]
        self.norms.append([torch.cat([g.flatten() for g in x]).norm().item() for x in (grads, own)])

    def on_step_begin(self, args, state, control, **kwargs):
        if self.stop_after and state.global_step == self.stop_after:
            raise KeyboardInterrupt


def test_critic_is_clipped_and_updated_with_the_model(policy, lake, tmp_path):
    run = TrainConfig("ppo", updates=2, warmup=0, max_grad_norm=1e-2, iterations=2, **SMALL)
    trainer = AgentTrainer(policy, Lengths, lake.config, run, lake.tasks, lake.probe, tmp_path)
    watch, before = Watch(trainer), {k: v.clone() for k, v in trainer.critic.state_dict().items()}
    trainer.add_callback(watch)
    trainer.train()
    assert len(watch.norms) == 4 and all(own > 0 for _, own in watch.norms)
    assert all(norm == pytest.approx(1e-2, rel=1e-3) for norm, _ in watch.norms)  # of all parameters together
    assert not before["last.weight"].equal(trainer.critic.last.weight)
    groups = trainer.optimizer.param_groups
    assert [g["initial_lr"] for g in groups] == [run.lr, run.lr, run.ppo.critic_lr]
    assert sum(len(g["params"]) for g in groups) == len(list(trainer.model.parameters()))
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    assert len(rows) == 2 and all(r["value_loss"] > 0 and "explained_variance" in r for r in rows)
    # with several iterations the line of an update holds all of them
    assert all(r["seconds_rollout"] > 0 and r["seconds_update"] > 0 and r["logp_gap"] < 1e-4 for r in rows)


@pytest.mark.parametrize("level, lora", [("turn", 0), ("token", 2)])
def test_resumed_run_equals_an_uninterrupted_one(level, lora, base, lake, tmp_path):
    run = TrainConfig("ppo", updates=3, save_every=1, probe_every=3, probe_samples=1, lora_rank=lora,
                      ppo=PPOConfig(level), **SMALL)  # fmt: skip
    for name in ("whole", "broken"):
        args = (Lengths, lake.config, run, lake.tasks, lake.probe, tmp_path / name)
        if name == "broken":
            trainer = AgentTrainer(HFPolicy.load(base.folder, max_context=512), *args)
            trainer.add_callback(Watch(trainer, stop_after=2))
            with pytest.raises(KeyboardInterrupt):
                trainer.train()
        numbers = train(HFPolicy.load(base.folder, max_context=512), *args)
    weights = "adapter_model.safetensors" if lora else "model.safetensors"
    for file in (
        f"model/{weights}",
        f"checkpoints/checkpoint-3/{weights}",
        "checkpoints/checkpoint-3/critic.safetensors",
    ):
        one, two = (load_file(tmp_path / name / file) for name in ("whole", "broken"))
        assert one.keys() == two.keys() and all(torch.allclose(one[k], two[k], atol=1e-7) for k in one), file
        assert ("critic" in file) or not any("critic" in k for k in one)
    assert load_file(tmp_path / "whole/checkpoints/checkpoint-3/critic.safetensors")["last.weight"].abs().max() > 0
    lines = [
        [{k: v for k, v in r.items() if "seconds" not in k} for r in read_jsonl(tmp_path / name / "metrics.jsonl")]
        for name in ("whole", "broken")
    ]
    assert json.dumps(lines[0]) == json.dumps(lines[1]) and len(lines[0]) == 3
    probes = read_jsonl(tmp_path / "whole" / "probe.jsonl")
    assert [p["tokens"] for p in probes] == [0, numbers["tokens"]]
    snapshot = HFPolicy.load(tmp_path / "whole" / "snapshots" / "update-0003", max_context=512)
    assert len(rollout(snapshot, FrozenLake, lake.config, jobs(lake.probe, 1, 2))) == 2
    if not lora:
        _, info = AutoModelForCausalLM.from_pretrained(tmp_path / "whole" / "model", output_loading_info=True)
        assert not info["unexpected_keys"] and not info["missing_keys"]


@pytest.mark.parametrize("lora", [0, 2])
def test_kl_term_is_to_the_base_policy(lora, policy, base, lake, tmp_path):
    """The reference log-probabilities of the second update are the base folder's, by a plain forward pass."""
    seen = []

    class Spy(AgentTrainer):
        def _compute_loss(self, model, inputs):
            seen.append(inputs)
            return super()._compute_loss(model, inputs)

    run = TrainConfig("grpo", updates=2, warmup=0, beta=0.05, lora_rank=lora, **SMALL)
    trainer = Spy(policy, Lengths, lake.config, run, lake.tasks, lake.probe, tmp_path)
    trainer.train()
    plain = AutoModelForCausalLM.from_pretrained(base.folder)
    for step, inputs in enumerate(seen):
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        for i in range(len(mask)):
            prompt = inputs["prompt_ids"][i][inputs["prompt_mask"][i].bool()]
            ids = torch.cat([prompt, inputs["completion_ids"][i][inputs["completion_mask"][i].bool()]])
            with torch.no_grad():
                logp = plain(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[len(prompt) - 1 :, 0]
            used = mask[i][: len(logp)].bool()
            torch.testing.assert_close(
                inputs["ref_per_token_logps"][i][: len(logp)][used], logp[used], atol=1e-5, rtol=0
            )
        gap = ((inputs["ref_per_token_logps"] - inputs["old_per_token_logps"]) * mask).abs().max()
        assert (gap < 1e-5) if step == 0 else (gap > 1e-4)  # equal at the start, apart after an update
    kl = [h["kl"] for h in trainer.state.log_history if "kl" in h]
    assert kl[0] < 1e-8 < kl[1]
    with pytest.raises(ValueError, match="beta"):
        TrainConfig(beta=-1)


@pytest.mark.parametrize(
    "bad", [{"level": "step"}, {"lam": 2.0}, {"gamma": -0.1}, {"critic_lr": 0}, {"value_clip": -1}]
)
def test_bad_values_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        PPOConfig(**bad)
