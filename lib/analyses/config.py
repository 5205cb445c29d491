"""The configuration of the analyses (light to import: no torch)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AnalysisConfig:
    """How the analyses of stored episodes are sized. Raises ValueError for any value that is not allowed.

    group: actions sampled from each policy at a state, the paper's G (§3.3). tie: two step qualities that differ by at
    most this much count as equal, in the units of the measure (FrozenLake: probability of success); our choice.
    states_per_task: matched states drawn from each policy's trajectories of a task.
    error_states_per_task: error states of each construction (visited, forced) from each policy's trajectories of a
    task, where so many exist. deltas: a step counts as an error from this loss of step quality on; ascending, error
    states are drawn for the first and filtered for the others. delta: the primary one of them.
    continuations: samples of each policy played on from an error state.
    likelihood_samples: stored trajectories of a task, per policy, that are scored.
    seed: of all draws here.
    """

    group: int = 16
    tie: float = 0.01
    states_per_task: int = 1
    error_states_per_task: int = 1
    deltas: tuple[float, ...] = (0.05, 0.1, 0.2)
    delta: float = 0.1
    continuations: int = 2
    likelihood_samples: int = 4
    seed: int = 0

    def __post_init__(self):
        for name in ("group", "states_per_task", "error_states_per_task", "continuations", "likelihood_samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: it must be at least 1")
        if not 0 <= self.tie < 1:
            raise ValueError(f"tie {self.tie}: it must be in [0, 1)")
        if not self.deltas or list(self.deltas) != sorted(set(self.deltas)) or not 0 < self.deltas[0] <= 1:
            raise ValueError(f"deltas {self.deltas}: they must be ascending, in (0, 1]")
        if self.delta not in self.deltas or self.deltas[-1] > 1:
            raise ValueError(f"delta {self.delta}: it must be one of deltas {self.deltas}, all in (0, 1]")
