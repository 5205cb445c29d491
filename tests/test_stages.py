"""The expensive steps of a small experiment: made once, found again, made anew where something changed."""

import json
from dataclasses import replace

import numpy as np
import pytest

from lib import stages
from lib.config import EvalConfig, Experiment
from lib.envs.frozenlake import FrozenLakeConfig
from lib.episode import load_episodes
from lib.policies.config import TinyConfig
from lib.profiles import experiment
from lib.store import load_manifest
from lib.trainers.config import TrainConfig

X = Experiment(
    profile="smoke",
    env="frozenlake",
    env_config=FrozenLakeConfig(size=3, max_turns=4, observation="local"),
    base=TinyConfig(hidden=16, layers=1, heads=2, vocabulary=384, demonstrations=32),
    train=TrainConfig(updates=2, tasks_per_update=2, group_size=2, save_every=1, probe_every=2, kl_episodes=1),
    evaluation=EvalConfig(tasks=4, samples=3, train_tasks=2, train_samples=2, ks=(1, 2, 3), budget_k=2),
    train_tasks=6,
    probe_tasks=2,
)


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "RUNS", tmp_path)
    for cached in (stages.episodes, stages.surface):
        cached.cache_clear()
    yield tmp_path
    for cached in (stages.episodes, stages.surface):
        cached.cache_clear()


def test_steps_are_made_once_and_found_again(runs, monkeypatch):
    base, trained = stages.base_policy(X), stages.trained_policy(X, "budgetmix", 1)
    assert (base / "model.safetensors").is_file() and (trained / "model.safetensors").is_file()
    rows = [json.loads(x) for x in (trained.parent / "metrics.jsonl").read_text().splitlines()]
    assert [r["update"] for r in rows] == [1, 2]
    assert stages.tokens_trained(X, "budgetmix", 1) == sum(r["tokens"] for r in rows)
    found = {(arm, split): stages.episodes(X, arm, seed, split)
             for arm, seed in (("base", None), ("budgetmix", 1)) for split in ("test", "train")}  # fmt: skip
    made = {p: p.stat().st_mtime_ns for p in runs.glob("*/DONE")}
    assert len(made) == 6
    for split, tasks, samples in (("test", stages.test_panel(X), 3), ("train", stages.seen_panel(X), 2)):
        for arm in ("base", "budgetmix"):
            episodes = found[arm, split]
            assert [(e.task, e.sample) for e in episodes] == [(t.id, s) for t in tasks.tasks for s in range(samples)]
            assert all(e.budget == 4 and t.state and 0 <= t.quality <= 1 for e in episodes for t in e.turns)
    assert {e.seed for e in found["base", "test"]} == {e.seed for e in found["budgetmix", "test"]}  # the same slips

    def work(*args):
        raise AssertionError("made a second time")

    for name in ("_make_base", "_make_run", "_make_episodes"):
        monkeypatch.setattr(stages, name, work)
    stages.episodes.cache_clear()
    assert stages.base_policy(X) == base and stages.trained_policy(X, "budgetmix", 1) == trained
    for (arm, split), episodes in found.items():
        again = stages.episodes(X, arm, None if arm == "base" else 1, split)
        assert repr(again) == repr(episodes)
    for changed in (replace(X, base=replace(X.base, seed=1)), replace(X, train_tasks=5)):
        with pytest.raises(AssertionError, match="second time"):
            stages.base_step(changed)
    for changed, arm, seed in ((X, "budgetmix", 2), (X, "grpo", 1), (replace(X, probe_tasks=3), "budgetmix", 1)):
        with pytest.raises(AssertionError, match="second time"):
            stages.train_step(changed, arm, seed)
    assert {p: p.stat().st_mtime_ns for p in runs.glob("*/DONE")} == made


def test_the_surface_is_counted_from_the_stored_episodes():
    found = stages.surface(X, "base", None, (1, 3), (1, 2, 4))
    assert found.shape == (4, 2, 3)
    stored = load_episodes(stages.episodes_step(X, "base") / "episodes.parquet")
    for i, task in enumerate(sorted({e.task for e in stored})):
        turns = [len(e.turns) if e.solved else np.inf for e in stored if e.task == task]
        for t, at in ((1, 0), (2, 1), (4, 2)):
            solved = sum(x <= t for x in turns)
            assert found[i, 0, at] == pytest.approx(solved / 3)  # K = 1: the share of samples
            assert found[i, 1, at] == (solved > 0)  # K = n: any of them
    ends = load_manifest(stages.episodes_step(X, "base"))["result"]["ends"]
    assert sum(ends.values()) == len(stored) == 12


def test_panels_do_not_overlap_and_an_overlap_is_refused(monkeypatch):
    for x in (X, experiment("smoke"), experiment("tiny")):
        panels = (stages.train_panel(x), stages.probe_panel(x), stages.test_panel(x))
        data = [{json.dumps(t.data) for t in p.tasks} for p in panels]
        assert len(set.union(*data)) == sum(map(len, data))
        assert stages.seen_panel(x).tasks == stages.train_panel(x).tasks[: x.evaluation.train_tasks]
    stages.train_panel.cache_clear()
    monkeypatch.setattr(stages, "test_panel", stages.seen_panel)
    with pytest.raises(ValueError, match="stand in two panels"):
        stages.base_step(X)


def test_wrong_arms_seeds_and_splits_are_refused_before_any_work(runs):
    for call, message in (
        (lambda: stages.trained_policy(X, "xpo", 0), "arm 'xpo' is not in smoke/frozenlake"),
        (lambda: stages.episodes_step(X, "base", 0), "base policy has no seed"),
        (lambda: stages.episodes_step(X, "grpo"), "every other arm has one"),
        (lambda: stages.episodes_step(X, "grpo", 0, "dev"), "'test', 'valid', 'train'"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert not list(runs.glob("*"))
