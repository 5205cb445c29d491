"""The expensive steps, each found in the step cache or made: base policy, trained policy, rollouts.

    base_policy(x)                  the model folder of the base policy
    trained_policy(x, arm, seed)    the model folder after training
    episodes(x, arm, seed, split)   rollouts of a policy on a panel, with states and step quality

x is an Experiment (lib/config.py); arm "base" is the base policy and has no seed. Nothing here is computed twice: the
key of a step holds its config, the source of the modules that it uses, the panel, and the key of what it builds on.

A policy that is told how many turns are left (`Arm.show_budget`) starts from a base policy of its own, `base_shown`, of
the same shape, seed and demonstrations, with the turns left in their texts. Otherwise it would meet that
line for the first time in RL, and the comparison would be about that. It is evaluated by new rollouts for each T.
"""

from __future__ import annotations

import json
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from lib.config import BASE_ARMS, ROOT, Experiment
from lib.envs.base import env_class
from lib.episode import Episode, load_episodes, read_success_turns, save_episodes
from lib.metrics.pass_kt import pass_kt, pass_kt_resampled
from lib.panel import Panel, check_disjoint, panel
from lib.store import hash_folder, load_manifest, read_jsonl, run_step
from lib.trainers import ranks

RUNS = ROOT / "results" / "runs"


@lru_cache(maxsize=32)
def train_panel(x: Experiment) -> Panel:
    """The training tasks. Raises ValueError when one of them is also a validation or test task."""
    p = panel(x.env, x.env_config, "train", x.train_tasks)
    check_disjoint(p, probe_panel(x), test_panel(x))
    return p


@lru_cache(maxsize=32)
def probe_panel(x: Experiment) -> Panel:
    """The validation tasks on which training is probed and hyperparameters were chosen; never the test tasks."""
    return panel(x.env, x.env_config, "valid", x.probe_tasks)


@lru_cache(maxsize=32)
def test_panel(x: Experiment) -> Panel:
    """The test tasks, on which all policies are compared."""
    return panel(x.env, x.env_config, "test", x.evaluation.tasks)


@lru_cache(maxsize=32)
def seen_panel(x: Experiment) -> Panel:
    """The first training tasks, evaluated beside the test tasks for the generalisation gap."""
    return panel(x.env, x.env_config, "train", x.evaluation.train_tasks)


def _sources(x: Experiment, *modules: str) -> tuple[str, ...]:
    return (*modules, env_class(x.env).__module__)


def base_step(x: Experiment, arm: str = "base") -> Path:
    """The step directory of the base policy that an arm starts from. A tiny one is in its folder `model`; of a
    pretrained one it only says which it is (`weights` gives the folder)."""
    if x.model:
        folder = model_folder(x.model, x.revision)
        make = partial(_make_pretrained, x, folder)
        return run_step(f"base-{x.name}-pretrained", {"env": x.env}, make, root=RUNS, inputs=[model_key(folder)])
    tasks, env_config = train_panel(x), x.arm_env_config(arm)
    about = {"env": x.env, "env_config": env_config, "tiny": x.base, "max_context": x.policy.max_context}
    make = partial(_make_base, x, env_config, tasks.tasks)
    sources = _sources(x, "lib.policies.tiny")
    name = f"base-{x.name}" + "-shown" * (x.base_arm(arm) == "base_shown")
    return run_step(name, about, make, root=RUNS, inputs=[tasks.hash], source=sources)


def _make_base(x: Experiment, env_config: Any, tasks: tuple, out: Path) -> dict[str, Any]:
    from lib.policies.tiny import train_base  # torch is imported only where something is computed

    return train_base(env_class(x.env), env_config, x.base, x.policy.max_context, tasks, out / "model")


@lru_cache(maxsize=8)
def model_folder(name: str, revision: str) -> Path:
    """The folder of a pretrained model, a hub id or a local folder; see `lib.policies.pretrained.model_folder`."""
    from lib.policies.pretrained import model_folder

    return model_folder(name, revision)


@lru_cache(maxsize=8)
def model_key(folder: Path) -> str:
    """What identifies a pretrained model: the commit of a hub snapshot, else a hash over all files of its folder."""
    return folder.name if folder.parent.name == "snapshots" else hash_folder(folder)


def _make_pretrained(x: Experiment, folder: Path, out: Path) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return {"model": x.model, "revision": x.revision, "key": model_key(folder)} | {
        k: config.get(k) for k in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")
    }


def weights(x: Experiment, step: Path, update: int | None = None) -> Path:
    """The model folder of a base or training step, the last weights or those after `update` updates.

    Raises ValueError where there is no such snapshot.
    """
    if x.model and step.name.startswith("base-"):
        return model_folder(x.model, x.revision)
    folder = step / ("model" if update is None else f"snapshots/update-{update:04d}")
    if not folder.is_dir():
        raise ValueError(
            f"{step.name} has no snapshot of update {update}; it has one each {x.train.probe_every} updates"
        )
    return folder


def train_step(x: Experiment, arm: str, seed: int) -> Path:
    """The step directory of a training run: `model`, `metrics.jsonl`, `probe.jsonl`, `snapshots/update-NNNN`.

    On several processes (lib/trainers/launch.py) rank 0 finds or makes it, and the others take part in the training.
    """
    return ranks.first(_train_step, x, arm, seed)


def _train_step(x: Experiment, arm: str, seed: int) -> Path:
    run, env_config = x.train_config(arm, seed), x.arm_env_config(arm)
    tasks, probe, base = train_panel(x), probe_panel(x), base_step(x, arm)
    about = {"env": x.env, "env_config": env_config, "policy": x.policy, "run": run}
    make = partial(ranks.everywhere, _make_run, x, env_config, run, weights(x, base), tasks.tasks, probe.tasks)
    sources = _sources(x, "lib.trainers.trainer", x.policy.module)
    inputs = [base, tasks.hash, probe.hash]
    return run_step(f"train-{x.name}-{arm}-s{seed}", about, make, root=RUNS, inputs=inputs, source=sources)


def _make_run(x: Experiment, env_config, run, base: Path, tasks, probe, out: Path) -> dict[str, Any]:
    from lib.trainers.trainer import train  # torch is imported only where something is computed

    return train(x.policy.load(base), env_class(x.env), env_config, run, tasks, probe, out)


def base_policy(x: Experiment) -> Path:
    """The model folder of the base policy, found or made."""
    return weights(x, base_step(x))


def trained_policy(x: Experiment, arm: str, seed: int) -> Path:
    """The model folder after training. Raises ValueError for an arm that the experiment does not have."""
    return train_step(x, arm, seed) / "model"


def episodes_step(
    x: Experiment, arm: str, seed: int | None = None, split: str = "test", budget: int | None = None,
    update: int | None = None,
) -> Path:  # fmt: skip
    """The step directory of the rollouts of one policy: `episodes.parquet`. budget: T in turns (default: Tmax).

    update: the weights after so many updates, one of the run's snapshots (default: the last weights).
    """
    if (arm in BASE_ARMS) != (seed is None):
        raise ValueError(f"arm {arm!r} with seed {seed!r}: a base policy has no seed, every other arm has one")
    panels = {"test": test_panel, "valid": probe_panel, "train": seen_panel}
    if split not in panels:
        raise ValueError(f"split {split!r}: policies are evaluated on {', '.join(map(repr, panels))}")
    budget = x.t_max if budget is None else budget
    if not 1 <= budget <= x.t_max:
        raise ValueError(f"budget {budget}: it must be in 1..{x.t_max} (Tmax)")
    model = base_step(x, arm) if arm in BASE_ARMS else train_step(x, arm, seed)
    tasks = panels[split](x)
    samples = x.evaluation.train_samples if split == "train" else x.evaluation.samples
    samples = samples if update is None else min(samples, x.evaluation.snapshot_samples)
    env_config = x.arm_env_config(arm)
    folder = weights(x, model, update)
    about = {"env": x.env, "env_config": env_config, "samples": samples, "seed": x.evaluation.seed, "budget": budget}
    about |= {"policy": x.policy, "update": update}
    make = partial(_make_episodes, x, env_config, folder, tasks.tasks, samples, budget)
    name = f"episodes-{x.name}-{arm}" + ("" if seed is None else f"-s{seed}") + f"-{split}"
    name += ("" if budget == x.t_max else f"-t{budget}") + ("" if update is None else f"-u{update}")
    sources = _sources(x, "lib.rollout", x.policy.module)
    return run_step(name, about, make, root=RUNS, inputs=[model, tasks.hash], source=sources)


def _make_episodes(
    x: Experiment, env_config: Any, model: Path, tasks: tuple, samples: int, budget: int, out: Path
) -> dict[str, Any]:
    from lib.rollout import jobs, rollout

    cls = env_class(x.env)
    todo = jobs(tasks, samples, budget, x.evaluation.seed)
    policy = x.policy.load(model)
    found = rollout(policy, cls, env_config, todo, quality=cls.has_step_measure, states=True, batch_size=64)
    save_episodes(found, out / "episodes.parquet")
    ends = [e.end.value for e in found]
    tokens = sum(len(t.context) + len(t.action) for e in found for t in e.turns)
    return {"episodes": len(found), "tokens": tokens, "ends": {e: ends.count(e) for e in sorted(set(ends))}}


@lru_cache(maxsize=8)
def episodes(
    x: Experiment, arm: str, seed: int | None = None, split: str = "test", **which: int
) -> tuple[Episode, ...]:
    """The rollouts of one policy, found or made: `samples` for each task of the panel. which: budget, update."""
    return tuple(load_episodes(episodes_step(x, arm, seed, split, **which) / "episodes.parquet"))


@lru_cache(maxsize=512)
def _success_turns(x: Experiment, arm: str, seed: int | None, split: str, **which: int) -> tuple[list[str], np.ndarray]:
    return read_success_turns(episodes_step(x, arm, seed, split, **which) / "episodes.parquet")


@lru_cache(maxsize=512)
def surface(
    x: Experiment, arm: str, seed: int | None, ks: tuple[int, ...], ts: tuple[int, ...], split: str = "test",
    update: int | None = None,
) -> np.ndarray:  # fmt: skip
    """Pass@(K,T) of one policy for each task, (tasks, len(ks), len(ts)); tasks in the order of their ids.

    From one set of rollouts at Tmax; for a policy that is told its budget from a set of rollouts for each T of `ts`.
    """
    if not x.shows_budget(arm):
        return pass_kt(_success_turns(x, arm, seed, split, update=update)[1], ks, ts, x.t_max)
    found = {t: _success_turns(x, arm, seed, split, budget=t, update=update) for t in ts}
    turns, names = ({t: f[i] for t, f in found.items()} for i in (1, 0))
    return pass_kt_resampled(turns, ks, names)


def tokens_trained(x: Experiment, arm: str, seed: int) -> int:
    """Tokens of all episodes of a training run (environment and policy together)."""
    return load_manifest(train_step(x, arm, seed))["result"]["tokens"]


def update_at_tokens(x: Experiment, arm: str, seed: int, tokens: int) -> int:
    """The last snapshot of a run, by its update, that had been trained on at most `tokens` tokens."""
    rows = read_jsonl(train_step(x, arm, seed) / "probe.jsonl")
    return max(r["update"] for r in rows if r["tokens"] <= tokens)


def equal_tokens_step(x: Experiment, seed: int) -> Path:
    """Rollouts of full-budget GRPO at its last snapshot that had seen no more tokens than BudgetMix in all (§5.4).

    BudgetMix's run of the same seed is made for it where it is not there.
    """
    update = update_at_tokens(x, "grpo", seed, tokens_trained(x, "budgetmix", seed))
    return episodes_step(x, "grpo", seed, update=update)
