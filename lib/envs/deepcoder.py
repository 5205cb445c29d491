"""DeepCoder-MT: a program, the results of the shown tests, a revision, and so on (paper §3.3, §4.2).

Each turn's program runs on all tests of the task. The agent is told about the shown ones; the held-out ones decide: all
of them passed is solved (reward 1), and the share of them passed is the step quality. So hard-coding the shown tests
gains nothing. `submit` ends the episode. Task sets: "procedural" (lib/envs/deepcoder_tasks.py), "deepcoder" (the
official data, lib/envs/deepcoder_data.py), "humaneval" (lib/envs/humaneval.py). Programs run in the sandbox only.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from lib.envs import deepcoder_data, deepcoder_tasks, humaneval
from lib.envs.base import SPLITS, Env, Step, Task
from lib.envs.deepcoder_answer import read_answer
from lib.envs.deepcoder_config import DeepCoderConfig
from lib.envs.deepcoder_grade import Outcome, grade

__all__ = ["DeepCoder", "DeepCoderConfig"]

LONGEST = 300  # characters of an input, an expected or an actual output in the feedback
_BLOCK = (
    "Reply with one Python program in a ``` block. You see the results of some tests and can revise. To stop: submit."
)
_HELP = {
    "lines": "Write Python lines that turn x into the output, as x=sorted(x).",
    "function": f"Write the function. {_BLOCK}",
    "humaneval": f"Complete the function. {_BLOCK}",
    "stdin": f"Write a program that reads stdin and prints. {_BLOCK}",
}


@lru_cache(maxsize=32)
def _official(config: DeepCoderConfig, split: str, n: int) -> tuple[tuple[str, dict[str, Any]], ...]:
    stream = deepcoder_data.rows(split, config.revision)
    found, bad = deepcoder_data.official_tasks(stream, n, config.shown_tests, config.hidden_tests)
    if bad:
        print(f"deepcoder: {len(bad)} rows left out, the first: {bad[0]}", file=sys.stderr)
    return tuple(found)


class DeepCoder(Env):
    """See the module's docstring. The reward is 1 on solving, else 0."""

    name = "deepcoder"
    title = "DeepCoder-MT"
    Config = DeepCoderConfig

    def __init__(self, config: DeepCoderConfig):
        if not isinstance(config, DeepCoderConfig):
            raise ValueError(f"config of type {type(config).__name__}: must be DeepCoderConfig")
        super().__init__(config)
        self.task: Task | None = None

    @classmethod
    def tasks(cls, config: DeepCoderConfig, split: str, n: int) -> tuple[Task, ...]:
        """The first n tasks of a split. Raises ValueError where fewer exist, ConnectionError without a network."""
        if split not in SPLITS or type(n) is not int or n < 1:
            raise ValueError(f"split={split!r}, n={n!r}: split must be one of {', '.join(SPLITS)}, n at least 1")
        if config.task_set == "procedural":
            found = deepcoder_tasks.procedural_tasks(config.depth, split, n)
        elif config.task_set == "deepcoder":
            found = _official(config, split, n)
        else:
            found = humaneval.tasks(split)
            if n > len(found):
                raise ValueError(f"{n} {split} tasks asked for, HumanEval has {len(found)}")
            found = [(i, data | {"shown": config.shown_tests}) for i, data in found[:n]]
        return tuple(Task(i, data) for i, data in found)

    @classmethod
    def demonstrator(cls, config: DeepCoderConfig, task: Task, seed: int) -> Callable[[Env], str]:
        """Wrong programs first, then the right one, sooner or later: see `deepcoder_tasks.demonstrator`. On HumanEval
        the reference solution with a probability drawn from `seed`, else it without its last line.

        Raises ValueError for the official DeepCoder data, which has no demonstrations.
        """
        if task.data["kind"] == "lines":
            play = deepcoder_tasks.demonstrator(config.depth, task.data, seed)
            return lambda env: play(env.turns)
        if task.data["kind"] != "humaneval":
            raise ValueError(
                f"task {task.id}: the official DeepCoder data has no demonstrations; use a pretrained model"
            )
        rng = random.Random(f"humaneval demonstrator {seed}")
        skill, lines = rng.random(), task.data["solution"].rstrip().split("\n")

        def act(env: Env) -> str:
            return "```python\n" + "\n".join(lines if rng.random() < skill else [*lines[:-1], "    pass"]) + "\n```"

        return act

    def reset(self, task: Task, seed: int, budget: int | None = None) -> list[dict[str, str]]:
        """See Env. `seed` changes nothing: there is no chance in this environment.

        Raises ValueError for a budget outside 1..Tmax and for a task of another environment.
        """
        budget = self.config.max_turns if budget is None else budget
        if not 1 <= budget <= self.config.max_turns:
            raise ValueError(f"budget={budget}: must be in 1..{self.config.max_turns} (max_turns)")
        self._start(task)
        self.budget, self.turns, self.streak, self.over = int(budget), 0, 0, False
        self.programs: list[str] = []
        self.feedback, self.quality = "", 0.0
        data = task.data
        if data["kind"] == "lines":
            pairs = zip(data["inputs"][: data["shown"]], data["outputs"], strict=False)
            lines = [data["hint"].capitalize() + "."] if self.config.hint else []
            text = "\n".join(lines + [f"{self._show(i[0])} -> {self._show(o[0])}" for i, o in pairs])
        else:
            text = data["problem"].rstrip()
            text += f"\n\nStart with:\n```python\n{data['starter']}\n```" if data.get("starter") else ""
            text += f"\n\nThe function's name: {data['fn']}" if data["kind"] == "function" else ""
        return [{"role": "system", "content": _HELP[data["kind"]]}, {"role": "user", "content": text + self._left()}]

    def step(self, action: str) -> Step:
        """See Env. info: `solved`, `invalid`, `quality` (share of held-out tests passed), `passed` (of the shown).

        Raises RuntimeError when the episode is over or its budget is spent, SandboxError where nothing is known.
        """
        self._check_started()
        if self.over or self.turns >= self.budget:
            raise RuntimeError(f"the episode is over after {self.turns} of {self.budget} turns: call reset or restore")
        kind, code = read_answer(action, self.task.data["kind"])
        self.turns += 1
        self.streak = self.streak + 1 if kind == "invalid" else 0
        shown, solved, text = [], False, ""
        if kind == "program":
            shown, hidden = self._grade(code)
            self.programs.append(code)
            self.quality = sum(o.passed for o in hidden) / len(hidden)
            solved = self.over = self.quality == 1.0
            self.feedback = text = "Solved." if solved else self._feedback(shown)
        elif kind == "invalid":
            self.over = self.streak >= self.config.max_invalid
            self.feedback = text = f"No program found. {_HELP[self.task.data['kind']]}"
        else:
            self.over = True
        info = {"solved": solved, "invalid": kind == "invalid", "passed": sum(o.passed for o in shown)}
        info["quality"] = self.quality if kind == "program" else 0.0
        return Step(text + ("" if self.over else self._left()), float(solved), self.over, info)

    def snapshot(self) -> bytes:
        """See Env. Compressed JSON: the task, the programs so far, what the last turn gave, the counters."""
        self._check_started()
        state = [self.task.id, self.task.data, self.programs, self.feedback, self.quality]
        state += [self.budget, self.turns, self.streak, self.over]
        return zlib.compress(json.dumps(state, separators=(",", ":")).encode(), 1)

    def restore(self, blob: bytes) -> None:
        """See Env. Raises ValueError for bytes that are not a snapshot, or are one with a larger budget than Tmax."""
        try:
            name, data, programs, feedback, quality, budget, turns, streak, over = json.loads(zlib.decompress(blob))
        except (zlib.error, TypeError, ValueError) as error:
            raise ValueError(f"not a DeepCoder snapshot: {blob[:40]!r}") from error
        if budget > self.config.max_turns:
            raise ValueError(f"snapshot with a budget of {budget} turns, max_turns is {self.config.max_turns}")
        self._start(Task(name, data))
        self.programs, self.feedback, self.quality = programs, feedback, quality
        self.budget, self.turns, self.streak, self.over = budget, turns, streak, over

    def reseed(self, seed: int) -> None:
        """See Env. Nothing to do: what a program gives is settled, chance within it is seeded by the sandbox."""
        self._check_started()

    def state_key(self) -> tuple[str, str]:
        """The task and a hash of what the last turn told ("" before the first). Two programs that the shown tests do
        not tell apart lead to the same state; earlier programs and the turn are left out, since with them hardly any
        two visits would match (GiGPO's anchors, arXiv 2505.10978)."""
        self._check_started()
        return self.task.id, hashlib.sha256(self.feedback.encode()).hexdigest()[:16] if self.feedback else ""

    def step_quality(self, action: str) -> float:
        """Share of held-out tests that the program passes (§3.3); for submit that of the last program, for an answer
        without a program 0."""
        self._check_started()
        kind, code = read_answer(action, self.task.data["kind"])
        if kind == "program":
            hidden = self._grade(code)[1]
            return sum(o.passed for o in hidden) / len(hidden)
        return self.quality if kind == "submit" else 0.0

    def step_loss(self, action: str) -> float:
        """Going wrong is: 1 for an answer without a program and for one that crashes on a test, else the share of
        held-out tests that the program before passed and this one does not. A first program that runs loses nothing,
        however wrong, nor does submit, which keeps the last program (and ends the episode)."""
        self._check_started()
        kind, code = read_answer(action, self.task.data["kind"])
        if kind != "program":
            return float(kind == "invalid")
        shown, hidden = self._grade(code)
        if any(o.crashed for o in shown + hidden):
            return 1.0
        return max(0.0, self.quality - sum(o.passed for o in hidden) / len(hidden)) if self.programs else 0.0

    def _start(self, task: Task) -> None:
        missing = {"kind", "shown", "fn"} - task.data.keys()
        if missing or task.data["kind"] not in _HELP:
            raise ValueError(f"task {task.id} is not a DeepCoder task: {', '.join(missing) or task.data['kind']}")
        self.task = task
        self._show = deepcoder_tasks.compact if task.data["kind"] == "lines" else repr

    def _check_started(self) -> None:
        if self.task is None:
            raise RuntimeError("no episode: call reset or restore first")

    def _grade(self, code: str) -> tuple[list[Outcome], list[Outcome]]:
        outcomes = grade(self.task.data, code, self.config.limits, self._show)
        shown = min(self.task.data["shown"], len(outcomes) - 1)
        return outcomes[:shown], outcomes[shown:]

    def _feedback(self, shown: list[Outcome]) -> str:
        failed = [o for o in shown if not o.passed]
        lines = [
            f"Passed {len(shown) - len(failed)} of {len(shown)}" + (", but not all hidden tests." * (not failed) or ".")
        ]
        for o in failed[: self.config.shown_failures]:
            if self.task.data["kind"] == "lines":
                lines += [f"{_cut(o.input)} -> {_cut(o.got)}"]
            else:
                lines += [f"Input: {_cut(o.input)}", f"Expected: {_cut(o.expected)}", f"Got: {_cut(o.got)}"]
        return "\n".join(lines)

    def _left(self) -> str:
        n = self.budget - self.turns
        return f"\nYou have {n} turn{'s' * (n != 1)} left." if self.config.show_budget else ""


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
