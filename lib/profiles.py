"""The profiles: the experiments that `make reproduce PROFILE=…` runs, one for each environment.

`experiment("tiny", "frozenlake")` is one of them, `experiments("tiny")` are all; a profile changes values, never the
code path.
"""

from __future__ import annotations

from dataclasses import replace

from lib import profiles_qwen
from lib.config import EvalConfig, Experiment
from lib.envs.bfcl import BFCLConfig
from lib.envs.deepcoder_config import DeepCoderConfig
from lib.envs.frozenlake import FrozenLakeConfig
from lib.envs.sql_tasks import SqlConfig
from lib.envs.terminal import TerminalConfig
from lib.policies.config import PolicyConfig, TinyConfig
from lib.profiles_qwen import HUB
from lib.trainers.config import TrainConfig


def _tiny_frozenlake() -> Experiment:
    return Experiment(
        profile="tiny",
        env="frozenlake",
        env_config=FrozenLakeConfig(frozen_share=0.75, min_distance=3, observation="local", max_invalid=1),
        train=TrainConfig(updates=60, lr=1e-3, probe_every=10),
        evaluation=EvalConfig(tasks=150, train_tasks=75),
        arms=("grpo", "budgetmix", "staged", "fixed50", "gigpo", "ppo", "oracle_q", "budgetmix_shown"),
    )


def _tiny_sql() -> Experiment:
    return Experiment(
        profile="tiny",
        env="sql",
        env_config=SqlConfig(tables=2, kinds=("filter", "aggregate", "order")),
        base=TinyConfig(vocabulary=640, demonstrations=6000),
        policy=PolicyConfig(max_action_tokens=16, max_context=768),
        train=TrainConfig(updates=30, lr=1e-3, probe_every=10),
        evaluation=EvalConfig(tasks=100, train_tasks=50),
        train_tasks=3000,
        probe_tasks=30,
        arms=("grpo", "budgetmix"),
    )


def _tiny_deepcoder() -> Experiment:
    return Experiment(
        profile="tiny",
        env="deepcoder",
        env_config=DeepCoderConfig(max_turns=6),
        base=TinyConfig(vocabulary=640, phrases=True),
        policy=PolicyConfig(max_action_tokens=16, max_context=512),
        train=TrainConfig(updates=40, tasks_per_update=16, lr=5e-4, probe_every=10, kl_episodes=4),
        evaluation=EvalConfig(tasks=100, train_tasks=50),
        train_tasks=292,
        arms=("grpo", "budgetmix"),
    )


def _tiny_bfcl() -> Experiment:
    return Experiment(
        profile="tiny",
        env="bfcl",
        env_config=BFCLConfig(domains=("files", "messages"), max_user_turns=2, max_turns=10),
        base=TinyConfig(lr=5e-3),
        policy=PolicyConfig(max_action_tokens=24, max_context=640),
        train=TrainConfig(updates=40, lr=2e-3, probe_every=20),
        evaluation=EvalConfig(tasks=60, train_tasks=30),
        arms=("grpo", "budgetmix", "gigpo", "ppo"),
        probe_tasks=30,
    )


def _tiny_terminal() -> Experiment:
    kinds = ("count", "sort", "filter", "mode", "find", "move")
    return Experiment(
        profile="tiny",
        env="terminal",
        env_config=TerminalConfig(max_turns=6, kinds=kinds, trees=24, parts=1, noise=0.5),
        base=TinyConfig(demonstrations=700, epochs=5),
        policy=PolicyConfig(max_action_tokens=14, max_context=512),
        train=TrainConfig(updates=20, lr=1e-3, probe_every=10),
        evaluation=EvalConfig(tasks=40, train_tasks=16),
        train_tasks=240,
        probe_tasks=20,
        arms=("grpo", "budgetmix"),
        analysed=(),
    )


def _smoke(x: Experiment) -> Experiment:
    return replace(
        x,
        profile="smoke",
        base=replace(x.base, demonstrations=400, epochs=1),
        train=replace(x.train, updates=4, save_every=2, probe_every=2),
        evaluation=replace(x.evaluation, tasks=20, samples=8, train_tasks=10),
        train_tasks=50,
        probe_tasks=5,
    )


_TINY = (_tiny_frozenlake(), _tiny_deepcoder(), _tiny_sql(), _tiny_bfcl(), _tiny_terminal())
PROFILES: dict[str, tuple[Experiment, ...]] = {"tiny": _TINY}
PROFILES["smoke"] = tuple(_smoke(x) for x in _TINY)
PROFILES |= {"qwen2.5-0.5b": profiles_qwen.small("qwen2.5-0.5b")}
PROFILES |= {name: profiles_qwen.large(name) for name in ("qwen3-4b", "qwen3-8b")}
DEFAULT_SEEDS = {"tiny": 3, "smoke": 2} | dict.fromkeys(HUB, 3) | {"qwen2.5-0.5b": 2}


def experiment(profile: str, env: str = "frozenlake") -> Experiment:
    """The experiment of an environment in a profile. Raises ValueError for an unknown name of either."""
    if profile not in PROFILES:
        raise ValueError(f"unknown profile {profile!r}; known: {', '.join(PROFILES)}")
    for x in PROFILES[profile]:
        if x.env == env:
            return x
    raise ValueError(f"profile {profile} has no {env!r}; it has {', '.join(x.env for x in PROFILES[profile])}")


def experiments(profile: str, env: str = "all") -> tuple[Experiment, ...]:
    """The experiment of an environment, or "all" of a profile. Raises ValueError for an unknown name of either."""
    if env != "all" or profile not in PROFILES:
        return (experiment(profile, env),)
    return PROFILES[profile]
