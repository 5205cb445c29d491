"""The official task sets: all shapes of tests, and HumanEval judged as its package would."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lib.envs import deepcoder_data, humaneval
from lib.envs.deepcoder import DeepCoder, DeepCoderConfig
from lib.envs.deepcoder_data import BadRow, official_tasks, parse_tests, to_data
from lib.envs.deepcoder_grade import grade

CONFIG = DeepCoderConfig(task_set="deepcoder")
ADD = "class Solution:\n    def add(self, a: int, b: List[int]) -> int:\n        return a + sum(b)"
LCB = [{"input": f"{a}\n[{a}, 1]", "output": str(2 * a + 1), "testtype": "functional"} for a in (1, 2, 3)]
# name: (tests, metadata, a right program, a wrong one)
SHAPES = {
    "LiveCodeBench, stdin": (
        [{"input": "2\n1 2\n", "output": "3\n", "testtype": "stdin"}] * 2, None,
        "input(); print(sum(map(int, input().split())))", "print(4)"),
    "LiveCodeBench, function": (LCB, {"func_name": "add"}, ADD, ADD.replace("+", "-")),
    "LiveCodeBench, name with the test": (
        [t | {"metadata": {"func_name": "add"}} for t in LCB], None, ADD, "def add(a, b): return None"),
    "TACO, stdin": ({"inputs": ["3\n", ["1", "2"]], "outputs": ["6", ["2"]]}, None,
                    "print(2 * int(input()))", "print(6)"),
    "TACO, function": ({"inputs": [[3, "a"], [2, "b"]], "outputs": ["aaa", "bb"], "fn_name": "rep"}, None,
                       "def rep(n, s):\n    return n * s", "n, s = 3, 'a'\nprint(n * s)\nrep = None"),
    "TACO, function, wrapped": (
        {"inputs": [[[1, 2]], [[5]]], "outputs": [[[2, 1]], [[5]]], "fn_name": "back"}, None,
        "def back(x):\n    return tuple(x[::-1])", "def back(x):\n    return x"),
    "PrimeIntellect, stdin": ([{"type": "stdin_stdout", "input": "1.50", "output": "3.0"}] * 2, None,
                              "print(float(input()) * 2)", "print('3.0.0')"),
    "PrimeIntellect, function": (
        [{"type": "function_call", "fn_name": "g", "input": [[1], 2], "output": [{"a": 1.0}]}] * 2, None,
        "def g(x, n):\n    return {'a': 0.1 * 10}", "def g(x, n):\n    return {'b': 1}"),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("as_text", [True, False])
def test_every_shape_of_tests_tells_right_from_wrong(name, as_text):
    tests, metadata, right, wrong = SHAPES[name]
    if as_text:
        tests, metadata = json.dumps(tests), json.dumps(metadata)
    row = {"problem": "…", "tests": tests, "metadata": metadata, "starter_code": None}
    data = to_data(row, shown=1, hidden=5)
    assert data["shown"] == 1 and len(data["inputs"]) >= 2 and json.loads(json.dumps(data)) == data
    assert all(o.passed for o in grade(data, right, CONFIG.limits))
    assert not all(o.passed for o in grade(data, wrong, CONFIG.limits))


@pytest.mark.parametrize("bad", [
    "{", "[]", "3", {"inputs": ["1"], "outputs": []}, [{"input": "1"}], {"inputs": [], "outputs": []},
    [{"input": "1", "output": "1", "testtype": "interactive"}],
    [{"input": "1", "output": "1", "testtype": "functional"}],
    [{"input": "{", "output": "1", "testtype": "functional", "metadata": {"func_name": "f"}}],
])  # fmt: skip
def test_unknown_shapes_are_refused(bad):
    with pytest.raises(BadRow):
        parse_tests(bad)


def test_shown_tests_come_first_and_the_longest_of_the_others_are_held_out():
    tests = {"inputs": ["1", "22", "1" * 9, "4", "5" * 5], "outputs": list("abcde")}
    data = to_data({"problem": "", "tests": tests}, shown=2, hidden=2)
    assert data["inputs"] == ["1", "22", "1" * 9, "5" * 5] and data["outputs"] == [["a"], ["b"], ["c"], ["e"]]
    only = to_data({"problem": "", "tests": {"inputs": ["1"], "outputs": ["2"]}}, shown=2, hidden=2)
    assert only["shown"] == 0 and len(only["inputs"]) == 1


def test_the_data_set_is_streamed_and_bad_rows_are_named(tmp_path, monkeypatch, capsys):
    good, bad = {"inputs": ["1", "2"], "outputs": ["1", "2"]}, {"inputs": ["1"]}
    for config, split in (("primeintellect", "train"), ("taco", "train"), ("lcbv5", "train"), ("codeforces", "test")):
        (tmp_path / config).mkdir()
        rows = [{"problem": f"{config} {i}", "tests": json.dumps(bad if i == 1 else good)} for i in range(21)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / config / f"{split}.parquet")
    head = "".join(
        f"- config_name: {c}\n  data_files:\n  - split: {s}\n    path: {c}/{s}.parquet\n"
        for c, s in (("primeintellect", "train"), ("taco", "train"), ("lcbv5", "train"), ("codeforces", "test"))
    )
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{head}---\n")
    monkeypatch.setattr(deepcoder_data, "DATASET", str(tmp_path))
    train, valid = DeepCoder.tasks(CONFIG, "train", 30), DeepCoder.tasks(CONFIG, "valid", 5)
    assert "primeintellect-train-00001" in capsys.readouterr().err
    assert {t.id for t in valid} & {t.id for t in train} == set() and valid[
        0
    ].id == "deepcoder-primeintellect-train-00000"
    test = DeepCoder.tasks(CONFIG, "test", 20)
    assert test[0].data["problem"] == "codeforces 0" and test[0].data["kind"] == "stdin"
    with pytest.raises(ValueError, match="30 tasks asked for, 20 found"):
        official_tasks(({**r, "id": str(i)} for i, r in enumerate([{"problem": "", "tests": good}] * 20)), 30, 1, 1)
    env = DeepCoder(CONFIG)
    assert "stdin" in env.reset(test[0], 0)[0]["content"]
    assert env.step("```python\nprint(input())\n```").info["solved"]
    with pytest.raises(ValueError, match="no demonstrations"):
        DeepCoder.demonstrator(CONFIG, test[0], 0)


def humaneval_task(number):
    tasks = dict(task for split in humaneval.SPLITS for task in humaneval.tasks(split))
    return tasks[f"humaneval-{number:03d}"]


def test_all_reference_solutions_of_humaneval_pass_and_a_changed_one_does_not():
    tasks = [task for split in humaneval.SPLITS for task in humaneval.tasks(split)]
    assert len({name for name, _ in tasks}) == 164
    for name, data in tasks:
        outcomes = grade(data, data["solution"], CONFIG.limits)
        assert outcomes and all(o.passed for o in outcomes), name
    data = humaneval_task(0)
    changed = data["solution"].replace("distance < threshold", "distance > threshold")
    outcomes = grade(data, changed, CONFIG.limits)
    assert changed != data["solution"] and 0 < sum(o.passed for o in outcomes) < len(outcomes)


def test_humaneval_accepts_what_its_asserts_accept_and_cannot_be_fooled():
    roots = humaneval_task(32)  # any zero of the polynomial is right, not only the reference's
    newton = (
        "def find_zero(xs):\n  for s in range(-300, 300):\n    x = s / 10\n    for _ in range(200):\n"
        "      d = (poly(xs, x + 1e-7) - poly(xs, x - 1e-7)) / 2e-7\n      if d == 0 or abs(x) > 1e6: break\n"
        "      x -= poly(xs, x) / d\n      if abs(poly(xs, x)) < 1e-9: return x\n"
    )
    assert all(o.passed for o in grade(roots, newton, CONFIG.limits))
    data = humaneval_task(0)
    for fake in (
        "class T:\n  __eq__ = lambda s, o: True\ndef has_close_elements(*a): return T()",
        "import sys\ndef has_close_elements(*a):\n  f = sys._getframe()\n  while f.f_back: f = f.f_back\n"
        "  return f.f_locals",
        "def has_close_elements(*a): raise SystemExit(0)",
        "import os; os._exit(0)",
    ):
        assert not any(o.passed for o in grade(data, fake, CONFIG.limits)), fake


def test_a_humaneval_episode_shows_asserts_of_the_shown_tests_only():
    config = DeepCoderConfig(task_set="humaneval", shown_tests=2, shown_failures=3)
    (task,) = DeepCoder.tasks(config, "test", 1)
    env = DeepCoder(config)
    assert "has_close_elements" in env.reset(task, 0)[1]["content"]
    step = env.step("```python\ndef has_close_elements(numbers, threshold):\n    return None\n```")
    assert step.observation.startswith(
        "Passed 0 of 2.\nInput: [1.0, 2.0, 3.9, 4.0, 5.0, 2.2], 0.3\nExpected: candidate("
    )
    assert step.observation.count("Got: None") == 2 and step.info["quality"] == 0
    head = "```python\ndef has_close_elements(numbers, threshold):\n    return "
    assert [env.step_loss(head + end + "\n```") for end in ("None", "numbers[99]", "bool(numbers[6] * 0)")] == [0, 1, 1]
    assert env.step(f"```python\n{task.data['solution']}\n```").info["solved"]
    assert DeepCoder.demonstrator(config, task, 1)(env).startswith("```python\n")
    with pytest.raises(ValueError, match="HumanEval has 41"):
        DeepCoder.tasks(config, "train", 42)
