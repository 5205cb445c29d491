"""Error states and continuations on lakes whose values are known by hand or by exact policy evaluation."""

import numpy as np
import pandas as pd
import pytest
from known_odds import ACTIONS, END, lake, odds_policy, scripted

from lib.analyses.config import AnalysisConfig
from lib.analyses.continuation import continue_from
from lib.analyses.error_states import (
    at_delta,
    continuation_success,
    error_states,
    forced_error_states,
    picks_better,
    summary,
    visited_error_states,
)  # fmt: skip
from lib.analyses.states import state_at, tokens_before
from lib.envs.base import Env
from lib.envs.frozenlake import FrozenLake, dynamics, q_pi
from lib.episode import End

ALWAYS = {"Right": 0.7, "Left": 0.3}  # with one token an action: these two words and nothing else


class Unnamed(FrozenLake):
    action_names = ()


def test_visited_error_states_by_hand():
    # SF/FG, not slippery, 3 turns. Left at S keeps S. With 3 turns left it loses nothing, with 2 left it loses all.
    config, tasks = lake("SF", "FG")
    policy = odds_policy(ALWAYS, max_action_tokens=1)
    late = scripted(policy, config, tasks[0], ["Left", "Left", "Right"])
    fine = scripted(policy, config, tasks[1], ["Left", "Right", "Down"])
    (s,) = visited_error_states([late, fine], FrozenLake(config), "rl", 3, delta=0.5, seed=0)
    assert (s.task, s.turn, s.loss, s.source) == ("lake-0", 3, 1.0, "rl")
    assert s.snapshot == late.turns[2].state and s.tokens == tokens_before(late, 2)
    # an error that ends the episode, here by the last turn, leaves no state
    assert visited_error_states([scripted(policy, config, tasks[0], ["Left", "Right", "Up"])], FrozenLake(config),
                                "rl", 3, 0.5, 0) == []  # fmt: skip


def test_forced_errors_are_uniform_over_the_bad_actions_and_continue_the_tokens():
    config, tasks = lake("SFF", "FFF", "FFG", max_turns=4)  # exactly the 4 moves that are needed: Left and Up lose all
    policy = odds_policy(ALWAYS, max_action_tokens=1)
    stored = scripted(policy, config, tasks[0], ["Right"])
    played, env = [], FrozenLake(config)
    for seed in range(200):
        (s,) = forced_error_states([stored], env, policy, "base", 1, delta=0.1, seed=seed)
        assert (s.turn, s.loss, s.budget) == (2, 1.0, 4)
        env.restore(s.snapshot)
        assert (env.position, env.turns_left, env.value()) == (0, 3, 0.0)  # against the wall: still at the start
        before, observation = stored.turns[0].context, env._observe()
        for name in ("Left", "Up"):
            action = policy.chat.assistant(name)
            if s.tokens == before + action + policy.chat.between(action, observation):
                played.append(name)
    assert len(played) == 200 and abs(played.count("Left") - 100) < 4 * np.sqrt(50)
    with pytest.raises(ValueError, match="names no action texts"):
        forced_error_states([stored], Unnamed(config), policy, "base", 1, 0.1, 0)


def test_forced_errors_never_leave_a_finished_episode():
    config, tasks = lake("SF", "HG", success_rate=0.8, max_turns=4)
    policy = odds_policy(ALWAYS, max_action_tokens=1)
    stored = [scripted(policy, config, t, ["Left", "Left", "Left", "Left"], k) for t in tasks for k in range(8)]
    env = FrozenLake(config)
    found = forced_error_states(stored, env, policy, "base", 4, delta=0.05, seed=0)
    assert found
    for s in found:
        env.restore(s.snapshot)
        assert not env.over and env.turns_left == s.budget - s.turn + 1 >= 1 and s.loss >= 0.05


def test_continuations_have_the_exact_value_of_the_policy_and_share_the_slips():
    config, tasks = lake("SFF", "HFG", "FFF", success_rate=0.8, max_turns=5)
    odds = {"Right": 0.4, "Down": 0.3, "Up": 0.2, "Left": 0.1}
    policy = odds_policy(odds, max_action_tokens=1)
    state = state_at("base", scripted(policy, config, tasks[0], ["Up", "Up"]), 1)  # at most one step away, 4 turns left
    env = FrozenLake(config)
    env.restore(state.snapshot)
    pi = np.tile([odds[a] for a in ACTIONS], (9, 1))
    exact = float(pi[0] @ q_pi(dynamics(tuple(tasks[0].data["desc"]), 0.8), pi, 4)[4, env.position])
    (played,) = continue_from(policy, FrozenLake, config, [state], 800, seed=1)
    solved = np.array([e.solved for e in played])
    assert abs(solved.mean() - exact) < 4 * np.sqrt(exact * (1 - exact) / 800)
    assert all(e.budget == 4 and (len(e.turns) == 4 or e.end is not End.BUDGET) for e in played)
    assert played[0].prompt_ids() == state.tokens
    twin = odds_policy(odds, max_action_tokens=1)  # the same policy: the same draws and the same slips
    (again,) = continue_from(twin, FrozenLake, config, [state], 800, seed=1, batch_size=300)
    assert [e.solved for e in again] == solved.tolist()
    (other,) = continue_from(policy, FrozenLake, config, [state], 800, seed=2)
    assert [e.solved for e in other] != solved.tolist()


def test_reseed_changes_the_chance_and_nothing_else():
    config, tasks = lake("SFF", "FFF", "FFG", success_rate=0.5)
    env = FrozenLake(config)
    env.reset(tasks[0], 0)
    before, ends = env.snapshot(), {}
    for seed in range(30):
        env.restore(before)
        state = env.state_key(), env.turns_left
        env.reseed(seed)
        assert (env.state_key(), env.turns_left) == state
        ends[seed] = env.step("Right").info["position"]
        env.reset(tasks[0], seed)
        assert env.step("Right").info["position"] == ends[seed]  # the slips of an episode with this seed
    assert set(ends.values()) == {0, 1, 3}
    with pytest.raises(ValueError, match="seed=-1"):
        env.reseed(-1)
    with pytest.raises(NotImplementedError, match="reseed"):
        Env.reseed(env, 0)


def test_error_states_table():
    # SF/FG, not slippery, 4 turns: two can be lost, the third Left at S loses all. Without names of actions, as exact
    # odds need room for the end of turn, which one token an action leaves no room for.
    config, tasks = lake("SF", "FG", max_turns=4)
    base = odds_policy({"Left": 0.5, END: 0.5}, max_action_tokens=2)
    rl = odds_policy({"Right": 0.5, "Down": 0.5}, max_action_tokens=1)
    with pytest.raises(ValueError, match="max_action_tokens"):
        error_states(base, rl, FrozenLake, config, [], [], AnalysisConfig())
    base = odds_policy({"Left": 1.0}, max_action_tokens=1)
    episodes = [scripted(base, config, t, ["Left", "Left", "Left", "Left"]) for t in tasks]
    analysis = AnalysisConfig(group=4, deltas=(0.5,), delta=0.5, continuations=3)
    df = error_states(base, rl, Unnamed, config, episodes, episodes, analysis, ["visited"])
    assert len(df) == 4 and (df.turn == 4).all() and (df.loss == 1).all() and (df.best == 0).all()
    assert (df.outcome == "equal").all() and df.exact_base.isna().all()
    assert continuation_success(df, "base") == continuation_success(df, "rl") == 0
    with pytest.raises(ValueError, match="construction"):
        error_states(base, rl, Unnamed, config, episodes, episodes, analysis, ["made up"])
    # Down or Right twice from S with 2 turns left: solved when both differ; Left never.
    config, tasks = lake("SF", "FG", max_turns=3)
    state = state_at("base", scripted(base, config, tasks[0], ["Left", "Left"]), 1)
    for policy, low, high in ((rl, 0.35, 0.65), (base, 0, 0)):
        (played,) = continue_from(policy, FrozenLake, config, [state], 200, seed=0)
        assert low <= np.mean([e.solved for e in played]) <= high


def test_summaries_by_hand():
    df = pd.DataFrame({
        "construction": ["visited"] * 8, "task": list("aabbccdd"), "loss": [0.05, 0.1, 0.1, 0.2, 0.3, 0.1, 0.1, 0.1],
        "outcome": ["better"] * 3 + ["worse"] + ["equal"] * 4,
        "success_base": [0.0, 0.5] * 4, "success_rl": [0.5, 0.5] * 4,
    })  # fmt: skip
    assert [picks_better(df, t) for t in ("half", "drop", "lose")] == [5 / 8, 3 / 4, 3 / 8]
    assert continuation_success(df, "rl") == 0.5 and len(at_delta(df, 0.1)) == 7 and len(at_delta(df, 0.2)) == 2
    table = summary(df, [0.05, 0.3]).set_index(["delta", "measure"])
    assert table.loc[(0.05, "better_half"), "estimate"] == 5 / 8
    assert table.loc[(0.05, "success_difference"), ["estimate", "low", "high"]].tolist() == [0.25, 0.25, 0.25]
    assert table.loc[(0.3, "equal"), "estimate"] == 1 and np.isnan(table.loc[(0.3, "equal"), "low"])
    for call in (lambda: picks_better(df, "win"), lambda: continuation_success(df, "x"), lambda: at_delta(df, 0, "x")):
        with pytest.raises(ValueError, match="win|'x'"):
            call()
