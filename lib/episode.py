"""One Episode: what rollouts make, trainers consume, parquet stores and analyses read."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


class End(enum.StrEnum):
    """How an episode ended. Every episode has exactly one of these and all stay in every denominator."""

    SOLVED = "solved"
    FAILED = "failed"  # the environment ended it without success
    BUDGET = "budget"  # out of turns, or out of context
    INVALID = "invalid"  # ended because its actions could not be parsed
    ERROR = "error"  # the infrastructure failed; never a reward of 0, never trained on


@dataclass(frozen=True)
class Turn:
    """One turn: the tokens the environment put before the action, and the action that was sampled.

    context: token ids appended since the last action (for the first turn: the whole prompt).
    action: the sampled token ids, the end-of-turn token included.
    logprobs: log-probability of each action token under the policy that sampled it (nats).
    text: the action as text; reward: of this turn; quality: the environment's step measure of the action in [0, 1],
    NaN where not asked for or not defined.
    key: the state key before the action, as text. state: snapshot before the action (b"" where not asked for).
    value: exact V*_t of the state before the action, NaN where not asked for or not known.
    """

    context: list[int]
    action: list[int]
    logprobs: list[float]
    text: str
    reward: float
    invalid: bool
    quality: float = float("nan")
    key: str = ""
    state: bytes = b""
    value: float = float("nan")


@dataclass(frozen=True)
class Episode:
    """One trajectory of a policy on a task.

    budget: turns it was allowed (T). seed: of the environment and the sampling, derived from (base seed, task, sample).
    reward: sum of the turns' rewards, NaN when `end` is error. error: the message of an infrastructure error.
    """

    env: str
    task: str
    sample: int
    seed: int
    budget: int
    turns: list[Turn]
    end: End
    reward: float
    error: str = ""

    def __post_init__(self):
        if self.end is not End.ERROR and not self.turns:
            raise ValueError(f"episode {self.task}/{self.sample} ended as {self.end} without a turn")
        if len(self.turns) > self.budget:
            raise ValueError(f"episode {self.task}/{self.sample}: {len(self.turns)} turns, budget {self.budget}")
        for t in self.turns:
            if len(t.action) != len(t.logprobs) or not t.action:
                raise ValueError(f"{len(t.action)} action tokens with {len(t.logprobs)} log-probabilities")

    @property
    def solved(self) -> bool:
        return self.end is End.SOLVED

    @property
    def success_turn(self) -> float:
        """The turn (1-based) at which it was solved, inf if never: a success for every T at or above it."""
        return float(len(self.turns)) if self.solved else float("inf")

    def prompt_ids(self) -> list[int]:
        """The tokens before the first action."""
        return list(self.turns[0].context) if self.turns else []

    def completion(self) -> tuple[list[int], list[int], list[float], list[int]]:
        """Everything after the prompt: token ids, mask (1 = sampled by the policy), log-probabilities (0 where the
        mask is 0) and the turn each token belongs to. All four have the same length."""
        ids, mask, logps, turn = [], [], [], []
        for i, t in enumerate(self.turns):
            context = t.context if i else []
            ids += context + t.action
            mask += [0] * len(context) + [1] * len(t.action)
            logps += [0.0] * len(context) + t.logprobs
            turn += [i] * (len(context) + len(t.action))
        return ids, mask, logps, turn


_TURN = pa.struct([
    ("context", pa.list_(pa.int32())), ("action", pa.list_(pa.int32())), ("logprobs", pa.list_(pa.float64())),
    ("text", pa.string()), ("reward", pa.float64()), ("invalid", pa.bool_()), ("quality", pa.float64()),
    ("key", pa.string()), ("state", pa.binary()), ("value", pa.float64()),
])  # fmt: skip
_SCHEMA = pa.schema([
    ("env", pa.string()), ("task", pa.string()), ("sample", pa.int32()), ("seed", pa.uint64()), ("budget", pa.int32()),
    ("n_turns", pa.int32()), ("turns", pa.list_(_TURN)), ("end", pa.string()), ("reward", pa.float64()),
    ("error", pa.string()),
])  # fmt: skip


def save_episodes(episodes: Iterable[Episode], path: str | Path) -> None:
    """Write episodes to a parquet file, complete or not at all."""
    rows = [asdict(e) | {"end": e.end.value, "n_turns": len(e.turns)} for e in episodes]
    part = f"{path}.part{os.getpid()}"
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), part, compression="zstd")
    os.replace(part, path)


def load_episodes(path: str | Path) -> list[Episode]:
    """Read episodes back, in the order in which they were stored."""
    out = []
    for row in pq.read_table(path, schema=_SCHEMA).to_pylist():
        row["turns"] = [Turn(**t) for t in row["turns"]]
        row["end"] = End(row["end"])
        del row["n_turns"]
        out.append(Episode(**row))
    return out


def success_turns(episodes: Iterable[Episode]) -> tuple[list[str], np.ndarray]:
    """Task ids (sorted) and the array (tasks, samples) of success turns, inf where unsolved.

    Raises ValueError when tasks have different numbers of samples or a sample is there twice, since episodes must never
    vanish.
    """
    return _by_task((e.task, e.sample, e.success_turn) for e in episodes)


def read_success_turns(path: str | Path) -> tuple[list[str], np.ndarray]:
    """`success_turns` of a stored file, without reading the tokens."""
    columns = pq.read_table(path, columns=["task", "sample", "n_turns", "end"]).to_pydict().values()
    return _by_task((t, s, n if e == End.SOLVED else float("inf")) for t, s, n, e in zip(*columns, strict=True))


def _by_task(rows: Iterable[tuple[str, int, float]]) -> tuple[list[str], np.ndarray]:
    by_task: dict[str, dict[int, float]] = {}
    for task, sample, turn in rows:
        samples = by_task.setdefault(task, {})
        if sample in samples:
            raise ValueError(f"episode {task}/{sample} is there twice")
        samples[sample] = turn
    sizes = {len(v) for v in by_task.values()}
    if len(sizes) != 1:
        raise ValueError(f"tasks have different numbers of samples: {sorted(sizes)}")
    names = sorted(by_task)
    return names, np.array([[by_task[t][s] for s in sorted(by_task[t])] for t in names], dtype=float)
