"""Playing an environment that may be broken: each turn is checked, and what is wrong is said in words."""

from __future__ import annotations

import math
from collections.abc import Hashable
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

import numpy as np

from lib.envs.base import Env, Step, Task
from lib.rollout import Job

ODD_TEXTS = ("", "?!", "\x00\ufffd\u200b", "([{'\"`\\", "no idea " * 500, "9" * 5000, "[f(x=", "{{ 1/0 }} {0} %s %n")


class Problem(Exception):
    """What is wrong, in words."""


class Subject(NamedTuple):
    """What is checked. tasks: of each split; scripts: (job, action texts), made by the demonstrator's check."""

    cls: type[Env]
    config: Any
    n: int
    tasks: dict[str, tuple[Task, ...]]
    scripts: list[tuple[Job, list[str]]]

    def start(self, job: Job) -> Any:
        """A new environment with the episode started."""
        env = self.cls(self.config)
        env.reset(job.task, job.seed, job.budget)
        return closing(env)


def need(condition: Any, problem: str) -> None:
    """Raises Problem where the condition does not hold."""
    if not condition:
        raise Problem(problem)


def play_turn(env: Env, text: str) -> tuple[Step, bytes, Hashable]:
    """Play a turn and check what it gives; returns the step, then snapshot and state key after it."""
    at = f" (action {text[:40]!r})"
    try:
        step = env.step(text)
    except Exception as e:
        raise Problem(f"step raised {type(e).__name__}: {e}; bad text must be an invalid turn{at}") from e
    need(isinstance(step, Step), f"step returned {type(step).__name__}, not Step{at}")
    need(isinstance(step.observation, str), f"the observation is {type(step.observation).__name__}, not a text{at}")
    number = isinstance(step.reward, (int, float, np.number)) and math.isfinite(step.reward)
    need(number, f"the reward {step.reward!r} is not a finite number{at}")
    for key, value in [("done", step.done)] + [(k, step.info.get(k)) for k in ("solved", "invalid")]:
        need(isinstance(value, (bool, np.bool_)), f"{key!r} is {value!r}, not True or False{at}")
    need(step.done or not step.info["solved"], f"a turn is solved, but the episode is not done{at}")
    need(not (step.info["solved"] and step.info["invalid"]), f"a turn is both solved and invalid{at}")
    need(step.done or not step.info["invalid"] or step.observation, f"an invalid turn gives no message{at}")
    blob, key = env.snapshot(), env.state_key()
    need(isinstance(blob, bytes), f"snapshot returned {type(blob).__name__}, not bytes")
    try:
        hash(key)
    except TypeError as e:
        raise Problem(f"state_key {key!r:.80} is not hashable: use a tuple, text or number") from e
    return step, blob, key


def play(s: Subject, *scripts: tuple[Job, list[str]]) -> list[list[tuple]]:
    """For each script (step, snapshot, state key) after each turn; several are played side by side, turn by turn."""
    out: list[list[tuple]] = [[] for _ in scripts]
    with ExitStack() as stack:
        envs = [stack.enter_context(s.start(job)) for job, _ in scripts]
        for turn in range(max(len(texts) for _, texts in scripts)):
            for (job, texts), env, seen in zip(scripts, envs, out, strict=True):
                if turn < min(job.budget, len(texts)) and not (seen and seen[-1][0].done):
                    seen.append(play_turn(env, texts[turn]))
    return out
