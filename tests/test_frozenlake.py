"""FrozenLake as an environment: slips, snapshots, text, parsing, tasks."""

from itertools import product

import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from lib.envs.base import Task
from lib.envs.frozenlake import ACTIONS, FrozenLake, FrozenLakeConfig, q_star, v_star

MAP3 = ["SFF", "FHF", "FFG"]


def gym_p(desc, rate):
    return FrozenLakeEnv(desc=desc, is_slippery=rate < 1, success_rate=rate).P


def play(env, desc, seed=0, budget=None):
    return env.reset(Task("t", {"desc": desc}), seed, budget)


def lake(desc, **config):
    env = FrozenLake(FrozenLakeConfig(size=len(desc), **config))
    play(env, desc)
    return env


def test_slips_have_gymnasiums_probabilities():
    desc = ["SFF", "FFF", "FFG"]
    env, P = lake(desc), gym_p(desc, 0.8)
    for before, a in (((), 2), ((), 3), (("Left", "?", "?"), 1)):  # the first draw of a seed, and a later one
        counts = np.zeros(9)
        for seed in range(2000):
            play(env, desc, seed)
            for action in before:
                env.step(action)
            env.position, env.streak = 4, 0
            counts[env.step(ACTIONS[a]).info["position"]] += 1
        expected = np.zeros(9)
        for p, s, _, _ in P[4][a]:
            expected[s] += p
        assert (counts[expected == 0] == 0).all()
        assert chisquare(counts[expected > 0], 2000 * expected[expected > 0]).pvalue > 0.001


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**63),
    actions=st.lists(st.sampled_from([*ACTIONS, "hm"]), min_size=1, max_size=12),
    cut=st.integers(0, 11),
    mode=st.sampled_from(["grid", "coordinates", "both"]),
    show=st.booleans(),
)
def test_an_episode_goes_on_from_a_snapshot_as_it_did(seed, actions, cut, mode, show):
    config = FrozenLakeConfig(observation=mode, show_budget=show, max_turns=12)
    env = FrozenLake(config)
    env.reset(FrozenLake.tasks(config, "train", 3)[seed % 3], seed)
    trace, blobs = [], []
    for action in actions:
        blobs.append(env.snapshot())
        quality, key = env.step_quality(action), env.state_key()
        assert 0 <= quality <= 1 and env.snapshot() == blobs[-1]
        trace.append((env.step(action), quality, key, env.snapshot()))
        if env.over:
            break
    cut = min(cut, len(trace) - 1)
    for other in (env, FrozenLake(config)):
        other.restore(blobs[cut])
        for action, expected in zip(actions[cut:], trace[cut:], strict=False):
            quality, key = other.step_quality(action), other.state_key()
            assert (other.step(action), quality, key, other.snapshot()) == expected


def test_text_of_an_episode():
    env = lake(["SHF", "FFF", "FFG"], success_rate=1.0)
    system, user = play(env, ["SHF", "FFF", "FFG"])
    assert (system["role"], user) == ("system", {"role": "user", "content": "P O _\n_ _ _\n_ _ G"})
    assert len(system["content"].split()) <= 60 and "slip" not in system["content"]
    assert env.step("Down") == ("_ O _\nP _ _\n_ _ G", 0.0, False, {"solved": False, "invalid": False, "position": 3})
    invalid = env.step("swim")
    assert invalid.observation == "Invalid. Answer with one word: Left, Down, Right or Up.\n_ O _\nP _ _\n_ _ G"
    assert invalid.info == {"solved": False, "invalid": True, "position": 3} and env.turns_left == 18
    env.step("right"), env.step("right")
    end = env.step("down")
    assert end == ("You reached the goal.", 1.0, True, {"solved": True, "invalid": False, "position": 8})
    assert env.value() == 0 == env.step_quality("swim")
    with pytest.raises(RuntimeError, match="over"):
        env.step("up")
    play(env, ["SHF", "FFF", "FFG"])
    assert env.step("Right")[:3] == ("You fell into a hole.", 0.0, True)


def test_other_observations():
    env = lake(["SF", "FG"], success_rate=1.0, observation="coordinates", show_budget=True, max_turns=3)
    assert play(env, ["SF", "FG"])[1]["content"] == "P _\n_ G\nrow 1, column 1\nYou have 3 turns left."
    assert env.step("Down").observation == "row 2, column 1\nYou have 2 turns left."
    assert env.step("Left").observation == "row 2, column 1\nYou have 1 turn left."
    env.step("Left")
    with pytest.raises(RuntimeError, match="3 of 3 turns"):
        env.step("Right")
    env = lake(["SF", "FG"], success_rate=1.0, observation="both")
    assert env.step("Right").observation == "_ P\n_ G\nrow 1, column 2"


@pytest.mark.parametrize(
    "text, action",
    [
        ("Left", 0), ("down.", 1), ("**RIGHT**", 2), ("I go Left", None), ("Left Left", None),
        ("<think>Left</think>Down", 1),
        ("Left <think>Down", 0), ("<think>Down", None), ("Up<answer>Right</answer>Left", 2),
        ("<answer>Up</answer><answer>Down", 1), ("<answer>3</answer> Left", None), ("upper", None), ("", None),
        ("r\u0131ght", None), ("<think>Up</think><think>Down</think>\n<answer> left </answer>", 0),
    ],
)  # fmt: skip
def test_parse(text, action):
    assert FrozenLake.parse(text) == action


def test_invalid_answers_in_a_row_end_the_episode():
    env = lake(["SF", "FG"], max_invalid=2, max_turns=4)
    assert env.step_quality("?") == pytest.approx(v_star(gym_p(["SF", "FG"], 0.8), 4)[3, 0], rel=1e-12)
    assert [env.step(a).done for a in ("?", "Left", "?")] == [False, False, False]
    assert env.step_quality("?") == 0  # it would end the episode
    assert env.step("!") == ("Invalid. Answer with one word: Left, Down, Right or Up.\n", 0.0, True, {
        "solved": False, "invalid": True, "position": env.position})  # fmt: skip


def test_step_quality_uses_the_budget():
    env, q = lake(MAP3), q_star(gym_p(MAP3, 0.8), 20)
    play(env, MAP3, budget=5)
    np.testing.assert_allclose([env.step_quality(a) for a in ACTIONS], q[5, 0])
    env.step("?")
    np.testing.assert_allclose(env.q_values(), q[4, 0])
    assert env.value() == pytest.approx(q[4, 0].max())


def test_splits_share_no_map():
    config = FrozenLakeConfig(size=3)
    maps = {s: ["".join(t.data["desc"]) for t in FrozenLake.tasks(config, s, n)]
            for s, n in (("train", 1000), ("valid", 300), ("test", 300))}  # fmt: skip
    every = sum(maps.values(), [])
    assert len(set(every)) == len(every)  # neither between splits nor within one
    few = FrozenLake.tasks(config, "test", 20)
    assert few == FrozenLake.tasks(config, "test", 50)[:20] and few != FrozenLake.tasks(config, "valid", 20)
    for m in every[::20]:
        assert v_star(gym_p([m[:3], m[3:6], m[6:]], 0.8), 20)[20, m.index("S")] > 0
    for task in FrozenLake.tasks(FrozenLakeConfig(max_turns=2), "train", 50):  # within reach in two moves
        assert v_star(gym_p(task.data["desc"], 0.8), 2)[2, "".join(task.data["desc"]).index("S")] > 0


def test_fixed_start_and_goal_and_exhausted_splits():
    config = FrozenLakeConfig(size=3, start="fixed", goal="fixed", max_turns=4)
    for task in FrozenLake.tasks(config, "train", 10):
        assert task.data["desc"][0][0] == "S" and task.data["desc"][2][2] == "G"
    with pytest.raises(ValueError, match="only"):
        FrozenLake.tasks(FrozenLakeConfig(size=2), "test", 50)
    for split, n in (("dev", 1), ("train", 0)):
        with pytest.raises(ValueError, match="split"):
            FrozenLake.tasks(config, split, n)


def test_demonstrators_range_from_weak_to_good_and_leave_the_environment_alone():
    config = FrozenLakeConfig()
    tasks, env, wins = FrozenLake.tasks(config, "train", 30), FrozenLake(config), np.zeros(40)
    for d, task in product(range(40), tasks):
        env.reset(task, d)
        act = FrozenLake.demonstrator(config, task, d)
        while env.turns_left and not env.over:
            before = env.snapshot()
            action = act(env)
            assert env.snapshot() == before and action in ACTIONS
            wins[d] += env.step(action).reward / len(tasks)
    assert 0.3 < wins.mean() < 0.75 and wins.min() < 0.35 and wins.max() > 0.7


@pytest.mark.parametrize(
    "bad",
    [
        {"size": 1}, {"size": 4.0}, {"size": True}, {"frozen_share": 0}, {"frozen_share": 1.1}, {"frozen_share": "1"},
        {"success_rate": 0.0}, {"success_rate": float("nan")}, {"start": "left"}, {"goal": None}, {"max_turns": 0},
        {"observation": "image"}, {"show_budget": 1}, {"max_invalid": 0}, {"task_set": "official"}, {"task_set": ""},
    ],
)  # fmt: skip
def test_bad_config(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        FrozenLakeConfig(**bad)


def test_bad_input_is_refused():
    env = FrozenLake(FrozenLakeConfig(size=3))
    for call in (lambda: env.step("Up"), env.snapshot, env.q_values):
        with pytest.raises(RuntimeError, match="reset"):
            call()
    for desc in (["SF", "FG"], ["SFF", "FFF", "FFF"], ["SSG", "FFF", "FFF"], ["SFX", "FFF", "FFG"], []):
        with pytest.raises(ValueError, match="map"):
            play(env, desc)
    for kwargs in ({"budget": 0}, {"budget": 21}, {"seed": -1}):
        with pytest.raises(ValueError, match=next(iter(kwargs))):
            play(env, MAP3, **kwargs)
    for blob in (b"", b"3", b"[1,2]"):
        with pytest.raises(ValueError, match="snapshot"):
            env.restore(blob)
    with pytest.raises(ValueError, match="snapshot"):
        env.restore(lake(MAP3, max_turns=30).snapshot())
    with pytest.raises(ValueError, match="map"):
        env.restore(lake(["SF", "FG"]).snapshot())
    with pytest.raises(ValueError, match="FrozenLakeConfig"):
        FrozenLake({})
