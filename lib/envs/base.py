"""The contract of an environment: messages in and out; tokens are the rollout engine's business.

An environment is one Python object that plays one episode at a time. All its randomness comes from the seed given to
`reset` and lives on the instance, so that `snapshot`/`restore` can branch an episode at any turn: after
`restore(blob)` the same actions give the same observations, rewards and next snapshots.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Task:
    """One problem instance. `data` is JSON-able and all that an environment needs to set the task up."""

    id: str
    data: dict[str, Any] = field(hash=False)

    def digest(self) -> str:
        """SHA-256 of id and data, the same on every machine."""
        return hashlib.sha256(json.dumps([self.id, self.data], sort_keys=True).encode()).hexdigest()


class Step(NamedTuple):
    """What one turn returns.

    observation: the text of the next user message ("" is allowed when the episode is over).
    reward: the reward of this turn; an episode's reward is the sum over its turns.
    done: the environment ended the episode.
    info: at least `solved` (bool) and `invalid` (bool: the action text could not be parsed).
    """

    observation: str
    reward: float
    done: bool
    info: dict[str, Any]


class NoStepMeasure(NotImplementedError):
    """Raised by `step_quality` where the environment has no reliable step measure (paper, limits)."""


class Env(ABC):
    """One episode at a time. A subclass takes its frozen config dataclass as the only constructor argument.

    Class attributes: `name` (registry key), `title` (in figures; "": the name), `Config` (the frozen dataclass; it has
    at least `max_turns`, the paper's Tmax, and `show_budget`), `has_step_measure` (False where `step_quality` raises
    NoStepMeasure), `action_names` (all actions as texts where there are few of them, else empty).
    """

    name: str
    title: str = ""
    Config: type
    has_step_measure: bool = True
    action_names: tuple[str, ...] = ()

    def __init__(self, config: Any):
        self.config = config

    @classmethod
    @abstractmethod
    def tasks(cls, config: Any, split: str, n: int) -> tuple[Task, ...]:
        """The first `n` tasks of a split ("train", "valid" or "test"); no task stands in two splits.

        Raises ValueError for an unknown split or where fewer than `n` tasks exist.
        """

    @classmethod
    @abstractmethod
    def demonstrator(cls, config: Any, task: Task, seed: int) -> Callable[[Env], str]:
        """A policy of mixed quality for the tiny base model's demonstrations: called before each turn with the
        environment, it returns the action text. How good it is, is drawn from `seed`: some near expert, some near
        random. It must not change the environment.
        """

    @abstractmethod
    def reset(self, task: Task, seed: int, budget: int | None = None) -> list[dict[str, str]]:
        """Start an episode and return its first chat messages (`[{"role": ..., "content": ...}, ...]`).

        budget: the number of turns this episode may take (default `config.max_turns`). The engine enforces it; the
        environment uses it for `step_quality` and, with `config.show_budget`, tells it to the policy.
        """

    @abstractmethod
    def step(self, action: str) -> Step:
        """Play one turn. Text that cannot be parsed is an invalid turn with a message, never an exception."""

    @abstractmethod
    def snapshot(self) -> bytes:
        """The whole state of the episode, randomness and turn counter included."""

    @abstractmethod
    def restore(self, blob: bytes) -> None:
        """Back to a snapshot taken from this environment class with the same config. Needs no `reset` before."""

    def reseed(self, seed: int) -> None:
        """New randomness for all that is still to come, the state itself as it is: continuations from one snapshot must
        not share their chance. Nothing to do where an environment is deterministic, but it must say so.

        Raises NotImplementedError where an environment does not offer it.
        """
        raise NotImplementedError(f"{self.name} cannot be given new randomness: implement reseed(seed)")

    @abstractmethod
    def state_key(self) -> Hashable:
        """Equal for two moments at which the environment is in the same state (GiGPO's anchor, matched states)."""

    def step_quality(self, action: str) -> float:
        """How good `action` is in the present state, in [0, 1]; does not change the state.

        Raises NoStepMeasure where no reliable measure exists.
        """
        raise NoStepMeasure(f"{self.name} has no step measure")

    def value(self) -> float:
        """V*_t of the present state, exact: the largest `step_quality` over all actions with the turns that are left.

        Optional; the oracle-Q process reward (paper §5.1) needs it. Raises NoStepMeasure where it is not known exactly.
        """
        raise NoStepMeasure(f"{self.name} has no exact state value")

    def best_quality(self) -> float:
        """The best step quality in the present state: V* where `value` knows it, else 1, the best a measure can be."""
        return self.value() if type(self).value is not Env.value else 1.0

    def step_loss(self, action: str) -> float:
        """Step quality that `action` loses in the present state, in [0, 1]; an action that loses much leads to an error
        state (§3.3). Does not change the state.

        Default: best quality minus that of the action. An environment in which a sensible action can rate 0 (a look
        around, a first attempt) overrides it and says what counts as going wrong.
        """
        return self.best_quality() - self.step_quality(action)

    def close(self) -> None:  # noqa: B027 (optional)
        """Free what the episode holds (processes, connections). Called by the rollout engine at the end."""


_REGISTRY: dict[str, str] = {
    "deepcoder": "lib.envs.deepcoder:DeepCoder",
    "frozenlake": "lib.envs.frozenlake:FrozenLake",
    "bfcl": "lib.envs.bfcl:BFCL",
    "sql": "lib.envs.sql:Sql",
    "terminal": "lib.envs.terminal:Terminal",
}


def env_class(name: str) -> type[Env]:
    """The environment class for a registry name or for `module:Class` (your own environment)."""
    target = _REGISTRY.get(name, name)
    if ":" not in target:
        raise ValueError(f"unknown environment {name!r}; known: {', '.join(_REGISTRY)}, or 'module:Class'")
    module, _, cls = target.partition(":")
    return getattr(importlib.import_module(module), cls)
