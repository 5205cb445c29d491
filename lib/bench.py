"""How fast rollouts, updates and whole training steps are, beside stock TRL.

    python -m lib.bench [--quick] [--out FILE]

The anchors are TRL's own methods (1.16): `GRPOTrainer._generate_single_turn` (one `model.generate` a turn on the whole
left-padded context) and `GRPOTrainer._compute_loss` on the padded batch. Ours and anchor have the same weights, tasks,
budgets and environment seeds, run alternately in one process on one thread, and the medians are compared. TRL draws its
actions from torch's generator, ours from the episodes' own: single episodes differ, their distribution does not.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import pandas as pd
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOTrainer

from lib import bench_parts
from lib.config import ROOT, Experiment
from lib.envs.base import env_class
from lib.episode import Episode
from lib.policies.hf import HFPolicy
from lib.policies.tiny import train_base
from lib.profiles import experiment
from lib.rollout import Job, _Play, jobs, rollout
from lib.trainers.budgets import BudgetMix
from lib.trainers.config import TrainConfig
from lib.trainers.trainer import AgentTrainer
from lib.trainers.trl_config import grpo_config

COLUMNS = ("name", "ours", "anchor", "ratio", "unit", "note")
TOLERANCE = 1e-5  # of the loss, and of every gradient relative to the largest


def alternate(ours: Callable[[], Any], anchor: Callable[[], Any], repetitions: int) -> tuple[float, float]:
    """Median wall seconds of both, called in turn: ours, anchor, ours, anchor, … after one untimed call of each."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for i in range(repetitions + 1):
        for call, kept in zip((ours, anchor), seconds, strict=True):
            start = time.perf_counter()
            call()
            kept += [time.perf_counter() - start] if i else []
    return median(seconds[0]), median(seconds[1])


def row(name: str, ours: float, anchor: float, unit: str, note: str) -> dict[str, Any]:
    """One line of the table; ours and anchor in units a second."""
    values = (name, float(f"{ours:.4g}"), float(f"{anchor:.4g}"), round(ours / anchor, 2), unit, note)
    return dict(zip(COLUMNS, values, strict=True))


def stock_rollout(trainer: GRPOTrainer, policy: HFPolicy, cls: type, config: Any, todo: Sequence[Job]) -> list[Episode]:
    """The episodes of `todo` with TRL's multi-turn path: `generate` on the whole context of every live episode, a turn.

    Environment, bookkeeping and token format are those of lib.rollout; TRL gives no log-probabilities (NaN here).
    """
    plays = [_Play(cls(config), j, False, False) for j in todo]
    ids: list[list[int]] = [[] for _ in plays]
    for p in plays:
        p.start(policy.chat)
    while alive := [i for i, p in enumerate(plays) if p.end is None]:
        for i in alive:
            ids[i] = ids[i] + plays[i].context
        actions, _ = trainer._generate_single_turn([ids[i] for i in alive], None, {}, 1)
        for i, action in zip(alive, actions, strict=True):
            plays[i].turn(policy.chat, action, [float("nan")] * len(action))
            ids[i] = ids[i] + action
    return [p.episode() for p in plays]


def stock_trainer(
    policy: HFPolicy, cls: type, config: Any, run: TrainConfig, tasks: Sequence, out: Path, callbacks: Sequence = ()
) -> GRPOTrainer:
    """TRL's GRPOTrainer as it comes, with AgentTrainer's settings, the tasks in their order, and `stock_rollout`."""
    by_id, group = {t.id: t for t in tasks}, run.group_size

    def play(prompts, trainer) -> dict[str, list]:
        names = [p[0]["content"] for p in prompts]
        budgets = run.budget.budgets(run.seed, trainer.state.global_step, len(names) // group, config.max_turns)
        seed = run.seed * 1_000_003 + trainer.state.global_step
        todo = [Job(by_id[n], i % group, int(budgets[i // group]), seed) for i, n in enumerate(names)]
        episodes = stock_rollout(trainer, policy, cls, config, todo)
        done = [e.completion() for e in episodes]
        return {
            "prompt_ids": [e.prompt_ids() for e in episodes],
            "completion_ids": [d[0] for d in done],
            "env_mask": [d[1] for d in done],
            "logprobs": None,
            "reward": [e.reward for e in episodes],
        }

    prompts = [{"prompt": [{"role": "user", "content": t.id}]} for t in tasks[: run.updates * run.tasks_per_update]]
    args = grpo_config(policy, run, out)
    args.generation_kwargs = {"max_new_tokens": policy.max_action_tokens}
    return GRPOTrainer(
        model=policy.model,
        reward_funcs=[lambda reward, **_: reward],
        args=args,
        train_dataset=Dataset.from_list(prompts),
        processing_class=policy.tokenizer,
        rollout_func=play,
        callbacks=list(callbacks),
    )


class _StepClock(TrainerCallback):  # wall seconds of each step, rollouts included, logging and checkpoints not
    def __init__(self):
        self.seconds: list[float] = []

    def on_step_begin(self, args, state, control, **kwargs):
        self.start = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        self.seconds.append(time.perf_counter() - self.start)


def rollout_row(x: Experiment, model: Path, tasks: Sequence, repetitions: int, out: Path) -> dict[str, Any]:
    """Turns a second at full budget."""
    cls = env_class(x.env)
    policy, run = x.policy.load(model), replace(x.train, updates=1)
    trainer = stock_trainer(policy, cls, x.env_config, run, tasks, out)
    policy.model.eval()
    todo = jobs(tasks[: run.tasks_per_update], run.group_size, x.t_max)
    turns: tuple[list[float], list[float]] = ([], [])  # episodes differ in length by chance

    def count(side: int, play: Callable[[], list[Episode]]) -> None:
        turns[side].append(mean(len(e.turns) for e in play()))

    ours = partial(count, 0, partial(rollout, policy, cls, x.env_config, todo))
    anchor = partial(count, 1, partial(stock_rollout, trainer, policy, cls, x.env_config, todo))
    a, b = alternate(ours, anchor, repetitions)
    per_second = [mean(t) * len(todo) / seconds for t, seconds in zip(turns, (a, b), strict=True)]
    note = f"one cache across turns / generate a turn; {mean(turns[0]):.1f} and {mean(turns[1]):.1f} turns an episode"
    return row(f"rollouts, {policy.model.num_parameters() / 1e6:.2f} M parameters", *per_second, "turns/s", note)


def update_rows(x: Experiment, model: Path, tasks: Sequence, repetitions: int, out: Path) -> list[dict[str, Any]]:
    """Forward and backward of TRL's loss a second, on one batch of BudgetMix episodes; loss and gradients must agree.

    Raises RuntimeError where they do not.
    """
    cls, run = env_class(x.env), replace(x.train, updates=1, budget=BudgetMix(), kl_episodes=0)
    policies = [x.policy.load(model) for _ in range(2)]
    ours = AgentTrainer(policies[0], cls, x.env_config, run, tasks, (), out / "ours")
    anchor = stock_trainer(policies[1], cls, x.env_config, run, tasks, out / "anchor")
    ours.seconds = {"rollout": 0.0, "sampling": 0.0}  # what `training_step` does first
    inputs = ours._generate_and_score_completions([r for r in ours.train_dataset for _ in range(run.group_size)])
    found: dict[GRPOTrainer, float] = {}

    def update(trainer: GRPOTrainer) -> None:
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        trainer.model.zero_grad()
        loss = trainer._compute_loss(trainer.model, inputs)
        loss.backward()
        found[trainer] = loss.item()

    a, b = alternate(lambda: update(ours), lambda: update(anchor), repetitions)
    grads = [torch.cat([p.grad.flatten() for p in t.model.parameters()]) for t in (ours, anchor)]
    gap = ((grads[0] - grads[1]).abs().max() / grads[1].abs().max()).item()
    loss_gap = abs(found[ours] - found[anchor])
    if max(loss_gap, gap) > TOLERANCE:
        raise RuntimeError(f"loss differs by {loss_gap:.1e}, gradients by {gap:.1e} of the largest, over {TOLERANCE}")
    real = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1).float()
    note = f"{len(real)} BudgetMix episodes, {1 - real.mean():.0%} padding in TRL's batch; "
    note += f"loss differs by {loss_gap:.1g}, gradients by {gap:.1g}"
    rows = [row("update: forward and backward of the loss", 1 / a, 1 / b, "updates/s", note)]
    return rows + [row(*r) for r in bench_parts.arithmetic_rows(lambda: update(ours), repetitions)]


def step_row(
    x: Experiment, model: Path, tasks: Sequence, repetitions: int, out: Path, run: TrainConfig, name: str
) -> dict[str, Any]:
    """Whole optimisation steps a second of `train()`: rollouts, loss, AdamW. The first step of a run is not counted."""
    cls, clocks = env_class(x.env), (_StepClock(), _StepClock())
    for i in range(repetitions):
        for clock, place in zip(clocks, ("ours", "anchor"), strict=True):
            policy, folder = x.policy.load(model), out / f"{place}{i}"
            if place == "ours":
                trainer = AgentTrainer(policy, cls, x.env_config, run, tasks, (), folder)
                trainer.add_callback(clock)
                order = [tasks[t] for t in trainer._order()]
            else:
                trainer = stock_trainer(policy, cls, x.env_config, run, order, folder, [clock])
            trainer.train()
            del clock.seconds[-run.updates]  # the first step warms up
    a, b = (median(c.seconds) for c in clocks)
    note = f"{run.tasks_per_update * run.group_size} episodes a step, Tmax {x.t_max}; ours also estimates a KL"
    return row(f"training step, {name}", 1 / a, 1 / b, "steps/s", note)


def bench(quick: bool = False) -> list[dict[str, Any]]:
    """All rows. quick: one repetition of small sizes, to see that it runs; its numbers mean nothing."""
    torch.set_num_threads(1)
    x, repetitions = experiment("tiny", "frozenlake"), 1 if quick else 5
    if quick:
        x = replace(x, train=replace(x.train, tasks_per_update=2, group_size=4))
    tasks = env_class(x.env).tasks(x.env_config, "train", 200)
    run = replace(x.train, updates=2 if quick else 4, save_every=1000, probe_every=0)
    with tempfile.TemporaryDirectory() as tmp:
        out = Path(tmp)
        base, context = replace(x.base, demonstrations=100 if quick else 1000), x.policy.max_context
        rows = []
        for size, shape in (("small", {}), ("large", {"hidden": 128, "layers": 4})):
            train_base(env_class(x.env), x.env_config, replace(base, **shape), context, tasks, out / size)
            rows += [rollout_row(x, out / size, tasks, repetitions, out / f"{size}-rollouts")]
        where = (x, out / "small", tasks, repetitions)
        rows += [*update_rows(*where, out / "update"), step_row(*where, out / "full", run, "full budget")]
        rows += [step_row(*where, out / "mix", replace(run, budget=BudgetMix()), "BudgetMix")]
    parts = [*bench_parts.sandbox_rows(repetitions, 2 if quick else 40), bench_parts.sql_row(repetitions, 200)]
    parts += [bench_parts.attention_row(repetitions), bench_parts.analysis_row(repetitions)]
    parts += [bench_parts.start_row(repetitions)]
    return rows + [row(*r) for r in parts]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m lib.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes once; the numbers mean nothing")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "tables" / "bench.csv")
    args = parser.parse_args(argv)
    rows = bench(args.quick)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(args.out, index=False, lineterminator="\n")
    for r in rows:
        print(f"{r['name']:52} {r['ours']:>8} {r['anchor']:>8} {r['unit']:12} {r['ratio']:>6}x  {r['note']}")


if __name__ == "__main__":
    main()
