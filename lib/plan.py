"""What a profile will do and need, before it starts: runs, episodes, tokens, GPU hours, memory.

    python -m lib.reproduce --profile qwen3-4b --dry-run

Upper bounds: every episode is taken to use its whole budget and every action its token limit. Hours come from floating
point operations (P parameters: 2 P a token in a rollout, 4 P in the update of LoRA) and the efficiencies below, which
are assumptions until `make gpu-check` has measured yours.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from lib.config import Experiment
from lib.stages import model_folder

PEAK_TFLOPS = 989.0  # dense bfloat16 of an H100 or H200
MFU_UPDATE, MFU_ROLLOUT = 0.35, 0.05  # share of the peak: decoding is bound by memory, not by arithmetic
OBSERVATION = 128  # tokens of an observation, assumed
# Parameters, layers, hidden size, and bytes of keys and values a token (bfloat16) of the profiles' models.
KNOWN = {
    "Qwen/Qwen2.5-0.5B-Instruct": (0.49e9, 24, 896, 24 * 2 * 2 * 64 * 2),
    "Qwen/Qwen3-4B": (4.02e9, 36, 2560, 36 * 2 * 8 * 128 * 2),
    "Qwen/Qwen3-8B": (8.19e9, 36, 4096, 36 * 2 * 8 * 128 * 2),
}


@dataclass(frozen=True)
class Need:
    """Of one experiment. episodes: training and evaluation. tokens: read and sampled, at most. gpu_hours: of one GPU.
    memory_gb: the least: weights, and activations of an update or keys and values of one episode,
    whichever is more. With more memory more episodes are played side by side (`HFPolicy.room`)."""

    environment: str
    runs: int
    episodes: int
    tokens: float
    gpu_hours: float
    memory_gb: float


def _shape(x: Experiment) -> tuple[float, int, int, int]:
    """Parameters, layers, hidden size, bytes of keys and values a token of the model of `x`."""
    if not x.model:
        b = x.base
        layer = 4 * b.hidden**2 + 9 * b.hidden**2
        return b.layers * layer + b.vocabulary * b.hidden, b.layers, b.hidden, b.layers * 2 * b.hidden * 4
    if x.model in KNOWN:
        return KNOWN[x.model]
    folder = model_folder(x.model, x.revision)
    c = json.loads((folder / "config.json").read_text("utf-8"))
    head = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    size = sum(p.stat().st_size for p in folder.glob("*.safetensors"))
    per_token = c["num_hidden_layers"] * 2 * c["num_key_value_heads"] * head * 2
    return size / 2, c["num_hidden_layers"], c["hidden_size"], per_token


def need(x: Experiment, seeds: int) -> Need:
    """What an experiment needs with so many training seeds, at most."""
    parameters, layers, hidden, kv = _shape(x)
    per_turn = x.policy.max_action_tokens + OBSERVATION
    longest = min(x.policy.max_context, x.t_max * per_turn + 512)
    t, e, runs = x.train, x.evaluation, len(x.arms) * seeds
    update = t.tasks_per_update * t.group_size
    probes = x.probe_tasks * t.probe_samples * (1 + t.updates // t.probe_every) if t.probe_every else 0
    trained = runs * t.updates * update
    evaluated = e.tasks * e.samples + bool(x.arms) * e.train_tasks * e.train_samples
    played = trained + runs * probes + (runs + 1) * evaluated
    flops = 2 * parameters * played * longest / MFU_ROLLOUT + 4 * parameters * trained * longest / MFU_UPDATE
    width = t.micro_batch or update
    memory = parameters * (2 if x.policy.dtype == "bfloat16" else 4)
    memory += longest * max(3 * kv, width * layers * hidden * 2)  # 3: a third of what is free (`room`)
    return Need(x.env, runs, played, played * longest, flops / (PEAK_TFLOPS * 1e12) / 3600, memory / 1e9)


def plan_table(experiments: Sequence[Experiment], seeds: int) -> pd.DataFrame:
    """One row an experiment and their total."""
    rows = [need(x, seeds) for x in experiments]
    df = pd.DataFrame([vars(r) for r in rows])
    total = {"environment": "total", "memory_gb": df.memory_gb.max()}
    total |= {c: df[c].sum() for c in ("runs", "episodes", "tokens", "gpu_hours")}
    return pd.concat([df, pd.DataFrame([total])], ignore_index=True)


def check_device(experiments: Sequence[Experiment], seeds: int) -> None:
    """Raises ValueError for experiments that need a GPU where there is none, or more memory than it has."""
    on_gpu = [x for x in experiments if x.policy.device == "cuda"]
    if not on_gpu:
        return
    import torch

    profile = experiments[0].profile
    if not torch.cuda.is_available():
        raise ValueError(
            f"profile {profile} needs a CUDA GPU and none is visible; --dry-run prints its plan without one"
        )
    free = torch.cuda.get_device_properties(0).total_memory / 1e9
    most = max(need(x, seeds).memory_gb for x in on_gpu)
    if most > free:
        raise ValueError(f"profile {profile} needs up to {most:.0f} GB of GPU memory, this GPU has {free:.0f} GB")
