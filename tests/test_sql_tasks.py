"""InterCode-SQL's configuration, generated tasks and demonstrators."""

import json
import re

import pytest

from lib.envs.base import Task
from lib.envs.sql import Sql, SqlConfig, setup
from lib.envs.sql_engine import run
from lib.envs.sql_tasks import SYNONYMS


@pytest.mark.parametrize("tables, rows", [(3, 5), (2, 2), (4, 12)])
def test_procedural_tasks(tables, rows):
    config = SqlConfig(tables=tables, rows=rows)
    splits = {s: Sql.tasks(config, s, n) for s, n in (("train", 200), ("valid", 20), ("test", 20))}
    golds = [t.data["gold"] for ts in splits.values() for t in {t.data["gold"]: t for t in ts}.values()]
    assert len(golds) == len(set(golds))  # no gold stands in two splits
    assert splits["train"][:50] == Sql.tasks(config, "train", 50)
    for t in splits["train"]:
        ready = setup(t)
        assert ready.gold and len(ready.database.tables) == tables and t == Task(t.id, json.loads(json.dumps(t.data)))
        names = set(ready.database.tables) | {c[0] for cs in ready.database.tables.values() for c in cs}
        assert not names & set(t.data["question"].split())  # the agent has to look first
        assert ready.gold == run(ready.database, t.data["gold"]) and None not in ready.gold[0]
    kinds = {k: Sql.tasks(SqlConfig(kinds=(k,)), "train", 5) for k in ("filter", "aggregate", "order", "join")}
    for kind, word in (("filter", "WHERE"), ("aggregate", "("), ("order", "ORDER BY"), ("join", "JOIN")):
        assert all(word in t.data["gold"] for t in kinds[kind])


@pytest.mark.parametrize("choice", [0, 1, 2])
def test_a_policy_that_does_not_look_cannot_solve(choice):
    """The right statement in guessed names: right is 1 of 3 for the table and for each of its columns in it."""
    config, solved = SqlConfig(), 0
    guess = {name: group[choice] for group in SYNONYMS for name in group}
    env, tasks = Sql(config), Sql.tasks(config, "train", 300)
    for t in tasks:
        env.reset(t, 0)
        env.step(re.sub(r"[a-z]+", lambda word: guess.get(word[0], word[0]), t.data["gold"]))
        solved += env.step("submit").info["solved"]
    assert solved / len(tasks) < 0.1


def test_demonstrators_are_of_mixed_quality():
    config = SqlConfig()
    env, solved = Sql(config), []
    for i, t in enumerate(Sql.tasks(config, "train", 150)):
        act = Sql.demonstrator(config, t, i)
        env.reset(t, i)
        while not env.over and env.turns_left:
            before = env.snapshot()
            action = act(env)
            assert env.snapshot() == before
            step = env.step(action)
            assert not step.info["invalid"]
        solved.append(step.info["solved"])
    assert 0.4 < sum(solved) / len(solved) < 0.9
    t = Sql.tasks(config, "train", 1)[0]
    assert Sql.demonstrator(config, t, 3)(env) == Sql.demonstrator(config, t, 3)(env)


@pytest.mark.parametrize("bad", [
    {"task_set": "official"}, {"score": "loose"}, {"questions": "all"}, {"max_turns": 0}, {"max_turns": 2.0},
    {"rows": 1}, {"rows": 13}, {"tables": 5}, {"tables": 1}, {"kinds": ()}, {"kinds": ("sort",)}, {"kinds": ["join"]},
    {"show_budget": 1}, {"max_invalid": 0}, {"spider_json": None},
])  # fmt: skip
def test_bad_config(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        SqlConfig(**bad)
