"""The configuration of a training run (light to import: no torch)."""

from __future__ import annotations

from dataclasses import dataclass, field

from lib.trainers.advantages import ALGORITHMS
from lib.trainers.budgets import Fixed, Sampler


@dataclass(frozen=True)
class TrainConfig:
    """One training run.

    algorithm: a name in ALGORITHMS. budget: the sampler of interaction budgets. updates: rollout-and-update cycles.
    tasks_per_update, group_size: task instances an update and episodes each. iterations: optimisation steps on the
    same episodes. lr, warmup, max_grad_norm: AdamW with linear warm-up, then linear decay to 0. adam_epsilon: as in
    CleanRL's PPO; at 1e-8 the near-zero gradients of words never sampled are blown up to full steps until the policy
    babbles. epsilon: clip range of the ratio.
    beta: weight of the KL term to the base policy. scale_rewards: divide by the group's standard deviation. loss_type:
    TRL's aggregation ("dapo": mean over all action tokens). lora_rank: 0 trains all weights, else LoRA on all linear
    layers. save_every: updates between checkpoints. probe_every, probe_samples: R_multi and R_single are measured on
    the probe tasks every so many updates with so many samples each (0: never). kl_episodes: episodes an update on which
    the KL to the base policy is estimated. seed: of everything in the run.
    """

    algorithm: str = "grpo"
    budget: Sampler = field(default_factory=Fixed)
    updates: int = 150
    tasks_per_update: int = 8
    group_size: int = 8
    iterations: int = 1
    lr: float = 1e-3
    warmup: int = 5
    max_grad_norm: float = 1.0
    adam_epsilon: float = 1e-5
    epsilon: float = 0.2
    beta: float = 0.0
    scale_rewards: bool = True
    loss_type: str = "dapo"
    lora_rank: int = 0
    save_every: int = 50
    probe_every: int = 0
    probe_samples: int = 2
    kl_episodes: int = 8
    seed: int = 0

    def __post_init__(self):
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm {self.algorithm!r}: known are {', '.join(ALGORITHMS)}")
        if self.group_size < 2:
            raise ValueError(f"group_size {self.group_size}: a group needs at least 2 episodes")
        for name in ("updates", "tasks_per_update", "iterations", "save_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: it must be at least 1")
        if not 0 < self.lr < 1:
            raise ValueError(f"lr {self.lr}: it must be in (0, 1)")
