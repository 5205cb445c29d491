"""Interaction budgets during training: full, a curriculum, or BudgetMix (§5.2).

A sampler answers one question: how many turns may each task of this update take? It keeps no state, so that a resumed
run draws what an uninterrupted one would have drawn. The budget belongs to the task instance: all episodes of a group
share it, so that the group's rewards can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def grid_budgets(grid: float, t_max: int) -> list[int]:
    """The budgets T = ceil(f * Tmax) for f = grid, 2 * grid, …, 1 (exact integers, duplicates kept).

    Raises ValueError where the grid does not divide 1.
    """
    n = round(1 / grid) if grid > 0 else 0
    if n < 1 or abs(n * grid - 1) > 1e-9:
        raise ValueError(f"budget grid {grid}: 1 / grid must be a whole number, for example 0.05, 0.1, 0.25 or 0.5")
    return [-(-i * t_max // n) for i in range(1, n + 1)]


@dataclass(frozen=True)
class Fixed:
    """Every episode gets the share `fraction` of Tmax, rounded up; 1.0 is standard full-budget training."""

    fraction: float = 1.0

    def __post_init__(self):
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction {self.fraction}: it must be in (0, 1]")

    def budgets(self, seed: int, update: int, n: int, t_max: int) -> np.ndarray:
        """The same budget for each of the n tasks, in turns: (n,), at least 1."""
        return np.full(n, max(1, int(np.ceil(self.fraction * t_max - 1e-9))))


@dataclass(frozen=True)
class Staged:
    """A curriculum for all tasks at once (ScalingInter-RL, arXiv 2509.08755): stage i, of `every` updates, allows the
    share `fractions[i]` of Tmax; the last stage lasts until the end."""

    fractions: tuple[float, ...] = (0.25, 0.5, 1.0)
    every: int = 50

    def __post_init__(self):
        if not self.fractions or self.every < 1:
            raise ValueError(f"Staged{self.fractions} every {self.every}: at least one stage of at least one update")
        for f in self.fractions:
            Fixed(f)

    def budgets(self, seed: int, update: int, n: int, t_max: int) -> np.ndarray:
        """The budget of this update's stage for each of the n tasks, in turns: (n,)."""
        stage = min(update // self.every, len(self.fractions) - 1)
        return Fixed(self.fractions[stage]).budgets(seed, update, n, t_max)


@dataclass(frozen=True)
class BudgetMix:
    """Each task instance draws its budget uniformly from the grid of Tmax (§5.2; the paper's grid is 10 %)."""

    grid: float = 0.1

    def __post_init__(self):
        grid_budgets(self.grid, 1)

    def budgets(self, seed: int, update: int, n: int, t_max: int) -> np.ndarray:
        """A draw for each of the n tasks, in turns: (n,). The same seed and update give the same draws."""
        rng = np.random.default_rng([seed, update, 2])
        return rng.choice(grid_budgets(self.grid, t_max), size=n)


Sampler = Fixed | Staged | BudgetMix
