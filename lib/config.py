"""What an experiment is: every number of it, typed. The profiles (lib/profiles.py) hold experiments.

An Experiment is one environment in one profile; `replace(...)` of the standard library changes a field.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lib.analyses.config import AnalysisConfig
from lib.envs.base import Env, env_class
from lib.policies.config import PolicyConfig, TinyConfig
from lib.trainers.advantages import USES_ORACLE
from lib.trainers.budgets import BudgetMix, Fixed, Sampler, Staged
from lib.trainers.config import TrainConfig

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Arm:
    """A way of training, as the paper names it: an algorithm and a budget sampler.

    label: in figures and tables. show_budget: the policy is told how many turns are left. beta: KL to the base policy.
    """

    label: str
    algorithm: str = "grpo"
    budget: Sampler = field(default_factory=Fixed)
    show_budget: bool = False
    beta: float = 0.0


ARMS: dict[str, Arm] = {
    "grpo": Arm("GRPO, full budget"),
    "budgetmix": Arm("BudgetMix", budget=BudgetMix()),
    "staged": Arm("Staged 25/50/100 %", budget=Staged((0.25, 0.5, 1.0))),
    "fixed50": Arm("Fixed 50 %", budget=Fixed(0.5)),
    "gigpo": Arm("GiGPO", algorithm="gigpo"),
    "ppo": Arm("PPO", algorithm="ppo"),
    "oracle_q": Arm("Oracle-Q reward", algorithm="oracle_q"),
    "budgetmix_shown": Arm("BudgetMix, budget shown", budget=BudgetMix(), show_budget=True),
    "grpo_kl": Arm("GRPO, KL 0.01", beta=0.01),
}
GRID = (0.1, 0.25, 0.5, 0.75, 1.0)  # of Tmax
BASE_ARMS = ("base", "base_shown")  # the base policy, and the one trained on texts that tell the turns left


@dataclass(frozen=True)
class EvalConfig:
    """How checkpoints are evaluated.

    tasks, samples: test tasks and rollouts of each (K <= n is needed, n >= 2K advised). train_tasks, train_samples: the
    same on training tasks, for the generalisation gap. snapshot_samples: rollouts of each test task by an earlier
    snapshot, which is compared at K = 1 only (§5.4). ks: the K of Pass@K; budget_k: the K of Pass@T (§2.2, C = 8).
    seed: of the rollouts, the same for every policy, so that policies are compared on the same slips of the ice.
    """

    tasks: int = 200
    samples: int = 16
    train_tasks: int = 100
    train_samples: int = 4
    snapshot_samples: int = 8
    ks: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    budget_k: int = 8
    seed: int = 10_000

    def __post_init__(self):
        if max(*self.ks, self.budget_k) > self.samples:
            raise ValueError(f"K = {max(*self.ks, self.budget_k)} is larger than n = {self.samples} samples a task")


@dataclass(frozen=True)
class Experiment:
    """One environment in one profile.

    profile, env: names. env_config: of the environment's Config class. base: the tiny base policy that is trained here,
    or model, revision: a pretrained one in its place, a hub id or a local folder.
    policy: how all its policies are sampled. train: what all arms share. evaluation, analysis: sizes of the evaluations
    and of the analyses. train_tasks, probe_tasks: sizes of the training panel and of the validation panel on which
    training is probed. arms: names in ARMS; every one is trained by `make reproduce`; add one with
    `replace(x, arms=(*x.arms, "grpo_kl"))`. analysed: the arms that the analyses of single steps and of likelihood
    (§3.3, §4.1) compare with the base policy. varied: (name, Arm) of arms that are other here than in ARMS.
    """

    profile: str
    env: str
    env_config: Any
    base: TinyConfig = field(default_factory=TinyConfig)
    model: str = ""
    revision: str = "main"
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    analysis: AnalysisConfig = field(default_factory=AnalysisConfig)
    train_tasks: int = 1000
    probe_tasks: int = 50
    arms: tuple[str, ...] = ("grpo", "budgetmix", "staged", "fixed50")
    analysed: tuple[str, ...] = ("grpo",)
    varied: tuple[tuple[str, Arm], ...] = ()

    def __post_init__(self):
        cls = env_class(self.env)
        if not isinstance(self.env_config, cls.Config):
            raise ValueError(f"{self.env} needs a {cls.Config.__name__}, got {type(self.env_config).__name__}")
        if unknown := set(self.analysed) - set(self.arms):
            raise ValueError(f"analysed {sorted(unknown)}: not among the arms {', '.join(self.arms)}")
        if self.model and not self.train.lora_rank and self.policy.dtype != "float32":
            raise ValueError(f"dtype {self.policy.dtype!r} with lora_rank 0: all weights are trained in float32 only")
        for arm in self.arms:
            if arm not in ARMS:
                raise ValueError(f"unknown arm {arm!r}; known: {', '.join(ARMS)}")
            if self.arm(arm).algorithm in USES_ORACLE and cls.value is Env.value:
                raise ValueError(f"arm {arm!r} needs exact Q* and V*, which {self.env} does not have: leave it out")
        if self.evaluation.train_tasks > self.train_tasks:
            raise ValueError(
                f"{self.evaluation.train_tasks} training tasks to evaluate, {self.train_tasks} to train on"
            )

    @property
    def name(self) -> str:
        """The environment's name in step directories, also for one given as `module:Class`."""
        return env_class(self.env).name

    @property
    def title(self) -> str:
        """The environment's name in figures."""
        return env_class(self.env).title or self.name

    @property
    def t_max(self) -> int:
        return self.env_config.max_turns

    @property
    def grid(self) -> tuple[int, ...]:
        """The budgets of tables, and those at which a policy that is told its budget is evaluated (all of GRID)."""
        return tuple(sorted({self.turns(f) for f in GRID}))

    def turns(self, fraction: float) -> int:
        """The budget T = ceil(fraction * Tmax)."""
        return int(Fixed(fraction).budgets(0, 0, 1, self.t_max)[0])

    def arm(self, name: str) -> Arm:
        """The arm of this name, as this experiment has it."""
        return dict(self.varied).get(name, ARMS[name])

    def train_config(self, arm: str, seed: int) -> TrainConfig:
        """The run of one arm with one seed. Raises ValueError for an arm that this experiment does not have."""
        if arm not in self.arms:
            raise ValueError(f"arm {arm!r} is not in {self.profile}/{self.env}; it has {', '.join(self.arms)}")
        a = self.arm(arm)
        budget = a.budget
        if isinstance(budget, Staged):  # the first two stages take a quarter of the updates each
            budget = replace(budget, every=max(1, self.train.updates // 4))
        return replace(self.train, algorithm=a.algorithm, budget=budget, beta=a.beta, seed=seed)

    def shows_budget(self, arm: str) -> bool:
        """Whether the policy of an arm is told how many turns are left, in training and in evaluation."""
        if arm not in (*ARMS, *BASE_ARMS):
            raise ValueError(f"unknown arm {arm!r}; known: {', '.join((*BASE_ARMS, *ARMS))}")
        return self.env_config.show_budget or (arm == "base_shown" if arm in BASE_ARMS else self.arm(arm).show_budget)

    def base_arm(self, arm: str) -> str:
        """The base policy that an arm starts from and is compared with: "base_shown" for one that is told its budget
        where the others are not."""
        return "base_shown" if self.shows_budget(arm) and not self.env_config.show_budget else "base"

    def arm_env_config(self, arm: str) -> Any:
        return replace(self.env_config, show_budget=True) if self.shows_budget(arm) else self.env_config


def results_dir(profile: str) -> Path:
    """Where tables and figures go: results/ for the default profile, results/<profile>/ for the others. The environment
    variable RESULTS_DIR stands for results/: the notebooks of a sweep must not overwrite the results of the paper."""
    results = Path(os.environ.get("RESULTS_DIR") or ROOT / "results")
    return results if profile == "tiny" else results / profile


def check_seeds(seeds: int) -> list[int]:
    """The seeds 0..n-1 of a run. Raises ValueError below 2: an interval over seeds needs two."""
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 2:
        raise ValueError(f"seeds={seeds!r}: at least 2 training seeds are needed for an interval over seeds")
    return list(range(seeds))
