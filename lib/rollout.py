"""The multi-turn rollout engine: many episodes side by side, token-in/token-out, a budget for each.

What was sampled is what is stored, trained on and scored: the tokens of an episode only grow (lib/policies/chat.py).
An episode is a function of (policy weights, task, sample, base seed, budget) and not of the batch it was played in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lib.envs.base import Env, NoStepMeasure, Task
from lib.episode import End, Episode, Turn


@dataclass(frozen=True)
class Job:
    """One episode to be played: a task, the number of the sample, the budget T in turns, and the base seed."""

    task: Task
    sample: int
    budget: int
    base_seed: int = 0

    @property
    def seed(self) -> int:
        """63 bits from (base seed, task, sample): all randomness of the episode, environment and sampling."""
        text = f"{self.base_seed}/{self.task.id}/{self.sample}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def jobs(tasks: Iterable[Task], samples: int, budget: int, base_seed: int = 0) -> list[Job]:
    """`samples` episodes of each task, all with the same budget."""
    if samples < 1 or budget < 1:
        raise ValueError(f"{samples} samples with a budget of {budget}: both must be at least 1")
    return [Job(t, s, budget, base_seed) for t in tasks for s in range(samples)]


class _Play:
    """An episode under way."""

    def __init__(self, env: Env, job: Job, quality: bool, states: bool):
        self.env, self.job, self.quality, self.states = env, job, quality, states
        self.rng = np.random.default_rng([job.seed, 1])
        self.turns: list[Turn] = []
        self.length = 0
        self.end: End | None = None
        self.error = ""
        self.context: list[int] = []

    def start(self, chat) -> None:
        self._guard(lambda: self._put(chat.prompt(self.env.reset(self.job.task, self.job.seed, self.job.budget))))

    def _put(self, tokens: list[int]) -> None:
        self.context = tokens
        self.length += len(tokens)

    def _guard(self, call) -> None:
        try:
            call()
        except NoStepMeasure:
            raise
        except Exception as e:  # an infrastructure error ends the episode as `error` and is counted, never a reward
            self.end, self.error = End.ERROR, f"{type(e).__name__}: {e}"

    def turn(self, chat, action: list[int], logprobs: list[float]) -> None:
        self._guard(lambda: self._turn(chat, action, logprobs))

    def _turn(self, chat, action: list[int], logprobs: list[float]) -> None:
        text = chat.text(action)
        key = repr(self.env.state_key())
        quality, value = self._measure(text)
        state = self.env.snapshot() if self.states else b""
        observation, reward, done, info = self.env.step(text)
        invalid = bool(info["invalid"])
        self.turns.append(
            Turn(self.context, action, logprobs, text, float(reward), invalid, quality, key, state, value)
        )
        self.length += len(action)
        if done:
            self.end = End.SOLVED if info["solved"] else End.INVALID if invalid else End.FAILED
        elif len(self.turns) == self.job.budget:
            self.end = End.BUDGET
        else:
            self._put(chat.between(action, observation))

    def _measure(self, text: str) -> tuple[float, float]:
        """Step quality of the action and exact value of the state; NaN where not asked for, or no exact value."""
        if not self.quality:
            return float("nan"), float("nan")
        exact = type(self.env).value is not Env.value
        return float(self.env.step_quality(text)), float(self.env.value()) if exact else float("nan")

    def episode(self) -> Episode:
        reward = float("nan") if self.end is End.ERROR else sum(t.reward for t in self.turns)
        j = self.job
        return Episode(self.env.name, j.task.id, j.sample, j.seed, j.budget, self.turns, self.end, reward, self.error)


def rollout(
    policy: Any,
    env_class: type[Env],
    config: Any,
    todo: Sequence[Job],
    *,
    quality: bool = False,
    states: bool = False,
    batch_size: int = 256,
) -> list[Episode]:
    """Play `todo` with `policy` and return the episodes in its order; all of them, however they ended.

    quality: ask the environment's `step_quality` for each action (raises NoStepMeasure where there is none).
    states: store the snapshot before each action, so that analyses can go back there.
    batch_size: at most so many episodes side by side, fewer where the policy has no room for them; it changes speed
    and memory, not the result.
    """
    for j in todo:
        if not 1 <= j.budget <= config.max_turns:
            raise ValueError(f"budget {j.budget} of task {j.task.id}: allowed is 1 to Tmax = {config.max_turns}")
    out: list[Episode] = []
    batch_size = min(batch_size, policy.room())
    for start in range(0, len(todo), batch_size):
        plays = [_Play(env_class(config), j, quality, states) for j in todo[start : start + batch_size]]
        try:
            _play(policy, plays)
        finally:
            for p in plays:
                p.env.close()
        out += [p.episode() for p in plays]
    return out


def _play(policy: Any, plays: list[_Play]) -> None:
    for p in plays:
        p.start(policy.chat)
    session, ready = policy.session(), list(range(len(plays)))
    while True:
        for i in ready:
            p = plays[i]
            if p.end is None and p.length + policy.max_action_tokens > policy.max_context:
                p.end = End.BUDGET if p.turns else End.ERROR
                p.error = f"context full: {p.length} of {policy.max_context} tokens"
            if p.end is None:
                session.add(i, p.context, p.rng)
        found = session.poll()  # the engine decides whose turns end together: all, or each as it finishes
        if not found:
            return
        for i, action, logprobs in found:
            plays[i].turn(policy.chat, action, logprobs)
        ready = [i for i, *_ in found]
