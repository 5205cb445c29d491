"""InterCode-SQL on a database made by hand: actions, what submit scores, step measures, guards, the contract."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.envs.base import Task, env_class
from lib.envs.sql import Sql, SqlConfig

SCRIPT = """
CREATE TABLE people (id int NOT NULL PRIMARY KEY, name varchar(9) COLLATE NOCASE DEFAULT 'x', age int, born date);
CREATE INDEX by_age ON people (age);
INSERT INTO people VALUES (1, 'Ann', 30, '2001-02-03'), (2, 'bob', 41, NULL), (3, 'Eve', 30, '1999-12-31');
CREATE TABLE big (n int);
WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 2000) INSERT INTO big SELECT n FROM r;
"""


def task(gold: str, name: str = "t") -> Task:
    return Task(name, {"db": "shop", "script": SCRIPT, "question": "who?", "gold": gold})


def play(gold: str, *actions: str, **config):
    env = Sql(SqlConfig(**config))
    env.reset(task(gold), 0)
    return [env.step(a) for a in actions]


def test_an_episode():
    actions = ["SHOW TABLES", "DESC people", "SELECT name FROM people WHERE age = 30", "submit"]
    steps = play("SELECT name FROM people WHERE id <> 2", *actions)
    assert [s.observation for s in steps] == [
        "tables: people big", "columns: id name age born", "Ann ; Eve", "",
    ]  # fmt: skip
    assert [s.reward for s in steps] == [0, 0, 0, 1] and [s.done for s in steps] == [False, False, False, True]
    assert steps[-1].info == {"solved": True, "invalid": False, "error": False, "score": 1.0}


def test_what_submit_scores():
    gold = "SELECT name FROM people WHERE id <> 2"
    assert play(gold, "submit")[-1].reward == 0  # nothing ran
    assert play(gold, gold, "SELECT nme FROM people", "submit")[-1].reward == 0  # an error came last
    assert play(gold, gold, "USE shop", "submit")[-1].reward == 0
    assert play(gold, gold, "hello", "submit")[-1].reward == 1  # nothing was executed in between
    backwards = [f"{gold} ORDER BY id DESC", "submit"]
    assert play(gold, *backwards)[-1].reward == -1 and not play(gold, *backwards)[-1].info["solved"]
    assert play(gold, *backwards, score="strict")[-1].info["solved"]
    assert play(f"{gold} ORDER BY id", *backwards, score="strict")[-1].reward == 0
    empty = "SELECT name FROM people WHERE id = 9"
    assert play(empty, "SELECT name FROM people WHERE id = 8", "submit")[-1].info["solved"]
    with pytest.raises(ValueError, match="returns no rows"):
        play(empty, "submit", score="strict")


def test_step_quality():
    env = Sql(SqlConfig())
    env.reset(task("SELECT name FROM people"), 0)
    before = env.snapshot()
    expected = {
        "SELECT name FROM people": 1, "SELECT name FROM people WHERE id < 3": 0.67, "SHOW TABLES": 0, "submit": 0,
        "SELECT x": 0, "hm": 0,
        "SELECT name FROM people WHERE id <> 3 ORDER BY id DESC": 0,  # 2 / 3 * (-1)
        # Eve, bob, Ann against Ann, bob, Eve: ranks as strings 1 2 0 and 0 2 1, two of three pairs agree
        "SELECT name FROM people ORDER BY id DESC": 0.33,
    }  # fmt: skip
    assert {a: env.step_quality(a) for a in expected} == expected and env.snapshot() == before
    env.step("SELECT name FROM people")
    assert env.step_quality("submit") == 1


def test_step_loss():
    """The gold has 3 rows: two of them score 0.67 (rounded, with tau = 1), one of them 1 / 3 (no tau, not rounded)."""
    two, one = "SELECT name FROM people WHERE id < 3", "SELECT name FROM people WHERE id = 1"
    backwards = "SELECT name FROM people WHERE id <> 3 ORDER BY id DESC"  # scores -0.67, which counts as 0
    refused = {"SELECT nme FROM people": 1, "DROP TABLE people": 1, "USE other": 1, "DESC nothing": 1, "hm": 1, "": 1}
    losses = {  # the last statement: what each action loses
        None: {"SHOW TABLES": 0, "DESC people": 0, "SELECT 7": 0, backwards: 0, "submit": 0, **refused},
        backwards: {"SHOW TABLES": 0, one: 0, "submit": 0, **refused},
        two: {
            "SHOW TABLES": 0.67,
            "USE shop": 0.67,
            backwards: 0.67,
            one: 0.67 - 1 / 3,
            two: 0,
            "submit": 0,
            **refused,
        },
        "SELECT name FROM people": {"SHOW TABLES": 1, two: 0.33, "submit": 0, "hm": 1},
        "SELECT nme": {"SELECT nme": 1, "SHOW TABLES": 0},
    }
    for last, expected in losses.items():
        env = Sql(SqlConfig())
        env.reset(task("SELECT name FROM people"), 0)
        if last:
            env.step(last)
        before = env.snapshot()
        assert {a: env.step_loss(a) for a in expected} == pytest.approx(expected), last
        assert env.snapshot() == before
    env.step("hm"), env.step("submit")
    assert env.step_loss("hm") == 0  # nothing can go wrong any more


def test_reseed_changes_nothing():
    env = Sql(SqlConfig())
    with pytest.raises(RuntimeError, match="reset"):
        env.reseed(0)
    env.reset(task("SELECT name FROM people"), 0)
    env.step("SHOW TABLES")
    blob, found = env.snapshot(), []
    for seed in (1, 2):
        env.restore(blob)
        env.reseed(seed)
        assert env.snapshot() == blob
        found.append([(env.step(a), env.snapshot()) for a in ("SELECT name FROM people", "submit")])
    assert found[0] == found[1]


def test_it_can_be_continued_from_a_stored_state():
    from known_odds import odds_policy

    from lib.analyses.continuation import continue_from
    from lib.analyses.states import State

    env, policy = Sql(SqlConfig()), odds_policy({"Right": 1.0}, max_action_tokens=1)  # its one word is no SQL
    env.reset(task("SELECT name FROM people"), 0)
    env.step("hm")
    state = State("rl", "t", 0, 2, 10, policy.chat.prompt([{"role": "user", "content": "who?"}]), env.snapshot())
    (played,) = continue_from(policy, Sql, SqlConfig(), [state], 2, seed=0)
    assert [(e.end.value, len(e.turns), e.reward) for e in played] == [("invalid", 2, 0)] * 2  # the third in a row


ACTIONS = ["SHOW TABLES", "DESC people", "SELECT name FROM people", "SELECT age, name FROM people ORDER BY age",
           "SELECT no", "USE shop", "hm", "submit", "SELECT 0.1 + 0.2, x'00ff'"]  # fmt: skip


@given(st.lists(st.sampled_from(ACTIONS), max_size=6), st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_restore(before, after):
    env, other = Sql(SqlConfig(show_budget=True)), Sql(SqlConfig(show_budget=True))
    env.reset(task("SELECT name FROM people"), 0)

    def advance(e, actions):
        out = []
        for action in actions:
            if not e.over:
                out.append((e.step_quality(action), e.step(action), e.snapshot(), e.state_key()))
        return out

    advance(env, before)
    blob, key = env.snapshot(), env.state_key()
    first = advance(env, after)
    for e in (env, other):  # the same object, and one that never saw a reset
        e.restore(blob)
        assert e.snapshot() == blob and e.state_key() == key and advance(e, after) == first


def test_state_key():
    env = Sql(SqlConfig())
    env.reset(task("SELECT name FROM people"), 0)
    keys = [env.state_key()]
    for action in ("SHOW TABLES", "SELECT name FROM people", "SHOW TABLES", "hm", "hm"):
        env.step(action)
        keys.append(env.state_key())
    assert keys[1] == keys[3] and len(set(keys)) == 5  # the way and the turn do not matter, the last result does


def test_budget_and_ends():
    env = Sql(SqlConfig(show_budget=True, max_turns=5, max_invalid=2))
    chat = env.reset(task("SELECT name FROM people"), 0, budget=3)
    assert chat[-1] == {"role": "user", "content": "who?\nYou have 3 turns left."} and chat[0]["role"] == "system"
    assert env.step("hm").observation.endswith("You have 2 turns left.")
    assert env.step("SELECT 1").info == {"solved": False, "invalid": False, "error": False}
    assert not env.step("hm").done and env.turns_left == 0  # two invalid turns, but not in a row
    with pytest.raises(RuntimeError, match="over after 3 of 3"):
        env.step("submit")
    env.reset(task("SELECT name FROM people"), 0)
    env.step("hm")
    last = env.step("ha")
    assert last.done and last.info["invalid"] and last.reward == 0
    for budget in (0, 6):
        with pytest.raises(ValueError, match="budget"):
            env.reset(task("SELECT name FROM people"), 0, budget=budget)


def test_long_results_are_cut():
    step = play("SELECT 1", "SELECT n FROM big")[0]
    assert step.observation.startswith("1 ; 2 ; 3") and step.observation.endswith("50 ... (2000 rows)")
    assert len(play("SELECT 1", f"SELECT {'x' * 900}")[0].observation) < 400
    assert play("SELECT 1", "SELECT n FROM big WHERE n < 0")[0].observation == "no rows"


def test_two_environments_in_threads():
    """Each thread plays its own database of the same names; any sharing would show in its own rows."""
    wrong = []

    def worker(number: int):
        script = f"CREATE TABLE people (v int); INSERT INTO people VALUES ({number});"
        gold = "SELECT v FROM people"
        env = Sql(SqlConfig())
        for _ in range(40):
            env.reset(Task("same-id", {"db": "shop", "script": script, "question": "v?", "gold": gold}), 0)
            env.step("DROP TABLE people")
            seen = env.step(gold).observation
            if seen != str(number) or not env.step("submit").info["solved"]:
                wrong.append((number, seen))

    threads = [threading.Thread(target=worker, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_bad_use():
    env = env_class("sql")(SqlConfig())
    for call in (lambda: env.step("submit"), env.snapshot, env.state_key, lambda: env.step_quality("submit")):
        with pytest.raises(RuntimeError, match="reset"):
            call()
    for call in (lambda: env.restore(b"{"), lambda: env.restore(b"[1]"), lambda: Sql(None),
                 lambda: Sql.tasks(SqlConfig(), "dev", 1), lambda: Sql.tasks(SqlConfig(), "train", 0),
                 lambda: env.reset(Task("t", {}), 0),
                 lambda: env.reset(task("SELECT nothing FROM people"), 0)):  # fmt: skip
        with pytest.raises(ValueError):
            call()
