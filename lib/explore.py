"""The explorer's data: which episodes are stored, and what there is to know about each of their steps.

Nothing is trained or rolled out here but what `continue_here` is asked for: steps are only found in the cache
(`found_only`), and one that is not there is reported with the command that makes it. Drawing: lib/explore_view.py;
widgets: lib/explore_widgets.py, notebooks/explore.ipynb.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from lib import stages
from lib.analyses.continuation import continue_from
from lib.analyses.likelihood import action_logprobs
from lib.analyses.sampling import text_probabilities
from lib.analyses.states import State, check_same_tokens, state_at
from lib.config import Experiment
from lib.envs.base import Env, NoStepMeasure, env_class
from lib.episode import End, Episode
from lib.policies.hf import HFPolicy
from lib.profiles import DEFAULT_SEEDS
from lib.store import NotMade, found_only

SOURCES = ("rl", "base")  # whose trajectories
_EPS = 1e-9


@dataclass(frozen=True)
class Checkpoint:
    """A trained policy of an experiment: the last weights of a run, or (update) one of its snapshots."""

    x: Experiment
    arm: str
    seed: int
    update: int | None = None

    @property
    def label(self) -> str:
        return f"seed {self.seed}, " + ("last update" if self.update is None else f"update {self.update}")

    @property
    def base_arm(self) -> str:
        """The base policy that the run started from."""
        return "base_shown" if self.x.shows_budget(self.arm) and not self.x.env_config.show_budget else "base"

    @property
    def command(self) -> str:
        """What makes its episodes and those of its base policy."""
        x = self.x
        if self.update is None:
            return f"make reproduce PROFILE={x.profile} SEEDS={max(self.seed + 1, DEFAULT_SEEDS.get(x.profile, 2))}"
        which = f"experiment({x.profile!r}, {x.env!r}), {self.arm!r}, {self.seed}, update={self.update}"
        imports = "from lib.profiles import experiment; from lib.stages import episodes_step"
        return f'.venv/bin/python -c "{imports}; episodes_step({which})"'


def checkpoints(x: Experiment, arm: str) -> list[Checkpoint]:
    """The checkpoints of an arm: of the seeds that `make reproduce` trains and of others that are stored, the last
    weights first, then the snapshots that a stored run has. Episodes are not stored for all of them (`is_stored`)."""
    pattern = re.compile(rf"train-{re.escape(x.name)}-{re.escape(arm)}-s(\d+)-[0-9a-f]{{12}}")
    names = (p.parent.name for p in stages.RUNS.glob("train-*/DONE"))
    seeds = {int(m[1]) for m in map(pattern.fullmatch, names) if m} | set(range(DEFAULT_SEEDS.get(x.profile, 2)))
    out = []
    for seed in sorted(seeds):
        out.append(Checkpoint(x, arm, seed))
        try:
            with found_only():
                snapshots = stages.train_step(x, arm, seed) / "snapshots"
        except NotMade:
            continue
        out += [
            Checkpoint(x, arm, seed, int(p.name.removeprefix("update-"))) for p in sorted(snapshots.glob("update-*"))
        ]
    return out


def is_stored(c: Checkpoint) -> bool:
    """Whether the episodes of a checkpoint and of its base policy are in the step cache."""
    u = "" if c.update is None else f"-u{c.update}"
    folders = stages.RUNS.glob(f"episodes-{c.x.name}-{c.arm}-s{c.seed}-test{u}-{'[0-9a-f]' * 12}")
    if not any(folders):  # none of its name: no need to work out its key, which takes a moment
        return False
    try:
        with found_only():
            stages.episodes_step(c.x, c.base_arm)
            stages.episodes_step(c.x, c.arm, c.seed, update=c.update)
        return True
    except NotMade:
        return False


@dataclass(frozen=True)
class Pair:
    """A trained policy and the base policy that it started from, loaded, with their stored episodes on test tasks.

    policies, episodes: by source, "rl" or "base"; episodes by task and sample. config: of the environment.
    """

    checkpoint: Checkpoint
    config: Any
    policies: dict[str, HFPolicy]
    episodes: dict[str, dict[tuple[str, int], Episode]]

    @property
    def env_class(self) -> type[Env]:
        return env_class(self.checkpoint.x.env)

    @property
    def has_measure(self) -> bool:
        return self.env_class.has_step_measure

    def tasks(self, source: str) -> dict[str, list[Episode]]:
        """The episodes of each task, in the order in which they are stored."""
        out: dict[str, list[Episode]] = {}
        for e in self.episodes[source].values():
            out.setdefault(e.task, []).append(e)
        return out


@lru_cache(maxsize=8)
def open_pair(c: Checkpoint) -> Pair:
    """Load a checkpoint from the step cache. Raises NotMade, which names the command, where something is missing."""
    x = c.x
    try:
        with found_only():
            folders = {"rl": stages.train_step(x, c.arm, c.seed), "base": stages.base_step(x, c.base_arm)}
            played = {
                "rl": stages.episodes(x, c.arm, c.seed, **({} if c.update is None else {"update": c.update})),
                "base": stages.episodes(x, c.base_arm),
            }
    except NotMade as error:
        raise NotMade(f"{x.env}, {c.arm}, {c.label}: {error}. To make it, run:  {c.command}") from None
    hf = replace(x.policy, engine="hf", server="")
    policies = {s: hf.load(stages.weights(x, folders[s], c.update if s == "rl" else None)) for s in SOURCES}
    check_same_tokens(policies["base"], policies["rl"])
    by_name = {s: {(e.task, e.sample): e for e in played[s]} for s in SOURCES}
    return Pair(c, x.arm_env_config(c.arm), policies, by_name)


def steps(pair: Pair, source: str, episode: Episode) -> pd.DataFrame:
    """What there is to know about each step of an episode, one row a turn.

    Columns: turn (from 1), turns_left, action (text), reward, invalid, quality, best (`Env.best_quality`), loss
    (`Env.step_loss`), error (it loses at least the experiment's delta, §3.3), nll_base, nll_rl (NLL of the action under
    each policy, nats), llr (log p_RL − log p_base). Quality, best and loss are NaN in an environment without a step
    measure. The log-probabilities of the policy that played are the stored ones, the other's are scored.
    """
    losses = _losses(pair, episode)
    rows = []
    for i, t in enumerate(episode.turns):
        best, loss = losses[i]
        error = loss >= pair.checkpoint.x.analysis.delta - _EPS
        rows.append((i + 1, episode.budget - i, t.text, t.reward, t.invalid, t.quality, best, loss, error))
    columns = ["turn", "turns_left", "action", "reward", "invalid", "quality", "best", "loss", "error"]
    df = pd.DataFrame(rows, columns=columns)
    other = "base" if source == "rl" else "rl"
    own = np.array([sum(t.logprobs) for t in episode.turns])
    scored = action_logprobs(pair.policies[other], [episode])[0] if rows else own
    df[f"nll_{source}"], df[f"nll_{other}"] = -own, -scored
    df["llr"] = df.nll_base - df.nll_rl
    return df


def _losses(pair: Pair, episode: Episode) -> list[tuple[float, float]]:
    """Best quality of the state and quality that the action lost, of each turn."""
    if not pair.has_measure:
        return [(math.nan, math.nan)] * len(episode.turns)
    env, out = pair.env_class(pair.config), []
    try:
        for i, t in enumerate(episode.turns):
            env.restore(state_at("", episode, i).snapshot)
            out.append((env.best_quality(), env.step_loss(t.text)))
    finally:
        env.close()
    return out


def error_states(pair: Pair, episode: Episode) -> list[int]:
    """The turns (from 1) whose state follows an error of the policy (§3.3, "visited"); an error that ended the episode
    leaves none. Empty in an environment without a step measure."""
    delta = pair.checkpoint.x.analysis.delta
    losses = [] if episode.end is End.ERROR else _losses(pair, episode)[:-1]
    return [i + 2 for i, (_, loss) in enumerate(losses) if loss >= delta - _EPS]


def next_error_state(pair: Pair, source: str, task: str, sample: int, turn: int) -> tuple[str, int, int] | None:
    """Task, sample and turn of the first error state after this moment: in this episode, else in the next one that has
    one, from the last to the first. None where no episode has one. Raises NoStepMeasure."""
    if not pair.has_measure:
        raise NoStepMeasure(f"{pair.checkpoint.x.env} has no step measure, so no step of it is known to be an error")
    for e, first in _from(list(pair.episodes[source].values()), (task, sample), turn):
        if found := [t for t in error_states(pair, e) if t > first]:
            return e.task, e.sample, found[0]
    return None


def _from(episodes: list[Episode], here: tuple[str, int], turn: int) -> Iterator[tuple[Episode, int]]:
    at = next(i for i, e in enumerate(episodes) if (e.task, e.sample) == here)
    yield episodes[at], turn
    for e in episodes[at + 1 :] + episodes[: at + 1]:
        yield e, 0


def moment(pair: Pair, source: str, task: str, sample: int, turn: int) -> State:
    """The state before the action of turn number `turn` (from 1) of a stored episode."""
    return state_at(source, pair.episodes[source][task, sample], turn - 1)


def probabilities(pair: Pair, state: State) -> pd.DataFrame:
    """Probability of each of the environment's action texts under both policies: columns base, rl, and a last row
    "other" for all else. Raises ValueError for an environment that names no action texts."""
    names = pair.env_class.action_names
    p = {s: text_probabilities(pair.policies[s], [state.tokens], names)[0] for s in ("base", "rl")}
    df = pd.DataFrame(p, index=list(names))
    df.loc["other"] = np.maximum(0.0, 1 - df.sum())
    return df


def continue_here(pair: Pair, state: State, who: str, samples: int, seed: int) -> list[Episode]:
    """Let "base" or "rl" play on from a state, `samples` times: as `lib.analyses.continuation.continue_from`, which the
    analysis of error states uses. Raises what that raises."""
    return continue_from(pair.policies[who], pair.env_class, pair.config, [state], samples, seed)[0]
