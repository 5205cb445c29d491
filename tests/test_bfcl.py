import importlib
import json
import pickle
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.envs import bfcl_data
from lib.envs.base import NoStepMeasure, Task, env_class
from lib.envs.bfcl import BFCL, BFCLConfig

OWN = BFCLConfig()
PANEL = BFCL.tasks(OWN, "train", 60)
CHECKER = "bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker"
FILES = {"root": {"home": {"type": "directory", "contents": {"a": {"type": "directory", "contents": {}}}}}}


def official(category, **kwargs):
    return BFCLConfig(task_set="bfcl", category=category, max_turns=100, **kwargs)


def as_task(entry):
    return Task(entry["id"], {k: v for k, v in entry.items() if k != "id"})


def own_task(gold=(("mkdir('b')",), ("cd('a')",))):
    data = {"category": "base", "classes": ["GorillaFileSystem"], "initial_config": {"GorillaFileSystem": FILES}}
    question = [[{"role": "user", "content": "request"}] for _ in gold]
    return Task("own", data | {"question": question, "ground_truth": [list(g) for g in gold], "missed": {}})


def play(env, task, turns):
    """All calls of a user turn in one step, then []; the last Step."""
    env.reset(task, 0)
    for calls in turns:
        for text in ([f"[{', '.join(calls)}]"] if calls else []) + ["[]"]:
            step = env.step(text)
            assert not step.info["invalid"]
            if step.done:
                return step
    raise AssertionError("the episode did not end")


def official_verdict(entry, turns, name):
    check = importlib.import_module(CHECKER).multi_turn_checker
    decoded = [[calls] if calls else [] for calls in turns]
    task = {**entry, "involved_classes": entry["classes"]}
    return check(decoded, entry["ground_truth"], task, entry["category"], name)["valid"]


def test_verdicts_on_corrupted_ground_truth_equal_the_official_checkers():
    env, rng, failed = BFCL(official("base")), random.Random(0), 0
    for k, e in enumerate(bfcl_data.load_tasks("base")[::4]):
        turns = [list(calls) for calls in e["ground_truth"]]
        t = rng.choice([t for t, calls in enumerate(turns) if calls])
        turns[t].pop(rng.randrange(len(turns[t])))
        solved = play(env, as_task(e), turns).info["solved"]
        assert solved == official_verdict(e, turns, f"corrupt{k}")
        failed += not solved
    assert failed > 40  # dropping a call that changes nothing and whose answer is known already is allowed


def actions_of(task):
    pool = [f"[{c}]" for calls in task.data["ground_truth"] for c in calls]
    return st.lists(st.sampled_from([*pool, *pool, "[]", "[f(", "[ls(), nothing()]"]), max_size=6)


ROWS = [(OWN, t) for t in PANEL[:30]] + [
    (official(c, show_budget=True), as_task(bfcl_data.load_tasks(c)[i]))
    for c in bfcl_data.CATEGORIES
    for i in (0, 60, 120, 180)
]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_restored_episode_goes_on_exactly_like_the_original(data):
    config, task = data.draw(st.sampled_from(ROWS))
    env, other, over = BFCL(config), BFCL(config), False
    env.reset(task, 0)
    for action in data.draw(actions_of(task)):
        over = over or env.step(action).done
    blob, key = env.snapshot(), env.state_key()
    other.restore(blob)
    assert other.snapshot() == blob and other.state_key() == key
    for action in data.draw(actions_of(task)):
        if over:
            break
        mine, theirs = env.step(action), other.step(action)
        assert mine == theirs and env.snapshot() == other.snapshot() and env.state_key() == other.state_key()
        over = mine.done
    env.restore(blob)
    assert env.snapshot() == blob and env.state_key() == key


def test_parallel_episodes_share_nothing():
    def steps(env, task):
        env.reset(task, 0)
        for calls in task.data["ground_truth"]:
            for text in [*(f"[{c}]" for c in calls), "[]"]:
                yield env.step(text), env.state_key()

    rows = [
        (OWN, PANEL[0]),
        (OWN, PANEL[0]),
        (OWN, PANEL[1]),
        *[r for r in ROWS[30:] if r[0].category == "long_context"],
    ]
    alone = [list(steps(BFCL(c), t)) for c, t in rows]
    runs = [steps(BFCL(c), t) for c, t in rows]
    together = [[] for _ in rows]
    for _ in range(max(map(len, alone))):
        for run, out in zip(runs, together, strict=True):
            out.extend(x for x in [next(run, None)] if x)
    assert together == alone and all(run[-1][0].info["solved"] for run in alone)


def test_state_key_names_the_state_and_not_the_way_to_it():
    env = BFCL(official("base"))

    def key(*actions):
        env.reset(own_task(), 0)
        for a in actions:
            env.step(a)
        return env.state_key()

    assert key("[mkdir('x')]", "[mkdir('y')]") == key("[mkdir('y'), cat('q')]", "[f(", "[mkdir('x')]")
    assert key("[cd('a')]", "[cd('..')]") != key("[cd('a')]") != key("[pwd()]") != key()
    assert key("[mkdir('b')]") != key("[mkdir('b')]", "[]")
    assert key("[mkdir('b')]", "[]", "[cd('a')]") == key("[cd('a')]", "[cd('..')]", "[mkdir('b')]", "[]", "[cd('a')]")


def test_procedural_tasks_are_solved_by_their_ground_truth_only_and_splits_are_disjoint():
    env, digests = BFCL(OWN), {}
    for split in ("train", "valid", "test"):
        panel = BFCL.tasks(OWN, split, 200)
        assert panel[:20] == BFCL.tasks(OWN, split, 20)
        digests[split] = {json.dumps(t.data, sort_keys=True) for t in panel}
        assert len(digests[split]) == 200
    assert len(set.union(*digests.values())) == 600
    rows = []
    for k, task in enumerate(PANEL[:25]):
        gold = task.data["ground_truth"]
        assert play(env, task, gold).info["solved"]
        assert not any("rror" in r for responses, _ in env._gold for r in responses)
        for t, c in ((t, c) for t, calls in enumerate(gold) for c in range(len(calls))):
            fewer = [[x for d, x in enumerate(calls) if (t, c) != (u, d)] for u, calls in enumerate(gold)]
            rows.append(play(env, task, fewer).info["solved"])
            assert rows[-1] == official_verdict(task.data | {"id": f"own{k}_0"}, fewer, f"own_{t}_{c}")
    assert sum(rows) < 0.1 * len(rows)  # only a look-up whose answer is known from before can be left out
    assert {t.data["classes"][0] for t in PANEL} == {
        "GorillaFileSystem",
        "VehicleControlAPI",
        "TradingBot",
        "MessageAPI",
    }


def test_demonstrators_leave_the_environment_alone_and_are_of_mixed_quality():
    env, solved = BFCL(OWN), []
    for seed, task in enumerate(PANEL):
        env.reset(task, 0)
        act, act2 = (BFCL.demonstrator(OWN, task, seed) for _ in range(2))
        done = False
        for _ in range(OWN.max_turns):
            before = env.snapshot()
            text = act(env)
            assert env.snapshot() == before and act2(env) == text
            step = env.step(text)
            if done := step.done:
                break
        solved.append((act.noise, done and step.info["solved"]))
        perfect = BFCL.demonstrator(OWN, task, seed)
        perfect.noise = 0.0
        env.reset(task, 0)
        while not (step := env.step(perfect(env))).done:
            pass
        assert step.info["solved"]
    half = len(solved) // 2
    good, bad = (sum(s for _, s in part) for part in (sorted(solved)[:half], sorted(solved)[half:]))
    assert good > bad > 0


def test_rules_of_the_episode():
    env = env_class("bfcl")(BFCLConfig(max_invalid=2, show_budget=True, max_turns=5))
    first = env.reset(PANEL[0], 0, budget=3)
    assert [m["role"] for m in first] == ["system", "user"] and first[1]["content"].endswith("You have 3 turns left.")
    assert first[0]["content"] == ",".join(PANEL[0].data["functions"])
    assert env.step("[f(").observation.endswith("You have 2 turns left.") and env.step("[g()]").info["invalid"] is False
    assert [env.step("[f(").done, env.step("[f(").done] == [False, True]
    with pytest.raises(RuntimeError, match="over"):
        env.step("[]")
    with pytest.raises(NoStepMeasure):
        env.step_quality("[]")
    env = BFCL(official("base"))
    env.reset(own_task(), 0)
    assert [env.step("[pwd()]").done for _ in range(21)] == [False] * 20 + [True]
    failing = [["mkdir('c')"], ["cd('a')"]]
    step = play(env, own_task(), failing)
    assert step.done and step.info == {"solved": False, "invalid": False, "user_turn": 0, "turn_passed": False}
    step = play(BFCL(official("base", stop_at_failed_turn=False)), own_task(), failing)
    assert step.info["user_turn"] == 1 and not step.info["solved"] and step.reward == 0
    assert not play(env, own_task(gold=[["pwd()"]]), [[]]).info["solved"]  # no call where one is due


def test_prompts_of_official_tasks():
    entry = as_task(bfcl_data.load_tasks("miss_func")[0])  # sort is held back until the fourth user turn
    texts = {}
    for docs in ("signatures", "official", "all"):
        env = BFCL(official("miss_func", docs=docs))
        texts[docs] = env.reset(entry, 0)[0]["content"]
        assert "sort(" not in texts[docs] and '"sort"' not in texts[docs]
        for calls in entry.data["ground_truth"][:3]:
            later = [env.step(text).observation for text in [f"[{', '.join(calls)}]"] * bool(calls) + ["[]"]][-1]
        assert ("sort(file_name: string)" if docs == "signatures" else '"sort"') in later and "updated" in later
    assert len(texts["signatures"]) < 6000 < 20000 < len(texts["official"]) < len(texts["all"])
    assert "ls([a: boolean])" in texts["signatures"] and "setHeadlights" in texts["all"]
    own = BFCL(BFCLConfig(docs="signatures")).reset(PANEL[0], 0)[0]["content"]
    assert all(f"\n{name}(" in own for name in PANEL[0].data["functions"])


@pytest.mark.parametrize("field", [
    {"task_set": "official"}, {"category": "composite"}, {"docs": "full"}, {"docs": "names", "task_set": "bfcl"},
    {"domains": ("files", "planes")}, {"domains": ()}, {"max_turns": 0}, {"max_user_turns": 5}, {"show_budget": 1},
])  # fmt: skip
def test_wrong_config_is_refused(field):
    with pytest.raises(ValueError):
        BFCLConfig(**field)


def test_wrong_input_is_refused(tmp_path, monkeypatch):
    env = BFCL(OWN)
    with pytest.raises(RuntimeError, match="reset"):
        env.step("[]")
    for bad in ((PANEL[0], 0, 21), (Task("x", {"desc": []}), 0, 5)):
        with pytest.raises(ValueError):
            env.reset(*bad)
    env.reset(PANEL[0], 0)
    for blob in (b"", b"nonsense", pickle.dumps(("x",) * 4), pickle.dumps(importlib.import_module), env.snapshot()):
        with pytest.raises(ValueError):
            BFCL(BFCLConfig(max_turns=9)).restore(blob)
    monkeypatch.setattr(bfcl_data, "DATA", tmp_path)
    monkeypatch.setattr(bfcl_data, "WHEEL", tmp_path / bfcl_data.WHEEL.name)
    bfcl_data.WHEEL.write_bytes(b"changed")
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  {bfcl_data.WHEEL.name}\n")
    with pytest.raises(ValueError, match="SHA-256"):
        bfcl_data.fetch()
