"""FrozenLake as a conversation: a map in, one of four words out, and exact finite-horizon action values.

Dynamics are gymnasium's (`FrozenLakeEnv.P`). Three public variants of this environment for language models differ:
RAGEN-2 (4x4, frozen share 0.9, random start and goal, slippery with success rate 0.8 by default and 1.0 in its paper's
configuration, turns left shown), rLLM (size 2-9, frozen share 0.6-0.85, not slippery, at most 2*size steps) and ROLL's
GiGPO configuration (not slippery). The default here is nearest to RAGEN-2's; it differs in the frozen share (0.8), in
not telling the turns left, and in asking for one word without `<think>` and `<answer>` tags (they are understood).
States, actions and exact values: lib/envs/frozenlake_mdp.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lib.envs import frozenlake_mdp as mdp
from lib.envs.base import SPLITS, Env, Step, Task
from lib.envs.frozenlake_mdp import ACTIONS, dynamics, q_pi, q_star, q_table, v_star
from lib.envs.frozenlake_text import HELP, OBSERVATIONS, board, parse, rules, turns_left_line

__all__ = ["ACTIONS", "FrozenLake", "FrozenLakeConfig", "dynamics", "q_pi", "q_star", "q_table", "v_star"]

BUCKETS = {"train": range(0, 6), "valid": range(6, 8), "test": range(8, 10)}  # of a map's SHA-256 modulo 10
SPLIT_SEEDS = 10**9  # seeds of split number i start at i * SPLIT_SEEDS
PATIENCE = 20_000  # candidates in a row without a new map after which a split counts as exhausted
NOISE = (0.0, 0.8)  # a demonstrator's share of uniformly random actions is drawn from this range
STREAM_SLIP, STREAM_DEMO = 1, 2  # keep the environment's and the demonstrators' randomness apart


@dataclass(frozen=True)
class FrozenLakeConfig:
    """What FrozenLake is played. Raises ValueError for any value that is not allowed."""

    size: int = 4
    """Rows and columns of the map, at least 2."""
    frozen_share: float = 0.8
    """Probability that a cell other than start and goal is ice and not a hole, in (0, 1]."""
    success_rate: float = 0.8
    """Probability of moving as intended, in (0, 1]; the rest goes in halves to the two perpendicular moves."""
    start: str = "random"
    """"random" or "fixed" (top left)."""
    goal: str = "random"
    """"random" or "fixed" (bottom right)."""
    min_distance: int = 1
    """Maps on which the goal is fewer moves away from the start are left out, at least 1."""
    max_turns: int = 20
    """Tmax: turns of a full-budget episode. Maps on which the goal is further away than that are left out."""
    observation: str = "grid"
    """"grid": the map with the player each turn. "coordinates": the map once, then row and column. "both". "local": row
    and column of player and goal and the four neighbouring cells, no map: short, and a tiny model can read it."""
    show_budget: bool = False
    """Tell the policy how many turns are left. Hidden by default: then one rollout at Tmax serves every T."""
    max_invalid: int = 3
    """That many answers in a row without an action end the episode."""
    task_set: str = "procedural"
    """Only "procedural": FrozenLake has no official task set."""

    def __post_init__(self):
        for field, low in (("size", 2), ("min_distance", 1), ("max_turns", 1), ("max_invalid", 1)):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise ValueError(f"{field}={value!r}: must be an integer of at least {low}")
        for field in ("frozen_share", "success_rate"):
            value = getattr(self, field)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= 1:
                raise ValueError(f"{field}={value!r}: must be a number in (0, 1]")
        if self.task_set == "official":
            raise ValueError("task_set='official': FrozenLake has no official task set, its maps are always generated")
        choices = {"start": ("random", "fixed"), "goal": ("random", "fixed"), "task_set": ("procedural",),
                   "observation": OBSERVATIONS, "show_budget": (False, True)}  # fmt: skip
        for field, allowed in choices.items():
            value = getattr(self, field)
            if type(value) is not type(allowed[0]) or value not in allowed:
                raise ValueError(f"{field}={value!r}: must be one of {', '.join(map(repr, allowed))}")


class FrozenLake(Env):
    """See the module's docstring. The reward is 1 on reaching the goal, else 0."""

    name = "frozenlake"
    title = "FrozenLake"
    Config = FrozenLakeConfig
    action_names = ACTIONS

    def __init__(self, config: FrozenLakeConfig):
        if not isinstance(config, FrozenLakeConfig):
            raise ValueError(f"config of type {type(config).__name__}: must be FrozenLakeConfig")
        super().__init__(config)
        self.desc: tuple[str, ...] = ()  # empty until reset or restore

    @classmethod
    def tasks(cls, config: FrozenLakeConfig, split: str, n: int) -> tuple[Task, ...]:
        """The first n maps of a split, as `Task.data = {"desc": ["SFFH", ...]}`.

        A split has its own seeds, and a map belongs to the one split that its SHA-256 names, so no map stands in two
        splits whatever their sizes. Maps with V*_Tmax(s0) = 0 are left out. Raises ValueError where fewer exist.
        """
        if split not in SPLITS or n < 1:
            raise ValueError(f"split={split!r}, n={n}: split must be one of {', '.join(SPLITS)}, n at least 1")
        found: dict[tuple[str, ...], str] = {}
        seed = last = SPLITS.index(split) * SPLIT_SEEDS
        while len(found) < n:
            if seed - last > PATIENCE:
                raise ValueError(f"{n} {split} maps asked for, only {len(found)} found: use a larger size or fewer")
            desc = mdp.random_map(config.size, config.frozen_share, config.start, config.goal, seed)
            seed += 1
            sha = hashlib.sha256("\n".join(desc).encode()).hexdigest()
            if int(sha, 16) % 10 not in BUCKETS[split] or desc in found:
                continue
            if config.min_distance <= mdp.goal_distance(desc)["".join(desc).index("S")] <= config.max_turns:
                found[desc], last = sha[:8], seed
        ids = (f"{cls.name}-{split}-{i:05d}-{sha}" for i, sha in enumerate(found.values()))
        return tuple(Task(i, {"desc": list(desc)}) for i, desc in zip(ids, found, strict=True))

    @classmethod
    def demonstrator(cls, config: FrozenLakeConfig, task: Task, seed: int) -> Callable[[Env], str]:
        """Plays a uniformly random action with a probability drawn from `seed` out of NOISE, else the first move of a
        shortest way to the goal as if the ice did not slip."""
        rng = np.random.default_rng([STREAM_DEMO, seed])
        noise = rng.uniform(*NOISE)

        def act(env: Env) -> str:
            options = list(range(4)) if rng.random() < noise else mdp.shortest_moves(env.desc, env.position)
            return ACTIONS[options[rng.integers(len(options))]]

        return act

    def reset(self, task: Task, seed: int, budget: int | None = None) -> list[dict[str, str]]:
        """See Env. Raises ValueError for a task of another size or environment and a budget outside 1..Tmax."""
        budget = self.config.max_turns if budget is None else budget
        if not 1 <= budget <= self.config.max_turns:
            raise ValueError(f"budget={budget}: must be in 1..{self.config.max_turns} (max_turns)")
        if seed < 0:
            raise ValueError(f"seed={seed}: must not be negative")
        self._set_map(tuple(task.data.get("desc", ())))
        self.position = "".join(self.desc).index("S")
        self.budget, self.seed, self.turns, self.streak, self.over = int(budget), int(seed), 0, 0, False
        text = rules(self.config.observation, slippery=self.config.success_rate < 1)
        return [{"role": "system", "content": text}, {"role": "user", "content": self._observe(with_map=True)}]

    def step(self, action: str) -> Step:
        """See Env. info: `solved`, `invalid`, `position` (state number). An invalid turn uses a turn and does not move.

        Raises RuntimeError when the episode is over or its budget is spent.
        """
        self._check_started()
        if self.over or self.turns_left < 1:
            raise RuntimeError(f"the episode is over after {self.turns} of {self.budget} turns: call reset or restore")
        a, reward = self.parse(action), 0.0
        self.streak = self.streak + 1 if a is None else 0
        if a is None:
            self.over = self.streak >= self.config.max_invalid
        else:
            ways = self._P[self.position][a]
            # One draw per (seed, turn): the state of the randomness is two integers.
            u = np.random.default_rng([STREAM_SLIP, self.turns, self.seed]).random()
            way = min(int(np.searchsorted(np.cumsum([w[0] for w in ways]), u, side="right")), len(ways) - 1)
            _, self.position, reward, self.over = ways[way]
        self.turns += 1
        solved = reward > 0
        info = {"solved": solved, "invalid": a is None, "position": self.position}
        text = "" if a is not None else f"Invalid. {HELP}\n"
        if not self.over:
            text += self._observe()
        elif a is not None:
            text = "You reached the goal." if solved else "You fell into a hole."
        return Step(text, float(reward), self.over, info)

    parse = staticmethod(parse)

    def snapshot(self) -> bytes:
        """See Env. JSON: map, position, turns used, budget, invalid answers in a row, seed, whether it is over."""
        self._check_started()
        state = [self.desc, self.position, self.turns, self.budget, self.streak, self.seed, self.over]
        return json.dumps(state, separators=(",", ":")).encode()

    def restore(self, blob: bytes) -> None:
        """See Env. Raises ValueError for bytes that are not a snapshot of this configuration."""
        try:
            desc, position, turns, budget, streak, seed, over = json.loads(blob)
            desc = tuple(desc)
        except (TypeError, ValueError) as error:
            raise ValueError(f"not a FrozenLake snapshot: {blob[:80]!r}") from error
        if budget > self.config.max_turns:
            raise ValueError(f"snapshot with a budget of {budget} turns, max_turns is {self.config.max_turns}")
        self._set_map(desc)
        self.position, self.turns, self.budget = position, turns, budget
        self.streak, self.seed, self.over = streak, seed, over

    def reseed(self, seed: int) -> None:
        """See Env. The slips of later turns are those of an episode with this seed. Raises ValueError for seed < 0."""
        self._check_started()
        if seed < 0:
            raise ValueError(f"seed={seed}: must not be negative")
        self.seed = int(seed)

    def state_key(self) -> tuple[str, int]:
        """Map and position. Not the turn: GiGPO's anchors (arXiv 2505.10978) group the visits of a state across turns
        and trajectories, and with the turn in it hardly any two visits would match."""
        return "/".join(self.desc), self.position

    @property
    def turns_left(self) -> int:
        """Turns of the budget not used yet."""
        return self.budget - self.turns

    def q_values(self) -> np.ndarray:
        """Q* of the four actions in the present state with the turns that are left, (4,); 0 once it is over."""
        self._check_started()
        return self._q[0 if self.over else self.turns_left, self.position]

    def value(self) -> float:
        """V* of the present state with the turns that are left."""
        return float(self.q_values().max())

    def step_quality(self, action: str) -> float:
        """Q* of the action (§3.3); for an invalid one the value of staying put a turn, or 0 if it ends the episode."""
        a, q = self.parse(action), self.q_values()
        if a is not None:
            return float(q[a])
        if self.over or self.turns_left < 1 or self.streak + 1 >= self.config.max_invalid:
            return 0.0
        return float(self._q[self.turns_left - 1, self.position].max())

    def _set_map(self, desc: tuple[str, ...]) -> None:
        mdp.check_map(desc, self.config.size)
        self.desc, self._P = desc, dynamics(desc, self.config.success_rate)
        self._q = q_table(desc, self.config.success_rate, self.config.max_turns)

    def _check_started(self) -> None:
        if not self.desc:
            raise RuntimeError("no episode: call reset or restore first")

    def _observe(self, with_map: bool = False) -> str:
        text = board(self.config.observation, self.desc, self.position, with_map)
        return text + turns_left_line(self.turns_left) * self.config.show_budget
