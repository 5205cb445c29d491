"""How policies are run, and the tiny base policy (light to import: no torch)."""

from __future__ import annotations

from dataclasses import dataclass

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@dataclass(frozen=True)
class PolicyConfig:
    """How a model is loaded and sampled, the arguments of `lib.policies.hf.HFPolicy.load`.

    max_action_tokens: an action is cut there. max_context: tokens an episode may have, actions included; beyond it an
    episode ends as out of budget. temperature: divides the logits, in sampling and in scoring alike. dtype: of the
    weights, "float32", "bfloat16" or "auto" (what this machine multiplies faster, measured). device: "cpu", "cuda" or
    "auto" (a GPU where there is one). thinking: for chat templates with that switch (Qwen3), whether the model thinks
    before it answers; the thoughts count as tokens of the action, the environment reads what follows them.
    """

    max_action_tokens: int = 8
    max_context: int = 1024
    temperature: float = 1.0
    dtype: str = "float32"
    device: str = "cpu"
    thinking: bool = False

    def __post_init__(self):
        for name, allowed in (("dtype", ("float32", "bfloat16", "auto")), ("device", ("cpu", "cuda", "auto"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} {getattr(self, name)!r}: it must be one of {', '.join(allowed)}")
        if not 1 <= self.max_action_tokens < self.max_context:
            raise ValueError(
                f"max_action_tokens {self.max_action_tokens}: it must be in 1..{self.max_context - 1}, as "
                f"max_context is {self.max_context}"
            )
        if self.temperature <= 0:
            raise ValueError(f"temperature {self.temperature}: it must be > 0")


@dataclass(frozen=True)
class TinyConfig:
    """The tiny base policy and its supervised training.

    hidden, layers, heads: shape of the Qwen3 model (feed-forward width is 3 times hidden, as in Qwen3; the key-value
    heads equal the heads, as grouping saves nothing at this size). vocabulary: upper limit of the byte-level BPE.
    demonstrations: episodes shown. epochs, batch: passes over them and
    episodes a step. lr: peak of a one-cycle schedule. seed: of weights, data and order.
    """

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    vocabulary: int = 512
    demonstrations: int = 4000
    epochs: int = 1
    batch: int = 8
    lr: float = 3e-3
    seed: int = 0

    def __post_init__(self):
        if self.hidden % (2 * self.heads):
            raise ValueError(f"hidden {self.hidden} must be a multiple of 2 * heads = {2 * self.heads}")
        if self.vocabulary < 256 + len(SPECIAL):
            raise ValueError(f"vocabulary {self.vocabulary}: at least {256 + len(SPECIAL)} (bytes and special tokens)")
