"""States to go back to: the environment's snapshot and the very tokens that stood before the action."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lib.episode import End, Episode

if TYPE_CHECKING:  # it loads torch, which a reader of tables does not need
    from lib.policies.hf import HFPolicy


@dataclass(frozen=True)
class State:
    """A moment before an action.

    source: whose trajectories it is from ("base" or "rl"). task, sample: of that trajectory. turn: number t of the
    action to come, from 1. budget: T of the episode in turns. tokens: everything before the action, as it was sampled.
    snapshot: for `Env.restore`. loss: step quality lost by the action before (NaN where not asked for).
    """

    source: str
    task: str
    sample: int
    turn: int
    budget: int
    tokens: list[int]
    snapshot: bytes
    loss: float = float("nan")

    @property
    def name(self) -> str:
        return f"{self.source}/{self.task}/{self.sample}/{self.turn}"


def stable_seed(*parts: object) -> int:
    """63 bits from the text of `parts`, the same on every machine."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def tokens_before(episode: Episode, turn: int) -> list[int]:
    """All token ids before the action of turn number `turn` (from 0): never tokenised anew."""
    before = [token for t in episode.turns[:turn] for token in t.context + t.action]
    return before + list(episode.turns[turn].context)


def state_at(source: str, episode: Episode, turn: int, loss: float = float("nan")) -> State:
    """The state before turn number `turn` (from 0). Raises ValueError where the episode was stored without states."""
    t = episode.turns[turn]
    if not t.state:
        raise ValueError(f"episode {episode.task}/{episode.sample} has no snapshots: roll out with states=True")
    tokens = tokens_before(episode, turn)
    return State(source, episode.task, episode.sample, turn + 1, episode.budget, tokens, t.state, loss)


def shuffled_turns(
    episodes: Iterable[Episode], seed: int, *key: object, last: bool = True
) -> Iterator[tuple[str, Iterator[tuple[Episode, int]]]]:
    """For each task, in the order of ids, its (episode, turn number from 0) in random order: all visits of a state are
    equally likely to come first. Episodes that the infrastructure broke are left out. last: also last turns.
    """
    by_task: dict[str, list[tuple[Episode, int]]] = {}
    for e in episodes:
        turns = by_task.setdefault(e.task, [])
        if e.end is not End.ERROR:
            turns += [(e, i) for i in range(len(e.turns) - (not last))]
    for task in sorted(by_task):
        turns = by_task[task]
        order = np.random.default_rng(stable_seed(seed, *key, task)).permutation(len(turns))
        yield task, (turns[i] for i in order)


def draw_states(episodes: Iterable[Episode], source: str, per_task: int, seed: int) -> list[State]:
    """`per_task` different visits of each task's trajectories, uniformly. Raises ValueError where a task has fewer."""
    out = []
    for task, turns in shuffled_turns(episodes, seed, source):
        found = [state_at(source, e, i) for (e, i), _ in zip(turns, range(per_task), strict=False)]
        if len(found) < per_task:
            raise ValueError(f"{per_task} states of task {task} asked for, its {source} episodes have {len(found)}")
        out += found
    return out


def check_same_tokens(a: HFPolicy, b: HFPolicy) -> None:
    """Raises ValueError unless both policies read the same tokens and are sampled under the same limits."""
    if a.tokenizer.get_vocab() != b.tokenizer.get_vocab() or a.chat.stop_ids != b.chat.stop_ids:
        raise ValueError("the two policies have different vocabularies: they cannot be compared at the same tokens")
    if a.max_action_tokens != b.max_action_tokens:
        raise ValueError(f"max_action_tokens {a.max_action_tokens} and {b.max_action_tokens}: they must be the same")
