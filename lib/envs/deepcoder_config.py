"""The configuration of DeepCoder-MT."""

from __future__ import annotations

from dataclasses import dataclass

from lib.envs.deepcoder_data import REVISION
from lib.sandbox import Limits

TASK_SETS = ("procedural", "deepcoder", "humaneval")


@dataclass(frozen=True)
class DeepCoderConfig:
    """What is programmed. Raises ValueError for any value that is not allowed."""

    task_set: str = "procedural"
    """"procedural", "deepcoder" or "humaneval"."""
    depth: int = 2
    """Procedural: most operations of a function, 1 to 4."""
    hint: bool = True
    """Procedural: tell the operations' families in order ("Cut, then reduce."), the part of a problem statement.
    Without it a tiny policy's first programs are hardly better than random ones."""
    max_turns: int = 10
    """Tmax: turns of a full-budget episode."""
    show_budget: bool = False
    """Tell the policy how many turns are left. Hidden by default: then one rollout at Tmax serves every T."""
    max_invalid: int = 3
    """That many answers in a row without a program end the episode."""
    shown_tests: int = 3
    """Official sets: tests the agent is told about (procedural tasks show 3 of 11)."""
    hidden_tests: int = 15
    """Official set "deepcoder": at most so many tests are held out, those with the longest inputs."""
    shown_failures: int = 1
    """Failed shown tests described in the feedback, the first ones. One keeps ten turns short; official sets bear 3."""
    wall_s: float = 2.0
    """Seconds a test may take. The usual graders of the official data allow 6 to 12."""
    memory_mb: int = 512
    """Address space of a program, the interpreter included."""
    revision: str = REVISION
    """Commit of the official data set."""

    def __post_init__(self):
        if self.task_set not in TASK_SETS:
            raise ValueError(f"task_set={self.task_set!r}: must be one of {', '.join(TASK_SETS)}")
        for field, low in (("depth", 1), ("max_turns", 1), ("max_invalid", 1), ("shown_tests", 0), ("hidden_tests", 1),
                           ("shown_failures", 0), ("memory_mb", 64)):  # fmt: skip
            value = getattr(self, field)
            if type(value) is not int or value < low:
                raise ValueError(f"{field}={value!r}: must be an integer of at least {low}")
        if self.depth > 4 or type(self.show_budget) is not bool or not self.wall_s > 0:
            raise ValueError(f"depth={self.depth}, show_budget={self.show_budget!r}, wall_s={self.wall_s}: not allowed")

    @property
    def limits(self) -> Limits:
        """Of the sandbox. After two tests beyond the time limit a program's other tests count as failed."""
        output = 2 << 20 if self.task_set == "deepcoder" else 1 << 16
        return Limits(self.wall_s, self.wall_s, self.memory_mb << 20, output, give_up=2)
