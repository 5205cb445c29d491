"""Sweep files: bad ones are refused before any work, dotted paths change what they say, points are the real steps."""

from dataclasses import replace

import numpy as np
import pytest

from lib import sweep as driver
from lib.config import ARMS, ROOT, Arm
from lib.profiles import experiment
from lib.sweep_file import read_sweep
from lib.sweep_points import vary
from lib.trainers.budgets import BudgetMix

SMALL = """
profile = "smoke"
env = "frozenlake"
arm = "budgetmix"
ks = [1, 2]
ts = [2, 4]
[grid]
"arm.budget.grid" = [0.25, 0.5]
[fixed]
env_config = {size = 3, max_turns = 4, min_distance = 1}
base = {hidden = 16, layers = 1, heads = 2, vocabulary = 384, demonstrations = 32}
train = {updates = 2, tasks_per_update = 2, group_size = 2, save_every = 1, probe_every = 0, kl_episodes = 0}
evaluation = {tasks = 4, samples = 3, train_tasks = 2, ks = [1, 2], budget_k = 2}
train_tasks = 6
probe_tasks = 3
"""


def test_config_points_are_the_real_steps(tmp_path, monkeypatch):
    from lib import stages

    (tmp_path / "lake.toml").write_text(SMALL)
    sweep = read_sweep(tmp_path / "lake.toml")
    assert list(sweep.points) == [f"grid-{g},seed-{s}" for g in (0.25, 0.5) for s in (0, 1)]
    assert sweep.figure == {"x": "arm.budget.grid", "hue": "T", "col": "K"}
    monkeypatch.setattr(stages, "RUNS", tmp_path / "runs")
    rows = {name: p.rows(tmp_path) for name, p in sweep.points.items()}
    made = {p: p.stat().st_mtime_ns for p in tmp_path.glob("runs/*/DONE")}
    assert len(made) == 1 + 4 + 4  # one base policy, and each point's training and rollouts
    for name, point in sweep.points.items():
        x = point.experiment()
        turns = stages._success_turns(x, "budgetmix", point.seed, "valid")[1]
        assert turns.shape == (3, 3)  # validation tasks, samples
        assert [(r["K"], r["T"]) for r in rows[name]] == [(1, 2), (1, 4), (2, 2), (2, 4)]
        assert rows[name][1]["success"] == pytest.approx((turns <= 4).mean())
        pairs = [(turns[:, [i, j]] <= 2).any(1).mean() for i, j in ((0, 1), (0, 2), (1, 2))]
        assert rows[name][2]["success"] == pytest.approx(np.mean(pairs))
        assert {r["tokens"] for r in rows[name]} == {stages.tokens_trained(x, "budgetmix", point.seed)}
    stages.surface.cache_clear()
    assert {name: p.rows(tmp_path) for name, p in sweep.points.items()} == rows
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("runs/*/DONE")} == made  # no work twice
    df = driver.table(sweep, {n: {"rows": r} for n, r in rows.items()})
    assert list(df) == ["arm.budget.grid", "K", "T", "success", "seed", "tokens"] and len(df) == 16
    assert len(driver.draw(sweep, df).axes.flat) == 2  # a panel for each K
    with pytest.raises(ValueError, match="several rows for one arm.budget.grid, T: name what else varies"):
        driver.draw(replace(sweep, figure={"x": "arm.budget.grid", "hue": "T"}), df)


def test_dotted_paths_change_the_run_and_nothing_else():
    x = experiment("smoke")
    y = vary(
        x, "budgetmix", {"arm.budget.grid": 0.05, "train.group_size": 4, "train.max_grad_norm": 2, "evaluation.ks": [1]}
    )
    assert y.train_config("budgetmix", 3) == replace(
        x.train_config("budgetmix", 3), budget=BudgetMix(0.05), group_size=4, max_grad_norm=2.0
    )
    assert y.evaluation == replace(x.evaluation, ks=(1,)) and y.arms == ("budgetmix",)
    assert ARMS["budgetmix"] == Arm("BudgetMix", budget=BudgetMix(0.1))
    assert vary(x, "budgetmix", {}).train_config("budgetmix", 0) == x.train_config("budgetmix", 0)
    told = vary(x, "grpo", {"arm.show_budget": True, "arm.algorithm": "gigpo", "arm.beta": 0.1})
    assert told.shows_budget("grpo") and told.arm_env_config("grpo").show_budget and not x.shows_budget("grpo")
    run = told.train_config("grpo", 0)
    assert (run.algorithm, run.beta) == ("gigpo", 0.1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"arm.budget.grid" = [0.25, 0.5]', '"arm.budget.step" = [1]', "no field arm.budget.step; arm.budget has grid"),
        ('"arm.budget.grid" = [0.25, 0.5]', '"budget.grid" = [1]', "no field 'budget'; a path begins with one of arm,"),
        ('"arm.budget.grid" = [0.25, 0.5]', '"arm.budget.grid" = ["a"]', "arm.budget.grid: 'a' is str, expected float"),
        ('"arm.budget.grid" = [0.25, 0.5]', '"arm.budget.grid" = [0.3]', "budget grid 0.3: 1 / grid must be a whole"),
        ('"arm.budget.grid" = [0.25, 0.5]', '"arm.budget" = [0.3]', "arm.budget is no single value; .* fields: grid"),
        ('"arm.budget.grid" = [0.25, 0.5]', '"arm.budget.grid" = 0.5', "a list of different values"),
        ('"arm.budget.grid" = [0.25, 0.5]', '"arm.budget.grid" = [0.5, 0.5]', "a list of different values"),
        ('"arm.budget.grid" = [0.25, 0.5]', "train_tasks = [6]", "train_tasks is in .grid. and in .fixed."),
        ('"arm.budget.grid" = [0.25, 0.5]', "", ".grid. is empty"),
        ('"arm.budget.grid" = [0.25, 0.5]', '"train.seed" = [1]', "train.seed has no effect on a run.*`seeds`"),
        ('"arm.budget.grid" = [0.25, 0.5]', '"train.budget.grid" = [0.1]', "no effect on a run.*use arm.budget"),
        ('"arm.budget.grid" = [0.25, 0.5]', '"train.lr" = [2.0]', r"lr 2.0: it must be in \(0, 1\)"),
        ("train_tasks = 6", "train_tasks = 1", "2 training tasks to evaluate, 1 to train on"),
        ("updates = 2", "updates = 2.0", "train.updates: 2.0 is float, expected int"),
        ("ks = [1, 2]\nts", "ks = [1, 4]\nts", r"ks = \[1, 4\]: different whole numbers from 1 to 3"),
        ("ts = [2, 4]", "ts = [5]", r"ts = \[5\]: different whole numbers from 1 to 4"),
        ('"budgetmix"', '"xpo"', "unknown arm 'xpo'"),
        ('"smoke"', '"huge"', "unknown profile 'huge'"),
        ('profile = "smoke"', "seeds = 1", "seeds=1: at least 2"),
        ('profile = "smoke"', 'split = "train"', "split 'train': 'valid' .* or 'test'"),
        ('profile = "smoke"', "steps = 1", "unknown key 'steps'; a config sweep has arm, env"),
        ('env = "frozenlake"', "", "env = None: a config sweep needs a string"),
        ("[fixed]", "[figure]\nz = 'T'\n[fixed]", ".figure. z: the places are x, hue, col, row"),
        ("[grid]", "[grid", "lake.toml: "),
    ],
)
def test_bad_files_are_refused_before_any_work(tmp_path, capsys, monkeypatch, old, new, message):
    assert old in SMALL
    monkeypatch.setattr(driver, "run_sweep", lambda *a: pytest.fail("work started"))
    (tmp_path / "lake.toml").write_text(SMALL.replace(old, new, 1))
    with pytest.raises(ValueError, match=message):
        read_sweep(tmp_path / "lake.toml")
    assert driver.main([str(tmp_path / "lake.toml")]) == 1
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("notebook = '11_more'\ntable = 'a'\nvalue = 'b'\n[grid]\nseeds = [2]", "no notebook '11_more'; there are 00_"),
        ("notebook = '03_depth'\ntable = 'a'\nvalue = 'b'\n[grid]\nseed = [2]", "no parameter 'seed' .*'seeds'"),
        (
            "notebook = '03_depth'\ntable = 'a'\nvalue = 'b'\n[grid]\nseeds = [2, 'x']",
            "seeds: 'x' is str, expected int",
        ),
        ("notebook = '03_depth'\nvalue = 'b'\n[grid]\nseeds = [2]", "table = None: a notebook sweep needs a string"),
        ("notebook = '03_depth'\ntable = 'a'\nvalue = 'b'\narm = 'c'\n[grid]\nseeds = [2]", "unknown key 'arm'"),
    ],
)
def test_bad_notebook_sweeps_are_refused(tmp_path, text, message):
    (tmp_path / "n.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_sweep(tmp_path / "n.toml")


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks" / "sweeps").glob("*.toml")), ids=lambda p: p.stem)
def test_sweeps_in_git_can_be_run(path):
    assert len(read_sweep(path).points) > 1
