"""What a training run writes down: metrics.jsonl (a line an update), probe.jsonl (R_multi, R_single), snapshots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import TrainerCallback

from lib.episode import End, Episode
from lib.policies.hf import score
from lib.policies.pretrained import autocast, merged
from lib.rollout import Job, rollout
from lib.store import append_jsonl, read_jsonl
from lib.trainers import ranks

if TYPE_CHECKING:
    from lib.trainers.trainer import AgentTrainer

TRL = {"entropy": "entropy", "clip_share": "clip_ratio/region_mean", "grad_norm": "grad_norm", "loss": "loss",
       "lr": "learning_rate", "logp_gap": "logp_gap"}  # our names of TRL's metrics  # fmt: skip


def rollout_metrics(groups: list[list[Episode]]) -> dict[str, float]:
    """Means over the episodes of an update. Errored ones have no reward and stay in every other denominator."""
    episodes = [e for g in groups for e in g]
    rewards = [[e.reward for e in g if e.end is not End.ERROR] for g in groups]
    known = [r for g in rewards for r in g]
    note = {
        "reward": np.mean(known) if known else float("nan"),
        "turns": np.mean([len(e.turns) for e in episodes]),
        "budget": np.mean([e.budget for e in episodes]),
        "no_spread": np.mean([len(set(r)) < 2 for r in rewards]),
        "action_tokens": sum(len(t.action) for e in episodes for t in e.turns),
        "tokens": sum(len(t.context) + len(t.action) for e in episodes for t in e.turns),
    }
    note |= {f"end_{end.value}": np.mean([e.end is end for e in episodes]) for end in End}
    return {k: float(v) for k, v in note.items()}


@torch.no_grad()
def kl_to_base(trainer: AgentTrainer, episodes: list[Episode]) -> float | None:
    """KL(policy || base), nats an action token, by the estimator exp(d) - 1 - d of arXiv 2402.03300.

    episodes: the same on all ranks, which share the work."""
    if not episodes:
        return None
    model = trainer.model
    parts = [(e.prompt_ids(), *e.completion()) for e in episodes[ranks.index() :: ranks.count()]]
    rows = [torch.tensor(p + ids, device=model.device) for p, ids, *_ in parts]
    masks = [torch.tensor([0] * len(p) + m, device=model.device) for p, _, m, *_ in parts]
    if trainer.base is None:
        with model.disable_adapter(), autocast(model):
            base, _ = score(model, rows, masks, trainer.temperature)
    else:
        base, _ = score(trainer.base, rows, masks, trainer.temperature)
    now = torch.tensor([x for _, _, m, logp, _ in parts for x, k in zip(logp, m, strict=True) if k])
    d = torch.cat(ranks.gather([torch.cat(base).cpu() - now] if parts else []))
    return (d.exp() - 1 - d).mean().item()


def probe(trainer: AgentTrainer) -> None:
    """R_multi and R_single (§4.2) of the present policy on the probe tasks, with the tokens trained on so far: one line
    of probe.jsonl (R_single is null where the environment has no step measure). The policy of that moment is kept in
    `snapshots/update-NNNN` (LoRA: the adapter)."""
    run, t_max = trainer.run_config, trainer.env_config.max_turns
    update = trainer.state.global_step // trainer.num_iterations
    todo = [Job(t, s, t_max, run.seed) for t in trainer.probe for s in range(run.probe_samples)]
    todo = todo[ranks.index() :: ranks.count()]
    trainer.policy.model.eval()
    measured = trainer.env_class.has_step_measure
    with merged(trainer.model):
        played = rollout(trainer.policy, trainer.env_class, trainer.env_config, todo, quality=measured)
    episodes = ranks.gather(played)
    trainer.policy.model.train()
    trainer.save_policy(trainer.out / "snapshots" / f"update-{update:04d}")
    if ranks.index():
        return
    known = [e for e in episodes if e.end is not End.ERROR]
    row = {
        "update": update,
        "r_multi": float(np.mean([e.reward for e in known])),
        "r_single": float(np.mean([np.mean([t.quality for t in e.turns]) for e in known])) if measured else None,
        "episodes": len(episodes),
        "tokens": trained_tokens(trainer, update),
    }
    append_jsonl(trainer.out / "probe.jsonl", row)


def trained_tokens(trainer: AgentTrainer, update: int) -> int:
    """Tokens of the episodes of the first `update` updates; the line of the present one is not written yet."""
    if not update:
        return 0
    path = trainer.out / "metrics.jsonl"
    past = [r["tokens"] for r in read_jsonl(path) if r["update"] < update] if path.exists() else []
    return int(sum(past) + trainer.note["tokens"])


class Record(TrainerCallback):
    """One JSON line an update, of rank 0; probes at regular updates; lines after the checkpoint are dropped when
    resuming."""

    def __init__(self, trainer: AgentTrainer):
        self.trainer = trainer
        self.logs: dict[str, Any] = {}  # of all iterations of the present update

    def on_train_begin(self, args, state, control, **kwargs):
        t = self.trainer
        done = state.global_step // t.num_iterations
        for name, first in (("metrics.jsonl", 1), ("probe.jsonl", 0 if done else 1)):  # update 0 is probed below
            if (t.out / name).exists() and ranks.index() == 0:
                keep = [r for r in read_jsonl(t.out / name) if first <= r["update"] <= done]
                Path(t.out / name).write_text("".join(json.dumps(r) + "\n" for r in keep))
        if t.run_config.probe_every and done == 0:
            t.run_probe()

    def on_log(self, args, state, control, logs=None, **kwargs):
        t = self.trainer
        if "loss" not in logs or ranks.index():
            return
        self.logs |= logs
        if state.global_step % t.num_iterations:
            return
        row = {"update": state.global_step // t.num_iterations, "updates": t.run_config.updates} | t.note
        row |= {k: self.logs.get(v) for k, v in TRL.items()}
        row |= {"value_loss": self.logs["value_loss"]} if t.critic is not None else {}
        row |= {f"seconds_{k}": round(v, 4) for k, v in t.seconds.items()}
        append_jsonl(t.out / "metrics.jsonl", row)
        self.logs = {}

    def on_step_end(self, args, state, control, **kwargs):
        t, every = self.trainer, self.trainer.run_config.probe_every
        update, rest = divmod(state.global_step, t.num_iterations)
        if every and not rest and update % every == 0:
            t.run_probe()
