"""Playing on from stored states: the same tokens, the same snapshot, a new policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lib.analyses.states import State, stable_seed
from lib.envs.base import Env, Task
from lib.episode import End, Episode
from lib.rollout import Job, _Play, _play

if TYPE_CHECKING:  # it loads torch, which a reader of tables does not need
    from lib.policies.hf import HFPolicy


class _Continued(_Play):
    """An episode that starts in a stored state with what is left of its budget."""

    def __init__(self, env: Env, state: State, sample: int, seed: int):
        # The seed is one of (state, sample): samples differ in the environment's chance, policies share it.
        super().__init__(env, Job(Task(state.name, {}), sample, state.budget - state.turn + 1, seed), False, False)
        self.state = state

    def start(self, chat) -> None:
        self.env.restore(self.state.snapshot)
        self.env.reseed(stable_seed(self.job.seed, "environment"))
        self._put(list(self.state.tokens))


def continue_from(
    policy: HFPolicy, env_class: type[Env], config: Any, states: Sequence[State], samples: int, seed: int,
    batch_size: int = 64,
) -> list[list[Episode]]:  # fmt: skip
    """Play each state on to the end, `samples` times: episodes (states, samples) of the turns that were added.

    The budget is what the state's episode had left. Sample j from a state meets the same chance whichever policy plays
    (`Env.reseed`) and another one than sample k. Raises RuntimeError when an episode broke for infrastructure reasons,
    NotImplementedError where the environment cannot be given new randomness.
    """
    order = sorted(range(len(states)), key=lambda i: len(states[i].tokens))  # little padding
    todo = [(i, k) for i in order for k in range(samples)]
    out: list[list[Episode]] = [[] for _ in states]
    batch_size = min(batch_size, policy.room())
    for start in range(0, len(todo), batch_size):
        chunk = todo[start : start + batch_size]
        plays = [_Continued(env_class(config), states[i], k, seed) for i, k in chunk]
        try:
            _play(policy, plays)
        finally:
            for play in plays:
                play.env.close()
        for (i, _), play in zip(chunk, plays, strict=True):
            episode = play.episode()
            if episode.end is End.ERROR:
                raise RuntimeError(f"continuation of {states[i].name} failed: {episode.error}")
            out[i].append(episode)
    return out
