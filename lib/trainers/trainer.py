"""One trainer for all algorithms and budgets: TRL's GRPOTrainer with our rollouts, advantages and padding-free scoring.

Four hooks of TRL 1.16 are used, and a contract test fails clearly when one of them moves:
`rollout_func` (our multi-turn engine makes the episodes), `_generate_and_score_completions` (keeps the task rows, puts in
our advantages of shape (B, T) and the behaviour log-probabilities), `_get_per_token_logps_and_entropies` (scores without
work on padding) and a reward function that passes on the episodes' rewards. The clipped loss, the optimiser, the
schedule, checkpoints, resuming and PEFT are TRL's and transformers'.
"""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from lib.envs.base import Env, Task
from lib.episode import End, Episode
from lib.policies.hf import HFPolicy, score
from lib.rollout import Job, rollout
from lib.store import append_jsonl, read_jsonl
from lib.trainers.advantages import ALGORITHMS, token_advantages
from lib.trainers.config import TrainConfig


class AgentTrainer(GRPOTrainer):
    """TRL's trainer with multi-turn episodes. See the module's docstring for what is overridden."""

    def __init__(self, policy: HFPolicy, env_class: type[Env], env_config: Any, run: TrainConfig, tasks, probe, out):
        self.policy, self.env_class, self.env_config, self.run_config = policy, env_class, env_config, run
        self.tasks, self.probe, self.out, self._wanted = tasks, probe, Path(out), None
        self.base = copy.deepcopy(policy.model).requires_grad_(False) if run.kl_episodes and not run.lora_rank else None
        rows = [{"prompt": [{"role": "user", "content": tasks[i].id}], "task": int(i)} for i in self._order()]
        args = GRPOConfig(
            output_dir=str(self.out / "checkpoints"),
            per_device_train_batch_size=run.tasks_per_update * run.group_size,
            num_generations=run.group_size,
            num_iterations=run.iterations,
            gradient_accumulation_steps=1,
            steps_per_generation=1,
            max_steps=run.updates * run.iterations,
            learning_rate=run.lr,
            lr_scheduler_type="linear",
            warmup_steps=run.warmup,
            max_grad_norm=run.max_grad_norm,
            adam_epsilon=run.adam_epsilon,
            epsilon=run.epsilon,
            beta=run.beta,
            loss_type=run.loss_type,
            temperature=policy.temperature,
            scale_rewards="group" if run.scale_rewards else "none",
            mask_truncated_completions=False,
            max_completion_length=policy.max_context,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=policy.model.device.type == "cpu",
            shuffle_dataset=False,
            remove_unused_columns=False,
            save_strategy="steps",
            save_steps=run.save_every * run.iterations,
            save_total_limit=1,
            logging_steps=1,
            report_to="none",
            disable_tqdm=True,
            seed=run.seed,
        )
        super().__init__(
            model=policy.model,
            reward_funcs=[_reward],
            args=args,
            train_dataset=Dataset.from_list(rows),
            processing_class=policy.tokenizer,
            rollout_func=lambda prompts, trainer: trainer._rollouts(),
            peft_config=_lora(run.lora_rank),
            callbacks=[_Record(self)],
        )
        if self.accelerator.num_processes > 1:
            raise NotImplementedError("training on several processes is not supported yet; start one process")
        self.policy = copy.copy(policy)
        self.policy.model = self.model
        self.seconds = {"rollout": 0.0, "update": 0.0}

    def _order(self) -> np.ndarray:
        """Indices of the training tasks in the order of the run: passes over all tasks, each shuffled by the seed."""
        need = self.run_config.updates * self.run_config.tasks_per_update
        rng = np.random.default_rng([self.run_config.seed, 1])
        passes = [rng.permutation(len(self.tasks)) for _ in range(-(-need // len(self.tasks)))]
        return np.concatenate(passes)[:need]

    def _generate_and_score_completions(self, inputs):
        self._rows = [r["task"] for r in inputs]
        start = time.perf_counter()
        out = super()._generate_and_score_completions(inputs)
        width = out["completion_ids"].shape[1]
        groups = [self.episodes[i : i + self.num_generations] for i in range(0, len(self.episodes), self.num_generations)]
        advantages = ALGORITHMS[self.run_config.algorithm](groups, self.run_config)
        flat = [a for g in advantages for a in g]
        rows = [token_advantages(e, a) for e, a in zip(self.episodes, flat, strict=True)]
        out["advantages"] = _pad(rows, width, out["advantages"].device)
        out["old_per_token_logps"] = _pad([e.completion()[2] for e in self.episodes], width, out["advantages"].device)
        self._note(groups)
        self.seconds["rollout"] = time.perf_counter() - start
        return out

    def _rollouts(self) -> dict[str, list]:
        """TRL's `rollout_func`: play the tasks of this update and hand over tokens, masks and rewards."""
        run, update = self.run_config, self.state.global_step // self.num_iterations
        group, t_max = self.num_generations, self.env_config.max_turns
        budgets = run.budget.budgets(run.seed, update, len(self._rows) // group, t_max)
        base_seed = run.seed * 1_000_003 + update
        todo = [Job(self.tasks[t], i % group, int(budgets[i // group]), base_seed) for i, t in enumerate(self._rows)]
        self.policy.model.eval()  # no dropout in sampling; TRL's own generation does the same
        start = time.perf_counter()
        self.episodes = rollout(self.policy, self.env_class, self.env_config, todo, quality=self._needs_quality())
        self.seconds["sampling"] = time.perf_counter() - start
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

    def _needs_quality(self) -> bool:
        return self.run_config.algorithm in ("oracle_q",)

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
        logps, entropies = score(self.accelerator.unwrap_model(model), rows, masks, self.temperature)
        place = torch.zeros(wanted.shape, device=input_ids.device)
        logps = place.masked_scatter(wanted, torch.cat(logps))
        self._scored = logps.detach()
        return logps, place.masked_scatter(wanted, torch.cat(entropies)) if compute_entropy else None, None

    def _compute_loss(self, model, inputs):
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        self._wanted = mask.bool()  # the head is applied to sampled tokens only
        loss = super()._compute_loss(model, inputs)
        self._wanted = None
        gap = ((self._scored - inputs["old_per_token_logps"]).abs() * mask).max().item()
        if self._step % self.num_iterations == 0:  # same weights as the rollout: what was sampled is what is trained on
            self._metrics["train"]["logp_gap"].append(gap)
        return loss

    def training_step(self, model, inputs, num_items_in_batch):
        start, self.seconds["rollout"] = time.perf_counter(), 0.0
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.seconds["update"] = time.perf_counter() - start - self.seconds["rollout"]
        return loss

    def _note(self, groups: list[list[Episode]]) -> None:
        """Metrics of the rollout, for this update's line of metrics.jsonl."""
        known = [e for e in self.episodes if e.end is not End.ERROR]
        rewards = [[e.reward for e in g if e.end is not End.ERROR] for g in groups]
        note = {
            "reward": np.mean([e.reward for e in known]) if known else float("nan"),
            "turns": np.mean([len(e.turns) for e in self.episodes]),
            "budget": np.mean([e.budget for e in self.episodes]),
            "no_spread": np.mean([len(set(r)) < 2 for r in rewards]),
            "action_tokens": sum(len(t.action) for e in self.episodes for t in e.turns),
            "tokens": sum(len(t.context) + len(t.action) for e in self.episodes for t in e.turns),
        }
        note |= {f"end_{end.value}": np.mean([e.end is end for e in self.episodes]) for end in End}
        self.note = {k: float(v) for k, v in note.items()} | {"kl": self._kl(known[: self.run_config.kl_episodes])}

    @torch.no_grad()
    def _kl(self, episodes: list[Episode]) -> float | None:
        """KL(policy || base), nats an action token, by the estimator exp(d) - 1 - d of arXiv 2402.03300."""
        if not episodes:
            return None
        parts = [(e.prompt_ids(), *e.completion()) for e in episodes]
        rows = [torch.tensor(p + ids, device=self.model.device) for p, ids, *_ in parts]
        masks = [torch.tensor([0] * len(p) + m, device=self.model.device) for p, _, m, *_ in parts]
        if self.base is None:
            with self.model.disable_adapter():
                base, _ = score(self.model, rows, masks, self.temperature)
        else:
            base, _ = score(self.base, rows, masks, self.temperature)
        now = torch.tensor([x for _, _, m, logp, _ in parts for x, k in zip(logp, m, strict=True) if k])
        d = torch.cat(base).cpu() - now
        return (d.exp() - 1 - d).mean().item()

    def run_probe(self) -> None:
        """R_multi and R_single (§4.2) of the present policy on the probe tasks, one line of probe.jsonl."""
        run, t_max = self.run_config, self.env_config.max_turns
        todo = [Job(t, s, t_max, run.seed) for t in self.probe for s in range(run.probe_samples)]
        self.policy.model.eval()
        episodes = rollout(self.policy, self.env_class, self.env_config, todo, quality=True)
        self.policy.model.train()
        known = [e for e in episodes if e.end is not End.ERROR]
        row = {
            "update": self.state.global_step // self.num_iterations,
            "r_multi": float(np.mean([e.reward for e in known])),
            "r_single": float(np.mean([np.mean([t.quality for t in e.turns]) for e in known])),
            "episodes": len(episodes),
        }
        append_jsonl(self.out / "probe.jsonl", row)


def _reward(prompts, completions, reward, **_) -> list[float | None]:
    """TRL's reward function: the episodes' rewards as they are; None (unscorable) for infrastructure errors."""
    return reward


def _pad(rows: list[list[float]], width: int, device) -> torch.Tensor:
    return torch.tensor([r + [0.0] * (width - len(r)) for r in rows], dtype=torch.float32, device=device)


def _lora(rank: int):
    if not rank:
        return None
    from peft import LoraConfig

    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")


class _Record(TrainerCallback):
    """One JSON line an update; probes at regular updates; lines after the checkpoint are dropped when resuming."""

    TRL = {"entropy": "entropy", "clip_share": "clip_ratio/region_mean", "grad_norm": "grad_norm", "loss": "loss",
           "lr": "learning_rate", "logp_gap": "logp_gap"}  # fmt: skip

    def __init__(self, trainer: AgentTrainer):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        done = state.global_step // self.trainer.num_iterations
        for name, first in (("metrics.jsonl", 1), ("probe.jsonl", 0)):
            path = self.trainer.out / name
            if path.exists():
                keep = [r for r in read_jsonl(path) if first <= r["update"] <= done]
                path.write_text("".join(json.dumps(r) + "\n" for r in keep))
        if self.trainer.run_config.probe_every and done == 0:
            (self.trainer.out / "probe.jsonl").unlink(missing_ok=True)
            self.trainer.run_probe()

    def on_log(self, args, state, control, logs=None, **kwargs):
        t = self.trainer
        if "loss" not in logs or state.global_step % t.num_iterations:
            return
        update = state.global_step // t.num_iterations
        row = {"update": update, "updates": t.run_config.updates} | t.note
        row |= {k: logs.get(v) for k, v in self.TRL.items()}
        row |= {f"seconds_{k}": round(v, 4) for k, v in t.seconds.items()}
        append_jsonl(t.out / "metrics.jsonl", row)

    def on_step_end(self, args, state, control, **kwargs):
        t, every = self.trainer, self.trainer.run_config.probe_every
        update, rest = divmod(state.global_step, t.num_iterations)
        if every and not rest and update % every == 0:
            t.run_probe()


def train(
    policy: HFPolicy, env_class: type[Env], env_config: Any, run: TrainConfig, tasks: tuple[Task, ...],
    probe: tuple[Task, ...], out: Path,
) -> dict[str, Any]:  # fmt: skip
    """Train `policy` on `tasks` and save the last weights (or the LoRA adapter) in `out/model`.

    Resumes from `out/checkpoints` with the result of an uninterrupted run. Returns numbers for the manifest.
    """
    trainer = AgentTrainer(policy, env_class, env_config, run, tasks, probe, out)
    last = max(trainer.out.glob("checkpoints/checkpoint-*"), key=lambda p: int(p.name.split("-")[1]), default=None)
    trainer.train(resume_from_checkpoint=str(last) if last else None)
    trainer.save_model(str(trainer.out / "model"))
    policy.tokenizer.save_pretrained(trainer.out / "model")
    rows = read_jsonl(trainer.out / "metrics.jsonl")
    return {"updates": len(rows), "tokens": int(sum(r["tokens"] for r in rows)), "reward": rows[-1]["reward"]}
