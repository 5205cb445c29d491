"""PPO's critic: a value head on the policy's trunk.

It reads the hidden state from which an action token is chosen, so the pass that scores the tokens gives the values too,
and with LoRA no second model is held. A network of its own would double memory and time. No gradient goes back into the
trunk: what the policy computes is shaped by the policy loss alone, as with the other algorithms, and the head's
large first errors cannot disturb it. The head is a submodule of the model, so that the optimiser steps it, and it is
clipped and moved with it; weights are saved apart (`critic.safetensors`), so that a model folder is a plain one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lib.episode import End, Episode
from lib.policies.hf import score
from lib.trainers.advantages import first_tokens, gae_episode
from lib.trainers.config import PPOConfig

FILE = "critic.safetensors"
NAME = "critic"  # of the submodule


class ValueHead(nn.Module):
    """Values (n,) of hidden states (n, hidden), in float32. Starts at 0 everywhere; the seed sets its first layer."""

    def __init__(self, hidden: int, width: int, seed: int):
        super().__init__()
        self.norm = nn.LayerNorm(hidden, elementwise_affine=False)
        self.first, self.last = nn.Linear(hidden, width), nn.Linear(width, 1)
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.first.weight.normal_(0, hidden**-0.5, generator=draw)
            for zero in (self.first.bias, self.last.weight, self.last.bias):
                zero.zero_()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.last(torch.nn.functional.gelu(self.first(self.norm(hidden.detach().float()))))[:, 0]


def attach(model: nn.Module, width: int, seed: int) -> ValueHead:
    """Put a new value head on a causal language model (or a PEFT model of one) and return it."""
    base = getattr(model, "get_base_model", lambda: model)()
    head = ValueHead(base.config.hidden_size, width, seed).to(base.get_input_embeddings().weight.device)
    model.add_module(NAME, head)
    return head


def policy_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state dict without the value head."""
    return {k: v for k, v in model.state_dict().items() if not k.startswith(f"{NAME}.")}


def save(model: nn.Module, folder: str | Path) -> None:
    save_file(getattr(model, NAME).state_dict(), Path(folder) / FILE)


def load(model: nn.Module, folder: str | Path) -> None:
    """Raises FileNotFoundError for a checkpoint without a critic."""
    getattr(model, NAME).load_state_dict(load_file(Path(folder) / FILE))


@torch.no_grad()
def values(model: nn.Module, episodes: Sequence[Episode]) -> list[np.ndarray]:
    """The critic's value of the state in which each sampled token was chosen, (sampled tokens,) for each episode."""
    head, found = getattr(model, NAME), [np.zeros(0)] * len(episodes)
    at = [i for i, e in enumerate(episodes) if e.turns]
    parts = [(episodes[i].prompt_ids(), *episodes[i].completion()[:2]) for i in at]
    rows = [torch.tensor(p + ids, device=head.last.weight.device) for p, ids, _ in parts]
    masks = [torch.tensor([0] * len(p) + m, device=head.last.weight.device) for p, _, m in parts]
    for i, v in zip(at, score(model, rows, masks, value_head=head)[2], strict=True):
        found[i] = v.double().cpu().numpy()
    return found


def value_targets(episode: Episode, given: np.ndarray, ppo: PPOConfig) -> tuple[np.ndarray, np.ndarray]:
    """Which sampled tokens are decisions (all, or the first of each turn), and the value each should have: the lambda
    return A_i + V_i. given: the critic's values, (sampled tokens,)."""
    at = first_tokens(episode) if ppo.level == "turn" else np.arange(len(given))
    return at, gae_episode(episode, given, ppo) + given[at]


def loss_inputs(
    episodes: Sequence[Episode], given: Sequence[np.ndarray], ppo: PPOConfig, width: int, device: torch.device
) -> dict[str, torch.Tensor]:
    """What the value loss needs, as tensors (B, width) over completion tokens: `old_values`, `value_targets`,
    `value_mask` (1 at the decisions of episodes without an error)."""
    out = {k: torch.zeros(len(episodes), width) for k in ("old_values", "value_targets", "value_mask")}
    for row, (e, v) in enumerate(zip(episodes, given, strict=True)):
        if e.end is End.ERROR:
            continue
        at, target = value_targets(e, v, ppo)
        place = np.flatnonzero(e.completion()[1])[at]
        for name, x in (("old_values", v[at]), ("value_targets", target), ("value_mask", np.ones(len(at)))):
            out[name][row, place] = torch.tensor(x, dtype=torch.float32)
    return {k: x.to(device) for k, x in out.items()}


def explained(episodes: Sequence[Episode], given: Sequence[np.ndarray], ppo: PPOConfig) -> float:
    """The explained variance of the values at the decisions, against the plain returns (lambda 1), since the lambda
    returns hold the values themselves. NaN where all episodes erred."""
    pairs = [(v, *value_targets(e, v, replace(ppo, lam=1.0)))
             for e, v in zip(episodes, given, strict=True) if e.end is not End.ERROR]  # fmt: skip
    if not pairs:
        return float("nan")
    return explained_variance(np.concatenate([v[at] for v, at, _ in pairs]), np.concatenate([r for *_, r in pairs]))


def value_loss(
    new: torch.Tensor, old: torch.Tensor, target: torch.Tensor, mask: torch.Tensor, clip: float,
    count: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Half the mean squared error where `mask` is 1, the larger one of the new value's and of the new value held within
    `clip` of the old one (arXiv 1707.06347's implementation). All (B, T); clip 0: no clipping. count: what the sum is
    divided by, if not the ones of the mask: on several ranks a rank's share of all ones."""
    error = (new - target) ** 2
    if clip:
        held = old + (new - old).clamp(-clip, clip)
        error = torch.maximum(error, (held - target) ** 2)
    return 0.5 * (error * mask).sum() / (mask.sum().clamp(min=1) if count is None else count)


def explained_variance(predicted: np.ndarray, target: np.ndarray) -> float:
    """1 - Var(target - predicted) / Var(target): 1 is perfect, 0 a constant's, NaN where the targets do not vary."""
    spread = np.var(target) if len(target) else 0.0
    return float(1 - np.var(np.asarray(target) - predicted) / spread) if spread > 0 else float("nan")
