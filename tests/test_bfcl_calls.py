"""The parser, the executor and the benchmark's data. What evaluates text here does so with ground truth only."""

import decimal
import importlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_bfcl import play

from lib.envs import bfcl_data, bfcl_tasks
from lib.envs.base import Task
from lib.envs.bfcl import BFCL, BFCLConfig
from lib.envs.bfcl_calls import Call, CallError, canonical_state, compact, execute, functions, new_instances, parse

UTILS = "bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils"
FILES = {"root": {"home": {"type": "directory", "contents": {"a": {"type": "directory", "contents": {}}}}}}
DATA = {
    "category": "base",
    "classes": ["GorillaFileSystem", "MathAPI"],
    "initial_config": {"GorillaFileSystem": FILES},
    "missed": {},
    "question": [[{"role": "user", "content": "make b"}]],
    "ground_truth": [["mkdir('b')"]],
}


def official(category):
    return BFCLConfig(task_set="bfcl", category=category, max_turns=100)


def as_task(entry):
    return Task(entry["id"], {k: v for k, v in entry.items() if k != "id"})


@pytest.mark.parametrize("category", bfcl_data.CATEGORIES)
def test_ground_truth_of_all_tasks_passes_and_responses_equal_the_official_executors(category):
    bfcl_data.load_simulators()
    run = importlib.import_module(UTILS).execute_multi_turn_func_call  # on ground truth only: it evaluates text
    env, entries = BFCL(official(category)), bfcl_data.load_tasks(category)
    assert len(entries) == 200
    for e in entries:
        step = play(env, as_task(e), e["ground_truth"])
        assert step.done and step.info["solved"] and step.reward == 1.0, e["id"]
        for calls, (responses, _) in zip(e["ground_truth"], env._gold, strict=True):
            long = category == "long_context"
            theirs, _ = run(calls, e["initial_config"], e["classes"], "test", e["id"], long_context=long)
            assert responses == theirs, e["id"]


def test_flagged_wordings_are_demanded_and_given_nowhere():
    found, env = [], BFCL(official("base"))
    for i, e in enumerate(bfcl_data.load_tasks("base")):
        env.reset(as_task(e), 0)
        said, gold, demanded = "", env._gold, False
        for t, calls in enumerate(e["ground_truth"]):
            said += " ".join(m["content"] for m in e["question"][t]).lower() + "\n"
            for c, text in enumerate(calls):
                name, args, kwargs = parse(text)[0]
                for v in [v for v in (*args, *kwargs.values()) if isinstance(v, str) and len(v.split()) > 2]:
                    if v.lower() not in said:
                        other = {k: "Some other text" if x == v else x for k, x in kwargs.items()}
                        turns = [list(x) for x in e["ground_truth"]]
                        turns[t][c] = str(Call(name, args, other))
                        demanded |= not play(BFCL(official("base")), as_task(e), turns).info["solved"]
                said += gold[t][0][c].lower() + "\n"
        found += [i] * demanded
    assert tuple(found) == tuple(sorted(bfcl_data.WORDING_NOT_GIVEN["base"]))
    flagged = [e["id"] for e in bfcl_data.load_tasks("base") if e["defect"]]
    assert len(flagged) == 15 and flagged[0] == "multi_turn_base_4"


HOSTILE = [
    "[__import__('os').system('touch {path}')]", "[open('{path}', 'w')]", "[exec(\"open('{path}','w')\")]",
    "[mkdir(open('{path}','w'))]", "[mkdir(dir_name=__import__('os'))]", "[mkdir(*['b'])]", "[eval('1')]",
    "[mkdir(**{'dir_name':'b'})]", "[mkdir(f'{1}')]", "[(lambda: mkdir('b'))()]", "[mkdir('b') for _ in range(9**9)]",
    "[mkdir(b'b')]", "[_load_scenario({})]", "[__init__()]", "[mkdir.__globals__('b')]", "[GorillaFileSystem.ls()]",
    "[mkdir(mkdir('b'))]", "mkdir('b'); mkdir('c')", "[mkdir('b'", "[mkdir(9**9**9)]", "[" + "(" * 3000, "[None]",
    "f(" + "-" * 5000 + "1)", "[mkdir('" + "b" * 9000 + "')]", "[" + "pwd(1)," * 60 + "]", "[getattr('b')]",
    "[mkdir('b\0')]", "[power(9, 1000000000)]", "[power(base=2.5, exponent=10000)]", "[mean(['a'])]",
    "[logarithm('1e999999999', 10, 5)]", "[logarithm(3, 10, 100000000)]", "[square_root(2, 100000000)]",
    "[round_number(5, -1000000000)]", "[multiply('a', 10000000000)]", "[multiply(a=[1], b=9999999999)]",
    "[sum_values(numbers=1000000000000000000000)]",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_does_nothing(text, tmp_path):
    env = BFCL(official("base"))
    env.reset(Task("own", DATA), 0)
    before = canonical_state(env._s["instances"])
    step = env.step(text.replace("{path}", str(tmp_path / "x")))
    assert not step.done and (step.info["invalid"] or "rror" in step.observation)
    assert canonical_state(env._s["instances"]) == before and not list(tmp_path.iterdir())


def test_a_mathematical_call_leaves_the_process_as_it_was():
    import mpmath

    before = decimal.getcontext().prec, mpmath.mp.dps
    made = parse("[square_root(2, 50), logarithm(8, 2, 40), power(2, 10), mean([1, 2])]")
    responses = execute({"MathAPI": bfcl_data.load_simulators()["MathAPI"]()}, made, {c.name for c in made})
    assert (decimal.getcontext().prec, mpmath.mp.dps) == before
    assert "1.4142135623730950488016887242096980785696718753769" in responses[0] and "mpf('3.0')" in responses[1]
    assert responses[2:] == ['{"result": 1024}', '{"result": 1.5}']


def test_parsing_and_error_texts():
    assert (
        parse("I need the file's name (please).")
        == parse("")
        == parse(" [] ")
        == parse("<think>ls()</think>done")
        == []
    )
    assert parse("```python\n[ls(), cd(folder='a')]\n```") == [Call("ls", (), {}), Call("cd", (), {"folder": "a"})]
    assert parse("f([1, {'k': (True, None)}], x=-1.5)") == [Call("f", ([1, {"k": (True, None)}],), {"x": -1.5})]
    with pytest.raises(CallError, match="literal"):
        parse("[f(x)]")
    texts = execute(new_instances(DATA), parse("[mkdr('b'), mkdir(), cat('b'), pwd()]"), functions(DATA))
    assert texts[0] == "Error during execution: unknown function 'mkdr', did you mean 'mkdir'?"
    assert "missing 1 required positional argument: 'dir_name'" in texts[1] and "No such file" in texts[2]
    assert texts[3] == '{"current_working_directory": "/home"}'
    assert compact('{"matches": ["/a/x"]}') == "/a/x" and compact("None") == compact("{}") == "ok"
    assert compact('{"error": "no"}') == "error: no" and compact('{"id": 7, "n": {"k": 1.5}}') == "7, 1.5"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v, max_size=3),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(VALUES, max_size=3), st.dictionaries(st.sampled_from("abc"), VALUES), st.text(max_size=60))
def test_literal_calls_round_trip_and_any_text_is_parsed_or_refused(args, kwargs, text):
    call = Call("f", tuple(args), kwargs)
    assert parse(f"[{call}, {call}]") == [call, call]
    for candidate in (text, f"[f({text})]"):
        try:
            assert all(isinstance(c, Call) for c in parse(candidate))
        except CallError:
            pass


def test_official_splits():
    ids = [{t.id for t in BFCL.tasks(official("base"), s, n)} for s, n in (("train", 100), ("valid", 20), ("test", 80))]
    assert len(set.union(*ids)) == 200
    for bad in (("dev", 1), ("train", 0), ("test", 81)):
        with pytest.raises(ValueError):
            BFCL.tasks(official("base"), *bad)


def test_test_tasks_that_were_looked_at_are_left_out(monkeypatch):
    panel = BFCL.tasks(BFCLConfig(), "test", 5)
    monkeypatch.setattr(bfcl_tasks, "SEEN", 0)
    stream = [t.data for t in BFCL.tasks(BFCLConfig(), "test", 105)]
    assert [t.data for t in panel] == stream[100:]


def test_runaway_states_end_the_episode_without_success():
    env = BFCL(official("base"))
    deep = ", ".join(["mkdir('d'), cd('d')"] * 25)
    wide = ", ".join(["cp('a', 'e'), mv('e', 'a'), cp('a', 'f'), mv('f', 'a')"] * 12)
    for text in ("[cp('a', 'a')]", f"[{wide}]", f"[{deep}]"):
        env.reset(Task("own", DATA), 0)
        steps = [env.step(text)]
        while not steps[-1].done:
            steps.append(env.step(text))
        assert len(steps) <= 21 and not steps[-1].info["solved"] and steps[-1].reward == 0
        assert env.state_key() and env.snapshot()
