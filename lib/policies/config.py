"""How policies are run, and the tiny base policy (light to import: no torch)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ENGINES = {"hf": "lib.policies.hf:HFPolicy", "vllm": "lib.policies.vllm:VLLMPolicy"}


@dataclass(frozen=True)
class PolicyConfig:
    """How a model is loaded and sampled; `load` gives the policy.

    max_action_tokens: an action is cut there. max_context: tokens an episode may have, actions included; beyond it an
    episode ends as out of budget. temperature: divides the logits, in sampling and in scoring alike. dtype: of the
    weights, "float32", "bfloat16" or "auto" (what this machine multiplies faster, measured). device: "cpu", "cuda" or
    "auto" (a GPU where there is one). thinking: for chat templates with that switch (Qwen3), whether the model thinks
    before it answers; the thoughts count as tokens of the action, the environment reads what follows them. engine: what
    plays the episodes, "hf" (lib/policies/session.py) or "vllm" (lib/policies/vllm.py). server: the URL of a running
    `vllm serve`; "" is vLLM in this process.
    """

    max_action_tokens: int = 8
    max_context: int = 1024
    temperature: float = 1.0
    dtype: str = "float32"
    device: str = "cpu"
    thinking: bool = False
    engine: str = "hf"
    server: str = ""

    def __post_init__(self):
        choices = {
            "dtype": ("float32", "bfloat16", "auto"),
            "device": ("cpu", "cuda", "auto"),
            "engine": tuple(ENGINES),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} {getattr(self, name)!r}: it must be one of {', '.join(allowed)}")
        if self.server and self.engine != "vllm":
            raise ValueError(f"server {self.server!r}: only engine 'vllm' has one, not {self.engine!r}")
        if not 1 <= self.max_action_tokens < self.max_context:
            raise ValueError(
                f"max_action_tokens {self.max_action_tokens}: it must be in 1..{self.max_context - 1}, as "
                f"max_context is {self.max_context}"
            )
        if self.temperature <= 0:
            raise ValueError(f"temperature {self.temperature}: it must be > 0")

    @property
    def module(self) -> str:
        """The module of the engine, part of the key of what is sampled with it."""
        return ENGINES[self.engine].partition(":")[0]

    def load(self, folder: str | Path) -> Any:
        """The policy of a model folder or hub id, an `HFPolicy`. Raises ImportError where the engine is not installed.

        The module is imported by name: a step's key holds the source of the engine in use, not of all.
        """
        options = asdict(self)
        engine = getattr(import_module(self.module), ENGINES[options.pop("engine")].partition(":")[2])
        server = options.pop("server")
        return engine.load(folder, **options, **({"server": server} if server else {}))


@dataclass(frozen=True)
class TinyConfig:
    """The tiny base policy and its supervised training.

    hidden, layers, heads: shape of the Qwen3 model (feed-forward width is 3 times hidden, as in Qwen3; the key-value
    heads equal the heads, as grouping saves nothing at this size). vocabulary: upper limit of the byte-level BPE.
    phrases: let its tokens go across words and punctuation (digits stay single), so that a line of code that is met
    often is one token: fewer decisions an action, fewer tokens an episode.
    demonstrations: episodes shown. epochs, batch: passes over them and
    episodes a step. lr: peak of a one-cycle schedule. seed: of weights, data and order.
    """

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    vocabulary: int = 512
    phrases: bool = False
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
