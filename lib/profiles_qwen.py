"""Profiles of pretrained models: Qwen2.5-0.5B, which a CPU can carry, and the paper's Qwen3-4B and Qwen3-8B on GPUs.

`MODEL=…` (a hub id or a local folder) replaces the model of such a profile. What is set here and why:
LoRA of rank 16 on all linear layers, as the optimiser state of all weights would need four times the memory of the
model; lr 4e-5: at 3e-4 a 0.5 B model collapsed within three updates, at 4e-5 it was stable; 1e-4, between the two, for
the ten updates that two cores can make; no thinking: an episode has
many turns, and thoughts of thousands of tokens a turn would fill the context; temperature 1, so that what is sampled is
the policy's own distribution. Nothing of this is the paper's, whose settings are not known.
"""

from __future__ import annotations

import os
from dataclasses import replace

from lib.analyses.config import AnalysisConfig
from lib.config import EvalConfig, Experiment
from lib.envs.bfcl import BFCLConfig
from lib.envs.deepcoder import DeepCoderConfig
from lib.envs.frozenlake import FrozenLakeConfig
from lib.envs.sql import SqlConfig
from lib.policies.config import PolicyConfig
from lib.trainers.config import TrainConfig

HUB = {"qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B-Instruct", "qwen3-4b": "Qwen/Qwen3-4B", "qwen3-8b": "Qwen/Qwen3-8B"}
_LAKE = FrozenLakeConfig(success_rate=1.0, max_turns=10, max_invalid=10)


def _model(profile: str) -> str:
    return os.environ.get("MODEL") or HUB[profile]


def small(profile: str = "qwen2.5-0.5b") -> tuple[Experiment, ...]:
    """FrozenLake with training, and the base policy alone on HumanEval, Spider and BFCL; about an hour on two cores.

    No gradient checkpointing and one group a micro-batch: the episodes of a group share the work on their prompt, and
    an update takes 2.1 s an episode in place of 3.8.
    """
    lake = Experiment(
        profile=profile,
        env="frozenlake",
        env_config=_LAKE,
        model=_model(profile),
        policy=PolicyConfig(max_action_tokens=8, max_context=1536, dtype="auto", device="auto"),
        train=TrainConfig(updates=10, tasks_per_update=4, lr=1e-4, warmup=2, lora_rank=16, micro_batch=8,
                          save_every=2, probe_every=5, kl_episodes=4),
        evaluation=EvalConfig(tasks=24, samples=8, train_tasks=8),
        analysis=AnalysisConfig(likelihood_samples=2, continuations=1),
        train_tasks=400, probe_tasks=8, arms=("grpo", "budgetmix"), analysed=("grpo",),
    )  # fmt: skip
    few = EvalConfig(tasks=12, samples=8, train_tasks=1, train_samples=1)
    alone = replace(lake, arms=(), analysed=(), train_tasks=1, probe_tasks=1, evaluation=few)
    return (
        lake,
        replace(alone, env="deepcoder", env_config=DeepCoderConfig(task_set="humaneval", max_turns=4),
                policy=replace(lake.policy, max_action_tokens=320, max_context=4096)),
        replace(alone, env="sql", env_config=SqlConfig(task_set="spider", max_turns=6),
                policy=replace(lake.policy, max_action_tokens=96, max_context=4096)),
        replace(alone, env="bfcl", env_config=BFCLConfig(task_set="bfcl", docs="signatures", max_turns=20),
                policy=replace(lake.policy, max_action_tokens=96, max_context=8192)),
    )  # fmt: skip


def large(profile: str) -> tuple[Experiment, ...]:
    """All environments with their official tasks, for a machine with GPUs."""
    lake = Experiment(
        profile=profile,
        env="frozenlake",
        env_config=replace(_LAKE, success_rate=0.8, max_turns=20),
        model=_model(profile),
        policy=PolicyConfig(max_action_tokens=256, max_context=8192, dtype="bfloat16", device="cuda"),
        train=TrainConfig(updates=150, tasks_per_update=16, lr=4e-5, lora_rank=16, gradient_checkpointing=True,
                          micro_batch=4, save_every=10, probe_every=15),
        evaluation=EvalConfig(tasks=200, samples=32),
        arms=("grpo", "budgetmix", "gigpo", "ppo", "oracle_q"), analysed=("grpo",),
    )  # fmt: skip
    two = replace(lake, arms=("grpo", "budgetmix"), train_tasks=500)
    return (
        lake,
        replace(two, env="deepcoder", env_config=DeepCoderConfig(task_set="deepcoder", max_turns=10),
                policy=replace(lake.policy, max_action_tokens=2048, max_context=32768)),
        replace(two, env="sql", env_config=SqlConfig(task_set="spider", max_turns=10),
                policy=replace(lake.policy, max_context=16384)),
        replace(two, env="bfcl", env_config=BFCLConfig(task_set="bfcl", docs="signatures", max_turns=20),
                train_tasks=100, evaluation=replace(lake.evaluation, tasks=80),
                arms=("grpo", "budgetmix", "gigpo", "ppo"),
                policy=replace(lake.policy, max_action_tokens=512, max_context=32768)),
    )  # fmt: skip
