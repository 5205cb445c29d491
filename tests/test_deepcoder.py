"""DeepCoder-MT: the contract, what solves and what does not, and the reading of answers."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.envs import deepcoder_tasks
from lib.envs.base import Task, env_class
from lib.envs.deepcoder import DeepCoder, DeepCoderConfig
from lib.envs.deepcoder_answer import read_answer
from lib.sandbox import shared_pool

CONFIG = DeepCoderConfig()
SORT_REVERSE = Task("t", {
    "kind": "lines", "fn": "f", "takes": "list", "hint": "arrange, then arrange", "shown": 2,
    "inputs": [[[3, 1, 2]], [[1, 2]], [[5]], [[2, 2, 1]], [[1, 1, 3]], [[]]],
    "outputs": [[[3, 2, 1]], [[2, 1]], [[5]], [[2, 2, 1]], [[3, 1, 1]], [[]]],
})  # fmt: skip
RIGHT, ALMOST = "x=sorted(x)\nx=x[::-1]", "x=x[::-1]"
HARD_CODED = "```python\ndef f(x):\n    return {'[3, 1, 2]': [3, 2, 1], '[1, 2]': [2, 1]}.get(str(x))\n```"
ANSWERS = (RIGHT, ALMOST, HARD_CODED, "x=x[9]", "sorted(x)", "x=sorted(x", "", "hello world", "submit", "x=x[1:]")


def env_at(task=SORT_REVERSE, config=CONFIG, budget=None):
    env = DeepCoder(config)
    return env, env.reset(task, 0, budget)


def test_prompt_and_feedback_are_what_they_say():
    env, messages = env_at()
    assert [m["role"] for m in messages] == ["system", "user"] and "x=sorted(x)" in messages[0]["content"]
    assert messages[1]["content"] == "Arrange, then arrange.\n[3,1,2] -> [3,2,1]\n[1,2] -> [2,1]"
    step = env.step(ALMOST)
    assert step.observation == "Passed 1 of 2.\n[3,1,2] -> [2,1,3]"
    # held out: [5], [2,2,1] (reversed: [1,2,2], wrong), [1,1,3] (reversed: [3,1,1], right), []
    assert step.reward == 0 and not step.done and step.info["quality"] == env.step_quality(ALMOST) == 3 / 4
    assert env.step("x=x[9]").observation.endswith("\n[3,1,2] -> IndexError: list index out of range")
    step = env.step(f"<think>x=x</think>\n```python\n{RIGHT}\n```")
    assert (step.reward, step.done, step.info["solved"], step.info["passed"]) == (1.0, True, True, 2)
    with pytest.raises(RuntimeError, match="over"):
        env.step(RIGHT)


def test_going_wrong_is_a_crash_no_program_or_a_revision_that_passes_fewer_hidden_tests():
    env, _ = env_at()
    losses = {
        "x=x[1:]": 0,
        RIGHT: 0,
        "submit": 0,
        "x=x[9]": 1,
        "x=x[0]": 1,
        "x=(": 1,
    }  # x[0] crashes on []
    assert {a: env.step_loss(a) for a in losses} == losses
    env.step(ALMOST)  # passes 3 of the 4 hidden tests, sorted(x) the first and the last, x[1:] the last only
    before = env.snapshot()
    losses |= {ALMOST: 0, "x=sorted(x)": 1 / 4, "x=x[1:]": 1 / 2}
    assert {a: env.step_loss(a) for a in losses} == losses and env.snapshot() == before
    env.step("x=x[1:]")
    assert env.step_loss(ALMOST) == env.step_loss("x=x[1:]") == 0 and env.step_loss("x=[0]") == 1 / 4
    env, _ = env_at(config=DeepCoderConfig(wall_s=0.2))
    assert env.step_loss("x=[v for v in iter(int, 1) if v]") == 1  # beyond the time limit


def test_hard_coding_the_shown_tests_gains_nothing():
    env, _ = env_at()
    step = env.step(HARD_CODED)
    assert step.info == {"solved": False, "invalid": False, "passed": 2, "quality": 0.0}
    assert step.observation == "Passed 2 of 2, but not all hidden tests."


def test_submit_and_repeated_invalid_answers_end_an_episode():
    env, _ = env_at()
    env.step(ALMOST)
    assert env.step_quality("submit") == 3 / 4 and env.step_quality("?!") == 0
    step = env.step("Submit.")
    assert step.done and not step.info["solved"] and not step.info["invalid"] and step.reward == 0
    env, _ = env_at()
    steps = [env.step("x=(") for _ in range(3)]
    assert [s.done for s in steps] == [False, False, True] and all(s.info["invalid"] for s in steps)
    assert "x=sorted(x)" in steps[0].observation


def test_endless_and_greedy_programs_are_graded_not_waited_for():
    env, _ = env_at(config=DeepCoderConfig(wall_s=0.2))
    assert "-> time limit exceeded" in env.step("x=[v for v in iter(int, 1) if v]").observation
    env, _ = env_at(config=DeepCoderConfig(wall_s=20, memory_mb=128))
    assert "-> memory limit exceeded" in env.step("x=[0]*10**9").observation


def test_the_budget_is_shown_only_when_asked_and_kept():
    env, messages = env_at(config=DeepCoderConfig(show_budget=True), budget=2)
    assert messages[1]["content"].endswith("You have 2 turns left.")
    assert env.step(ALMOST).observation.endswith("You have 1 turn left.")
    env.step(ALMOST)
    with pytest.raises(RuntimeError, match="budget|over"):
        env.step(ALMOST)
    assert "turns left" not in env_at()[1][1]["content"]
    with pytest.raises(ValueError, match="budget=11"):
        env_at(budget=11)


@settings(max_examples=40, deadline=None)
@given(before=st.lists(st.sampled_from(ANSWERS), max_size=4), after=st.lists(st.sampled_from(ANSWERS), max_size=3))
def test_restoring_a_snapshot_brings_the_same_future(before, after):
    env, _ = env_at()
    for action in before:
        if not env.over:
            env.step(action)
    blob, key = env.snapshot(), env.state_key()
    futures = []
    for player in (env, DeepCoder(CONFIG)):
        player.restore(blob)
        player.reseed(len(futures))  # there is no chance to change
        assert player.state_key() == key and player.snapshot() == blob
        steps = []
        for action in after:
            if not player.over:
                quality = player.step_quality(action)
                same = player.snapshot()
                steps.append((quality, player.step(action), player.state_key(), player.snapshot()))
                assert same != player.snapshot()
        futures.append(steps)
    assert futures[0] == futures[1]


def test_the_state_is_the_task_and_what_the_tests_said():
    env, _ = env_at()
    start = env.state_key()
    env.step("x=x[::-1]")
    first = env.state_key()
    env.step("x = list(reversed(x))")  # another program, the same results
    assert start != first == env.state_key()
    env.step("x=sorted(x)")
    assert env.state_key() != first


@pytest.mark.parametrize("bad", [b"", b"xx", b"x\x9c\x03\x00\x00\x00\x00\x01"])
def test_foreign_bytes_are_no_snapshot(bad):
    with pytest.raises(ValueError, match="snapshot"):
        DeepCoder(CONFIG).restore(bad)


@pytest.mark.parametrize(
    "text, kind, expected",
    [
        ("x=sorted(x)", "lines", "program"), ("sorted(x)[::-1]", "lines", "program"),
        (" x = x\n x=x ", "lines", "invalid"),
        ("x=1\ny=2", "lines", "invalid"), ("import os", "lines", "invalid"),
        ("x=" + "1+" * 99 + "1", "lines", "invalid"),
        ("x=" + "(" * 190, "lines", "invalid"), ("x='\x00'", "lines", "invalid"), ("", "lines", "invalid"),
        ("```\nx=x\n```", "lines", "program"), ("```py\ndef f(x):\n  return x\n```", "lines", "program"),
        ("```\ndef g(x):\n  return x\n```", "lines", "invalid"), ("SUBMIT", "lines", "submit"),
        ("print(1)", "stdin", "invalid"), ("```python\nprint(1)\n```", "stdin", "program"),
        ("`submit`", "stdin", "submit"),
        ("<think>```\nprint(1)\n```</think>", "stdin", "invalid"), ("```python\n\n```", "stdin", "invalid"),
    ],
)  # fmt: skip
def test_answers_are_read(text, kind, expected):
    assert read_answer(text, kind)[0] == expected


def test_the_last_block_counts():
    assert read_answer("```\na\n```\nor\n```python\nb\n```", "stdin") == ("program", "b\n")


def test_functions_do_what_their_programs_do_and_no_two_are_the_same():
    found = deepcoder_tasks.functions(2)
    code = "def f(text, xs):\n  out = []\n  for x in xs:\n    space = {'x': x}\n    exec(text, space)\n"
    inputs = deepcoder_tasks.inputs()
    tests = [[f.text, list(inputs[f.takes])] for f in found]
    results = shared_pool().call_function(code + "    out.append(space['x'])\n  return out", "f", tests)
    assert all(r.value == list(f.outputs) for r, f in zip(results, found, strict=True))
    assert len({repr((f.takes, f.outputs)) for f in found}) == len(found) > 200
    deeper = {(f.takes, f.text) for f in deepcoder_tasks.functions(3)}
    assert {(f.takes, f.text) for f in found} <= deeper


def test_splits_share_no_function_whatever_the_depth():
    by_split = {s: {repr((f.takes, f.outputs)) for d in (1, 2, 3) for f in deepcoder_tasks.split_functions(d, s)}
                for s in ("train", "valid", "test")}  # fmt: skip
    assert not by_split["train"] & by_split["test"] and not by_split["valid"] & (by_split["train"] | by_split["test"])
    tasks = DeepCoder.tasks(CONFIG, "test", 100)
    assert tasks == DeepCoder.tasks(CONFIG, "test", 120)[:100] and len({t.id for t in tasks}) == 100
    assert all(json.loads(json.dumps(t.data)) == t.data for t in tasks)
    with pytest.raises(ValueError, match="tasks asked for"):
        DeepCoder.tasks(CONFIG, "test", 10_000)
    with pytest.raises(ValueError, match="split"):
        DeepCoder.tasks(CONFIG, "dev", 1)


def test_every_solution_solves_and_demonstrations_get_better_over_the_turns():
    solved_by = []
    tasks = DeepCoder.tasks(CONFIG, "train", 60)
    for seed, task in enumerate(tasks):
        env, _ = env_at(task)
        assert env.step_quality(task.data["solution"]) == 1.0
        act, turn = DeepCoder.demonstrator(CONFIG, task, seed), 0
        while not env.over and turn < CONFIG.max_turns:
            before = env.snapshot()
            action = act(env)
            assert env.snapshot() == before
            turn, done = turn + 1, env.step(action)
        solved_by.append(turn if done.info["solved"] else 99)
    shares = [sum(t <= limit for t in solved_by) / len(tasks) for limit in (1, 3, 10)]
    assert 0.05 < shares[0] < 0.5 and all(a < b for a, b in pairwise(shares)) and shares[-1] > 0.7


@pytest.mark.parametrize("bad", [
    {"task_set": "mbpp"}, {"depth": 0}, {"depth": 5}, {"max_turns": 0}, {"hidden_tests": 0}, {"wall_s": 0},
    {"show_budget": 1},
])  # fmt: skip
def test_bad_configurations_are_refused(bad):
    with pytest.raises(ValueError):
        DeepCoderConfig(**bad)


def test_it_is_registered_and_takes_its_own_tasks_only():
    assert env_class("deepcoder") is DeepCoder
    with pytest.raises(ValueError, match="not a DeepCoder task"):
        DeepCoder(CONFIG).reset(Task("x", {"desc": ["SFFG"]}), 0)
