"""The configuration of a training run (light to import: no torch)."""

from __future__ import annotations

from dataclasses import dataclass, field

from lib.trainers.advantages import ALGORITHMS
from lib.trainers.budgets import Fixed, Sampler


@dataclass(frozen=True)
class GiGPOConfig:
    """GiGPO (arXiv 2505.10978; its values).

    omega: weight of the step-level advantage. gamma: discount of the return-to-go that is compared among turns taken in
    the same state. statistics: "trajectories" (the paper) or "steps" (the default of its public code): what counts once
    in the mean and deviation of the episode-level advantage.
    """

    omega: float = 1.0
    gamma: float = 0.95
    statistics: str = "trajectories"

    def __post_init__(self):
        _check_share("gigpo.gamma", self.gamma)
        if self.omega < 0:
            raise ValueError(f"gigpo.omega {self.omega}: it must not be negative")
        if self.statistics not in ("trajectories", "steps"):
            raise ValueError(f"gigpo.statistics {self.statistics!r}: 'trajectories' or 'steps'")


@dataclass(frozen=True)
class PPOConfig:
    """PPO (arXiv 1707.06347) with generalised advantage estimation (arXiv 1506.02438).

    level: the decisions that GAE goes over, "turn" or "token". gamma: discount a decision; 1, as the reward is success.
    lam: GAE's lambda. critic_lr: peak learning rate of the value head, which starts from nothing, while `lr` is the
    policy's (at 3e-3 the tiny profile's critic explained returns 10 updates later). critic_width: hidden units of the
    value head. value_coef: weight of the value loss; it reaches the value head only. value_clip: clip range of the
    change of a value in an update (0: no clipping).
    """

    level: str = "turn"
    gamma: float = 1.0
    lam: float = 0.95
    critic_lr: float = 1e-2
    critic_width: int = 128
    value_coef: float = 0.5
    value_clip: float = 0.2

    def __post_init__(self):
        _check_share("ppo.gamma", self.gamma)
        _check_share("ppo.lam", self.lam)
        if self.level not in ("turn", "token"):
            raise ValueError(f"ppo.level {self.level!r}: 'turn' or 'token'")
        if not 0 < self.critic_lr < 1 or self.critic_width < 1:
            raise ValueError(
                f"ppo.critic_lr {self.critic_lr} in (0, 1), ppo.critic_width {self.critic_width} at least 1"
            )
        if self.value_coef < 0 or self.value_clip < 0:
            raise ValueError(f"ppo.value_coef {self.value_coef}, ppo.value_clip {self.value_clip}: not negative")


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} {value}: it must be in [0, 1]")


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
    layers. gradient_checkpointing: activations are computed again in the backward pass, for large models. micro_batch:
    episodes whose activations are in memory at once (0: all of an update). save_every: updates between checkpoints.
    probe_every, probe_samples: R_multi and R_single are measured on the probe tasks every so many updates with so many
    samples each (0: never). kl_episodes: episodes an update on which
    the KL to the base policy is estimated. gigpo, ppo: what only these algorithms use. oracle_gamma: discount of the
    oracle-Q process reward's return-to-go. At 1 an action is credited with all value that is lost after it, so that the
    gradient is that of the success probability; at 0 with its own loss only, and a wasted turn costs next to nothing:
    tried at 0, policies learnt to dawdle and to babble. seed: of everything in the run.
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
    gradient_checkpointing: bool = False
    micro_batch: int = 0
    save_every: int = 50
    probe_every: int = 0
    probe_samples: int = 2
    kl_episodes: int = 8
    gigpo: GiGPOConfig = field(default_factory=GiGPOConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    oracle_gamma: float = 1.0
    seed: int = 0

    def __post_init__(self):
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm {self.algorithm!r}: known are {', '.join(ALGORITHMS)}")
        if self.group_size < 2:
            raise ValueError(f"group_size {self.group_size}: a group needs at least 2 episodes")
        if self.micro_batch < 0:
            raise ValueError(f"micro_batch {self.micro_batch}: it must not be negative (0: all episodes at once)")
        for name in ("updates", "tasks_per_update", "iterations", "save_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: it must be at least 1")
        if not 0 < self.lr < 1:
            raise ValueError(f"lr {self.lr}: it must be in (0, 1)")
        if self.beta < 0:
            raise ValueError(f"beta {self.beta}: it must not be negative")
        _check_share("oracle_gamma", self.oracle_gamma)
