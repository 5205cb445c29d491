"""One trainer for all algorithms and budgets: TRL's GRPOTrainer with our rollouts, advantages, padding-free scoring.

Hooks of TRL 1.16 that are used, and a contract test fails clearly when one of them moves: `rollout_func` (our
multi-turn engine makes the episodes), `_generate_and_score_completions` (keeps the task rows, puts in our advantages
of shape (B, T) and the behaviour log-probabilities), `_get_per_token_logps_and_entropies` (scores without work on
padding), `_compute_loss` (adds the value loss of a critic) and a reward function that passes on the episodes' rewards.
The clipped loss, optimiser, schedule, KL term, checkpoints, resuming and PEFT are TRL's and transformers'. On several
processes (lib/trainers/ranks.py) `episodes` are those of this rank; advantages and metrics are of all.
"""

from __future__ import annotations

import copy
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PrinterCallback
from trl import GRPOTrainer

from lib.envs.base import Env, Task
from lib.episode import End
from lib.policies.hf import HFPolicy, score
from lib.policies.pretrained import autocast, merged
from lib.rollout import Job, rollout
from lib.store import read_jsonl
from lib.trainers import critic, ranks, record
from lib.trainers.advantages import ALGORITHMS, USES_ORACLE, USES_VALUES, token_advantages
from lib.trainers.config import TrainConfig
from lib.trainers.trl_config import check, grpo_config, lora_config


class AgentTrainer(GRPOTrainer):
    """TRL's trainer with multi-turn episodes. See the module's docstring for what is overridden."""

    def __init__(self, policy: HFPolicy, env_class: type[Env], env_config: Any, run: TrainConfig, tasks, probe, out):
        check(policy, env_class, run)
        self.policy, self.env_class, self.env_config, self.run_config = policy, env_class, env_config, run
        self.tasks, self.probe, self.out, self._wanted = tasks, probe, Path(out), None
        ranks.start(on_cpu=policy.model.device.type == "cpu")
        rows = [{"prompt": [{"role": "user", "content": tasks[i].id}], "task": int(i)} for i in self._order()]
        super().__init__(
            model=policy.model,
            reward_funcs=[_reward],
            args=grpo_config(policy, run, self.out / "checkpoints"),
            train_dataset=Dataset.from_list(rows),
            processing_class=policy.tokenizer,
            rollout_func=lambda prompts, trainer: trainer._rollouts(),
            peft_config=lora_config(run.lora_rank),
            callbacks=[record.Record(self)],
        )
        self.remove_callback(PrinterCallback)  # metrics go to metrics.jsonl
        ranks.check(self.args, self.accelerator, run.loss_type)
        self._per_update = self.args.steps_per_generation * self.num_iterations  # of TRL's steps, one a micro-batch
        self.policy = copy.copy(policy)
        self.policy.model = self.model
        if policy.external:  # TRL then corrects for the sampler's slightly other probabilities; `session` syncs weights
            self.use_vllm, self._last_loaded_step = True, -1
            self.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
        self.base = self.ref_model  # what the KL is measured to; with LoRA: the model without its adapter
        if run.kl_episodes and not run.lora_rank and self.base is None:
            self.base = copy.deepcopy(self.model).requires_grad_(False)
        self.critic = None
        if run.algorithm in USES_VALUES:
            self.critic = critic.attach(self.model, run.ppo.critic_width, run.seed)

    def _order(self) -> np.ndarray:
        """Indices of the training tasks in the order of the run: passes over all tasks, each shuffled by the seed."""
        need = self.run_config.updates * self.run_config.tasks_per_update
        rng = np.random.default_rng([self.run_config.seed, 1])
        passes = [rng.permutation(len(self.tasks)) for _ in range(-(-need // len(self.tasks)))]
        return np.concatenate(passes)[:need]

    def _generate_and_score_completions(self, inputs):
        self._rows = ranks.gather([r["task"] for r in inputs])
        start = time.perf_counter()
        out = super()._generate_and_score_completions(inputs)
        width = out["completion_ids"].shape[1]
        everyone, size = ranks.gather(self.episodes), self.num_generations
        starts = range(0, len(everyone), size)
        groups = [everyone[i : i + size] for i in starts]
        self.note = record.rollout_metrics(groups)
        values = ()
        if self.critic is not None:
            own = ranks.mine(range(len(everyone)))
            parts = [everyone[max(i, own.start) : min(i + size, own.stop)] for i in starts]  # of groups on two ranks
            given = [v for part in parts for v in critic.values(self.model, part)]
            ppo = self.run_config.ppo
            out |= critic.loss_inputs(self.episodes, given, ppo, width, self.accelerator.device)
            self.decisions = self.accelerator.reduce(out["value_mask"].sum()).clamp(min=1) / ranks.count()
            given = ranks.gather(given)
            values = ([given[i : i + size] for i in starts],)
            self.note["explained_variance"] = critic.explained(everyone, given, ppo)
        advantages = ALGORITHMS[self.run_config.algorithm](groups, self.run_config, *values)
        flat = ranks.mine([a for g in advantages for a in g])
        rows = [token_advantages(e, a) for e, a in zip(self.episodes, flat, strict=True)]
        out["advantages"] = _pad(rows, width, out["advantages"].device)
        if not self.policy.external:  # else TRL's: the model's own, from which the sampler's differ
            logps = [e.completion()[2] for e in self.episodes]
            out["old_per_token_logps"] = _pad(logps, width, out["advantages"].device)
        known = [e for e in everyone if e.end is not End.ERROR]
        self.note["kl"] = record.kl_to_base(self, known[: self.run_config.kl_episodes])
        self.seconds["rollout"] += time.perf_counter() - start
        return out

    def _rollouts(self) -> dict[str, list]:
        """TRL's `rollout_func`: play the tasks of this update and hand over tokens, masks and rewards."""
        run, update = self.run_config, self.state.global_step // self.num_iterations
        group, t_max = self.num_generations, self.env_config.max_turns
        budgets = run.budget.budgets(run.seed, update, len(self._rows) // group, t_max)
        base_seed = run.seed * 1_000_003 + update
        todo = [Job(self.tasks[t], i % group, int(budgets[i // group]), base_seed) for i, t in enumerate(self._rows)]
        todo = ranks.mine(todo)
        self.policy.model.eval()  # no dropout in sampling; TRL's own generation does the same
        start = time.perf_counter()
        oracle = run.algorithm in USES_ORACLE
        with merged(self.model):
            self.episodes = rollout(self.policy, self.env_class, self.env_config, todo, quality=oracle)
        self.seconds["sampling"] += time.perf_counter() - start
        self.policy.model.train()
        stop = self.policy.chat.stop_ids[0]
        out: dict[str, list] = {k: [] for k in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward")}
        for e in self.episodes:
            ids, mask, logps, _ = e.completion()
            if e.end is End.ERROR:  # counted, never trained on
                mask = [0] * len(mask)
            out["prompt_ids"].append(e.prompt_ids() or [stop])
            out["completion_ids"].append(ids or [stop])
            out["env_mask"].append(mask or [0])
            out["logprobs"].append(logps or [0.0])
            out["reward"].append(None if e.end is End.ERROR else e.reward)
        return out

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **unsupported
    ):
        """Same contract as TRL's: (B, logits_to_keep) log-probabilities, entropies, no auxiliary loss."""
        for name, value in unsupported.items():
            if value is not None and value is not False:
                raise NotImplementedError(f"{name} is not supported: text-only models without auxiliary loss")
        real = attention_mask.bool()
        start = input_ids.shape[1] - logits_to_keep
        rows = [ids[m] for ids, m in zip(input_ids, real, strict=True)]
        prompt = real[:, :start].sum(1)
        wanted = real[:, start:] if self._wanted is None else self._wanted
        masks = [torch.cat([m.new_zeros(p), m[: len(r) - p]]) for r, m, p in zip(rows, wanted, prompt, strict=True)]
        plain = self.accelerator.unwrap_model(model)
        head = getattr(plain, critic.NAME, None)
        with autocast(plain):
            found = ranks.through(model, plain, lambda: score(plain, rows, masks, self.temperature, head))
        logps, entropies, *values = found
        place = torch.zeros(wanted.shape, device=input_ids.device)
        logps = place.masked_scatter(wanted, torch.cat(logps))
        self._values = place.masked_scatter(wanted, torch.cat(values[0])) if values else None
        self._scored = logps.detach()
        return logps, place.masked_scatter(wanted, torch.cat(entropies)) if compute_entropy else None, None

    def _compute_loss(self, model, inputs):
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        self._wanted = mask.bool()  # the head is applied to sampled tokens only
        loss = super()._compute_loss(model, inputs)
        self._wanted = None
        if self.critic is not None:
            names, ppo = ("old_values", "value_targets", "value_mask"), self.run_config.ppo
            value_loss = critic.value_loss(self._values, *(inputs[k] for k in names), ppo.value_clip, self.decisions)
            loss = loss + ppo.value_coef * value_loss
            mean = self.accelerator.gather(value_loss.detach()).mean().item()
            self._metrics["train"]["value_loss"].append(mean * self.args.steps_per_generation)  # each a part of the sum
        sampled = inputs["sampling_per_token_logps" if self.policy.external else "old_per_token_logps"]
        gap = ((self._scored - sampled).abs() * mask).max()
        gap = self.accelerator.gather(gap).max().item()
        if self._step % self._per_update < self.args.steps_per_generation:  # same weights as the rollout
            self._metrics["train"]["logp_gap"].append(gap)
        return loss

    def training_step(self, model, inputs, num_items_in_batch):
        if self._step % self._per_update == 0:  # a new update; its micro-batches and iterations add up
            self.seconds = dict.fromkeys(("rollout", "sampling", "update"), 0.0)
        start, rollout_before = time.perf_counter(), self.seconds["rollout"]
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.seconds["update"] += time.perf_counter() - start - (self.seconds["rollout"] - rollout_before)
        return loss

    def save_policy(self, folder: Path) -> None:
        """The present policy as a plain model folder (LoRA: the adapter), without a critic, saved by rank 0."""
        if ranks.index():
            return
        self.model.save_pretrained(folder, state_dict=critic.policy_weights(self.model))
        self.policy.tokenizer.save_pretrained(folder)

    def run_probe(self) -> None:
        record.probe(self)

    def create_optimizer(self, model=None):
        optimizer = super().create_optimizer(model)
        if self.critic is not None:
            own = {id(p) for p in self.critic.parameters()}
            for group in optimizer.param_groups:
                group["params"] = [p for p in group["params"] if id(p) not in own]
            lr = self.run_config.ppo.critic_lr
            optimizer.add_param_group({"params": list(self.critic.parameters()), "lr": lr, "weight_decay": 0.0})
        return optimizer

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, critic.policy_weights(self.model))
        if self.critic is not None:
            critic.save(self.model, output_dir)

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self.critic is not None:
            critic.load(self.model, resume_from_checkpoint)


def _reward(prompts, completions, reward, **_) -> list[float | None]:
    """TRL's reward function: the episodes' rewards as they are; None (unscorable) for infrastructure errors."""
    return reward


def _pad(rows: list[list[float]], width: int, device) -> torch.Tensor:
    return torch.tensor([r + [0.0] * (width - len(r)) for r in rows], dtype=torch.float32, device=device)


def train(
    policy: HFPolicy, env_class: type[Env], env_config: Any, run: TrainConfig, tasks: tuple[Task, ...],
    probe: tuple[Task, ...], out: Path,
) -> dict[str, Any]:  # fmt: skip
    """Train `policy` on `tasks` and save the last weights (or the LoRA adapter) in `out/model`.

    Resumes from `out/checkpoints` with the result of an uninterrupted run. Returns numbers for the manifest. On several
    processes call it on each; `out` is a folder that all of them see, and is complete when it returns.
    """
    trainer = AgentTrainer(policy, env_class, env_config, run, tasks, probe, out)
    last = max(trainer.out.glob("checkpoints/checkpoint-*"), key=lambda p: int(p.name.split("-")[1]), default=None)
    (last, *_) = ranks.gather([last])  # of rank 0
    trainer.train(resume_from_checkpoint=str(last) if last else None)
    trainer.save_policy(trainer.out / "model")
    rows = ranks.gather(read_jsonl(trainer.out / "metrics.jsonl") if ranks.index() == 0 else [])
    tokens = int(sum(r["tokens"] for r in rows))
    return {"updates": len(rows), "tokens": tokens, "reward": rows[-1]["reward"], "processes": ranks.count()}
