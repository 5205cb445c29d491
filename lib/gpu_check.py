"""How fast does a GPU machine train? python -m lib.gpu_check, or make gpu-check: no network, under eight minutes.

A Qwen3 of the 4B shape with random weights plays FrozenLake and takes LoRA steps through the repository's own trainer,
so everything but the weights is what a real run does. Prints a table: sampled tokens a second, tokens a second of the
update, model FLOPs utilisation (4 P floating point operations a token for P parameters: 2 P forward and 2 P backward,
as LoRA needs no gradients of the weights; activations computed again do not count) and peak memory. Where there is no
GPU it says so and exits 0.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from lib.envs.frozenlake import FrozenLake, FrozenLakeConfig
from lib.plan import PEAK_TFLOPS
from lib.policies.hf import HFPolicy
from lib.policies.tiny import demonstrate, train_tokenizer
from lib.store import read_jsonl
from lib.trainers.config import TrainConfig
from lib.trainers.trainer import AgentTrainer

SHAPES = {  # vocabulary, hidden, feed-forward, layers, heads, key-value heads, head dimension
    "qwen3-4b": (151_936, 2560, 9728, 36, 32, 8, 128),
    "qwen3-8b": (151_936, 4096, 12_288, 36, 32, 8, 128),
    "small": (1024, 64, 128, 2, 4, 2, 16),
}


def random_policy(shape: str, device: str) -> HFPolicy:
    """A policy of a shape with random weights, bfloat16 on a GPU, whose tokenizer is trained here."""
    config = FrozenLakeConfig()
    talks = demonstrate(FrozenLake, config, FrozenLake.tasks(config, "train", 50), 100, 0)
    tokenizer = train_tokenizer(talks, 512, 8192)
    vocabulary, hidden, wide, layers, heads, shared, head = SHAPES[shape]
    with torch.device(device):
        torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
        try:
            model = Qwen3ForCausalLM(
                Qwen3Config(
                    vocab_size=vocabulary, hidden_size=hidden, intermediate_size=wide, num_hidden_layers=layers,
                    num_attention_heads=heads, num_key_value_heads=shared, head_dim=head, tie_word_embeddings=True,
                    eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
                )
            )  # fmt: skip
        finally:
            torch.set_default_dtype(torch.float32)
    return HFPolicy(model.eval(), tokenizer, max_action_tokens=32, max_context=4096)


def measure(shape: str, device: str, updates: int, tasks: int) -> pd.DataFrame:
    """Train for `updates` updates of `tasks` x 8 episodes of 10 turns: one row a quantity (name, value, unit)."""
    start = time.perf_counter()
    policy = random_policy(shape, device)
    parameters = sum(p.numel() for p in policy.model.parameters())
    env_config = FrozenLakeConfig(max_turns=10, max_invalid=10)  # random weights babble: all turns are played
    run = TrainConfig(updates=updates, tasks_per_update=tasks, lr=1e-5, lora_rank=16, gradient_checkpointing=True,
                      save_every=10_000, kl_episodes=0)  # fmt: skip
    panel = FrozenLake.tasks(env_config, "train", 64)
    rows = [("build model", time.perf_counter() - start, "s"), ("parameters", parameters / 1e9, "10^9")]
    with tempfile.TemporaryDirectory() as tmp:
        trainer = AgentTrainer(policy, FrozenLake, env_config, run, panel, panel[:1], tmp)
        trainer.train()
        last = read_jsonl(Path(tmp) / "metrics.jsonl")[-1]  # the first one warms up
    update_rate = last["tokens"] / last["seconds_update"]
    rows += [
        ("rollout: sampled tokens", last["action_tokens"] / last["seconds_sampling"], "tokens/s"),
        ("rollout: all tokens", last["tokens"] / last["seconds_sampling"], "tokens/s"),
        ("update", update_rate, "tokens/s"),
        ("rollout", last["seconds_sampling"], "s"),
        ("update time", last["seconds_update"], "s"),
        ("gap of log-probabilities, rollout to trainer", last["logp_gap"], "nats"),
    ]
    if device == "cuda":
        share = 4 * parameters * update_rate / (PEAK_TFLOPS * 1e12)
        rows += [("update: share of peak (MFU)", 100 * share, f"% of {PEAK_TFLOPS:.0f} TFLOP/s"),
                 ("peak memory", torch.cuda.max_memory_allocated() / 1e9, "GB")]  # fmt: skip
    return pd.DataFrame(rows, columns=["quantity", "value", "unit"])


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lib.gpu_check", description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-4b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=8, help="tasks an update, 8 episodes each")
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        print("gpu-check: no CUDA GPU is visible on this machine; nothing to measure")
        return 0
    name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    print(f"{args.shape}, random weights, LoRA rank 16, {args.updates} updates of {args.tasks * 8} episodes on {name}")
    table = measure(args.shape, args.device, args.updates, args.tasks)
    print(table.to_markdown(index=False, floatfmt=".4g"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
