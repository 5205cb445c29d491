"""Our TrainConfig in the words of TRL and PEFT. Everything that matters is set explicitly: their defaults move."""

from __future__ import annotations

from pathlib import Path

from peft import LoraConfig
from trl import GRPOConfig

from lib.envs.base import Env
from lib.policies.hf import HFPolicy
from lib.trainers import ranks
from lib.trainers.advantages import USES_ORACLE
from lib.trainers.config import TrainConfig


def check(policy: HFPolicy, env_class: type[Env], run: TrainConfig) -> None:
    """Raises ValueError for a run that its environment or its policy does not allow."""
    if run.algorithm in USES_ORACLE and env_class.value is Env.value:
        raise ValueError(f"{run.algorithm} needs exact Q* and V*: {env_class.name} has no `value()`; FrozenLake has")
    if run.beta and not run.lora_rank and not Path(policy.model.config._name_or_path or "?").is_dir():
        raise ValueError(
            f"beta {run.beta}: the base policy is loaded again as the reference, from a local folder, not from "
            f"{policy.model.config._name_or_path!r}: load the policy with HFPolicy.load(folder)"
        )


def grpo_config(policy: HFPolicy, run: TrainConfig, checkpoints: Path) -> GRPOConfig:
    """One optimiser step on all episodes of an update, `iterations` times; nothing is dropped or logged elsewhere.

    Raises ValueError where the episodes do not go evenly into the processes, or those of a process into micro-batches.
    """
    share = ranks.share(run.tasks_per_update * run.group_size)
    width = run.micro_batch or share
    if share % width:
        raise ValueError(f"micro_batch {width}: the {share} episodes of a process do not go evenly into such batches")
    return GRPOConfig(
        output_dir=str(checkpoints),
        per_device_train_batch_size=width,
        num_generations=run.group_size,
        num_iterations=run.iterations,
        gradient_accumulation_steps=share // width,
        steps_per_generation=share // width,
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
        vllm_importance_sampling_mode="token_truncate",  # TRL's default drops long episodes; used with vLLM only
        max_completion_length=policy.max_context,
        bf16=False,
        gradient_checkpointing=run.gradient_checkpointing,
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


def lora_config(rank: int) -> LoraConfig | None:
    """LoRA on all linear layers but the head; None for rank 0, which trains all weights."""
    if not rank:
        return None
    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
