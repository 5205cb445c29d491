"""Task panels: the fixed, ordered, hashed lists of tasks that training, validation and test use."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from lib.envs.base import SPLITS, Task, env_class


@dataclass(frozen=True)
class Panel:
    """The tasks of one split, in the order in which everything is paired on them.

    env: registry name of the environment, or `module:Class`. split: "train", "valid" or "test".
    """

    env: str
    split: str
    tasks: tuple[Task, ...]

    def __post_init__(self):
        ids = [t.id for t in self.tasks]
        if not ids or len(set(ids)) != len(ids):
            raise ValueError(f"{self.env} {self.split}: a panel must have tasks and each id once, got {len(ids)} tasks")

    @property
    def hash(self) -> str:
        """SHA-256 (hex) of the tasks' digests in order, the same on every machine."""
        return hashlib.sha256("\n".join(t.digest() for t in self.tasks).encode()).hexdigest()


def panel(env: str, config, split: str, n: int) -> Panel:
    """The first `n` tasks of a split of an environment, in the environment's own order.

    Raises ValueError for an unknown environment or split, a config of another type, n < 1 or more tasks than exist.
    """
    cls = env_class(env)
    if not isinstance(config, cls.Config):
        raise ValueError(f"{env}: config of type {type(config).__name__}, must be {cls.Config.__name__}")
    if split not in SPLITS:
        raise ValueError(f"split {split!r}: must be one of {', '.join(SPLITS)}")
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ValueError(f"n={n!r}: must be an integer of at least 1")
    tasks = cls.tasks(config, split, n)
    if len(tasks) != n:
        raise ValueError(f"{env} {split}: {n} tasks asked for, {len(tasks)} given")
    return Panel(env, split, tuple(tasks))


def check_disjoint(*panels: Panel) -> None:
    """Raises ValueError naming the tasks that stand in two panels: same environment and data, whatever their ids."""
    seen: dict[tuple[type, str], tuple[int, Task]] = {}
    overlaps = []
    for number, p in enumerate(panels):
        for task in p.tasks:
            first, other = seen.setdefault((env_class(p.env), json.dumps(task.data, sort_keys=True)), (number, task))
            if first != number:
                overlaps.append(f"{task.id} ({p.split}) = {other.id} ({panels[first].split})")
    if overlaps:
        more = f" and {len(overlaps) - 10} more" if len(overlaps) > 10 else ""
        raise ValueError(f"{len(overlaps)} tasks stand in two panels: {', '.join(overlaps[:10])}{more}")
