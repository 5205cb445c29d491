"""Policies that are told their budget: a base policy of their own, and new rollouts for each T."""

from dataclasses import replace

import numpy as np
import pytest

from lib import stages
from lib.config import ARMS
from lib.envs.frozenlake import FrozenLakeConfig
from lib.policies.config import TinyConfig
from lib.profiles import experiment

SHOWN = "budgetmix_shown"


@pytest.fixture(scope="module")
def x(tmp_path_factory):
    with pytest.MonkeyPatch.context() as m:
        m.setattr(stages, "RUNS", tmp_path_factory.mktemp("runs"))
        smoke = experiment("smoke")
        yield replace(
            smoke,
            env_config=FrozenLakeConfig(size=3, max_turns=6, observation="local"),
            base=TinyConfig(hidden=32, heads=2, vocabulary=384, demonstrations=160),
            train=replace(smoke.train, updates=1, tasks_per_update=4, group_size=2, probe_every=0),
            evaluation=replace(smoke.evaluation, tasks=3, samples=4, ks=(1, 2), budget_k=2, train_tasks=3),
            train_tasks=8,
            probe_tasks=2,
            arms=(*smoke.arms, SHOWN),
        )


def test_told_in_training_and_evaluation(x):
    assert ARMS[SHOWN].show_budget and x.shows_budget(SHOWN) and x.shows_budget("base_shown")
    assert not x.shows_budget("grpo") and not x.shows_budget("base")
    assert stages.base_step(x, SHOWN) == stages.base_step(x, "base_shown") != stages.base_step(x)
    with pytest.raises(ValueError, match="unknown arm"):
        x.shows_budget("nobody")
    with pytest.raises(ValueError, match="1..6"):
        stages.episodes_step(x, "base", budget=7)


def test_surface_is_from_rollouts_at_each_budget(x):
    surface = stages.surface(x, SHOWN, 0, (1, 2), (2, 6))
    assert surface.shape == (3, 2, 2)
    for column, budget in enumerate((2, 6)):
        played = stages.episodes(x, SHOWN, 0, budget=budget)
        assert {e.budget for e in played} == {budget} and len(played) == 12
        solved = {}
        for e in played:
            solved.setdefault(e.task, []).append(e.solved)
        for row, task in enumerate(sorted(solved)):  # K = 1: the share; K = 2 of n = 4: 1 - C(n-c, 2) / C(4, 2)
            failed = 4 - sum(solved[task])
            want = [sum(solved[task]) / 4, 1 - failed * (failed - 1) / 2 / 6]
            np.testing.assert_allclose(surface[row, :, column], want)


def test_a_policy_that_is_not_told_has_one_set_of_rollouts(x):
    surface = stages.surface(x, "base", None, (1,), (2, 6))
    turns = [[e.success_turn for e in stages.episodes(x, "base") if e.task == t] for t in
             sorted({e.task for e in stages.episodes(x, "base")})]  # fmt: skip
    np.testing.assert_allclose(surface[:, 0], [[np.mean([s <= t for s in row]) for t in (2, 6)] for row in turns])
    assert not list(stages.RUNS.glob("episodes-frozenlake-base-test-t*"))
