"""Matched-state step quality: sampling at a context, exact qualities by hand, shares and intervals."""

import numpy as np
import pandas as pd
import pytest
import torch
from known_odds import ACTIONS, END, lake, odds_policy, random_policy, scripted
from scipy import stats

from lib.analyses.clustered import by_depth, clustered_mean
from lib.analyses.config import AnalysisConfig
from lib.analyses.sampling import sample_actions, text_probabilities
from lib.analyses.states import draw_states, tokens_before
from lib.analyses.step_quality import (
    better_share,
    compare_actions,
    late_minus_early,
    matched_states,
    outcome_shares,
)  # fmt: skip
from lib.envs.frozenlake import FrozenLake
from lib.rollout import jobs, rollout


def contexts(shared=6, lengths=(9, 7, 30, 12)):
    g = torch.Generator().manual_seed(1)
    start = torch.randint(0, 280, (shared,), generator=g).tolist()
    return [start + torch.randint(0, 280, (n - shared,), generator=g).tolist() for n in lengths]


@pytest.mark.parametrize("shared", [0, 6])
def test_text_probabilities_equal_a_plain_forward(shared):
    policy, found = random_policy(temperature=0.7), contexts(shared)
    p = text_probabilities(policy, found, ["Left", "Up", "Right, Left"])
    for i, c in enumerate(found):
        for j, text in enumerate(["Left", "Up", "Right, Left"]):
            action = policy.chat.assistant(text)
            with torch.no_grad():
                logp = torch.log_softmax(policy.model(torch.tensor([c + action])).logits[0] / 0.7, -1)
            plain = sum(logp[len(c) - 1 + k, a].item() for k, a in enumerate(action))
            assert np.log(p[i, j]) == pytest.approx(plain, abs=1e-4)
    with pytest.raises(ValueError, match="at most 8 tokens"):
        text_probabilities(policy, found, ["Left Left Left Left Left Left"])


def test_actions_are_drawn_with_the_models_probabilities():
    policy, found = random_policy(max_action_tokens=2, temperature=0.5), contexts()
    drawn = sample_actions(policy, found, 3000, range(4))
    for c, actions in zip(found, drawn, strict=True):
        prefixes = [[]] + [[a] for a in {a[0] for a in actions if len(a) == 2}]
        for prefix in prefixes[:4]:
            tokens = [a[len(prefix)] for a in actions if a[: len(prefix)] == prefix and len(a) > len(prefix)]
            with torch.no_grad():
                p = torch.softmax(policy.model(torch.tensor([c + prefix])).logits[0, -1].double() / 0.5, -1).numpy()
            often = np.flatnonzero(p * len(tokens) > 5)
            if len(often) < 2:
                continue
            counts = np.array([tokens.count(t) for t in often] + [0])
            counts[-1] = len(tokens) - counts.sum()
            expected = np.append(p[often], 1 - p[often].sum()) * len(tokens)
            assert stats.chisquare(counts[expected > 0], expected[expected > 0]).pvalue > 1e-4
        assert all(len(a) == 2 or a == [policy.chat.stop_ids[0]] for a in actions)


def test_draws_of_a_context_do_not_depend_on_the_others():
    policy, found = random_policy(), contexts()
    together = sample_actions(policy, found, 5, [3, 4, 5, 6])
    assert together == [sample_actions(policy, [c], 5, [s])[0] for c, s in zip(found, [3, 4, 5, 6], strict=True)]


# SF/HG, not slippery. With 2 turns left at S: Right (then Down) solves, Down falls into the hole, Left, Up and an
# invalid answer lose the turn that is needed: Q* = 1 for Right, else 0. At F with 1 turn left: Q* = 1 for Down, else 0.
CONFIG, TASKS = lake("SF", "HG", max_turns=2)
BASE = {"Right": 0.3, "Down": 0.2, "Left": 0.1, END: 0.4}
RL = {"Right": 0.4, "Down": 0.1, END: 0.5}


def two_policies():
    base, rl = odds_policy(BASE, max_action_tokens=2), odds_policy(RL, max_action_tokens=2)
    return base, rl, [scripted(base, CONFIG, t, ["Right", "Down"], k) for t in TASKS for k in range(2)]


def test_matched_states_on_a_lake_solved_by_hand():
    base, rl, episodes = two_policies()
    analysis = AnalysisConfig(group=2000, states_per_task=4)
    df = matched_states(base, rl, FrozenLake, CONFIG, episodes, episodes, analysis)
    assert len(df) == 16 and df.source.value_counts().to_dict() == {"base": 8, "rl": 8}
    assert (df.best == 1).all() and sorted(df.depth.unique()) == [0.5, 1.0]
    for turn, exact_base, exact_rl, outcome in (
        (1, 0.3 * 0.4, 0.4 * 0.5, "better"),
        (2, 0.2 * 0.4, 0.1 * 0.5, "worse"),
    ):
        d = df[df.turn == turn]
        np.testing.assert_allclose(d.exact_base, exact_base, atol=1e-6)
        np.testing.assert_allclose(d.exact_rl, exact_rl, atol=1e-6)
        assert (d.exact_outcome == outcome).all() and (d.turns_left == 3 - turn).all()
        assert abs(d.quality_base.mean() - exact_base) < 4 * np.sqrt(exact_base / len(d) / 2000)
        assert abs(d.quality_rl.mean() - exact_rl) < 4 * np.sqrt(exact_rl / len(d) / 2000)
    np.testing.assert_allclose(df.other_base, 1 - 0.4 * 0.6, atol=1e-6)  # all but "Right", "Down", "Left", then END
    np.testing.assert_allclose(df.other_rl, 1 - 0.5 * 0.5, atol=1e-6)
    shares = outcome_shares(df, "exact_outcome").set_index(["source", "outcome"]).estimate
    assert shares["base", "better"] == shares["rl", "worse"] == shares["both", "better"] == 0.5
    assert late_minus_early(df, "exact_difference") == pytest.approx((0.05 - 0.08) - (0.2 - 0.12), abs=1e-6)


def test_a_policy_ties_with_itself_everywhere():
    base, _, episodes = two_policies()
    df = matched_states(base, base, FrozenLake, CONFIG, episodes, episodes, AnalysisConfig(states_per_task=2))
    assert (df.outcome == "equal").all() and (df.difference == 0).all()


def test_states_are_the_stored_tokens():
    base, _, episodes = two_policies()
    for s in draw_states(episodes, "rl", 3, seed=5):
        e = next(e for e in episodes if (e.task, e.sample) == (s.task, s.sample))
        assert s.tokens == tokens_before(e, s.turn - 1) and s.snapshot == e.turns[s.turn - 1].state
        ids, _, _, turn = e.completion()
        assert s.tokens == (e.prompt_ids() + ids)[: len(e.prompt_ids()) + turn.index(s.turn - 1)] + (
            e.turns[s.turn - 1].context if s.turn > 1 else []
        )
    names = [s.name for s in draw_states(episodes, "rl", 4, seed=5)]
    assert len(set(names)) == 8  # different visits, the same number per task
    with pytest.raises(ValueError, match="5 states of task lake-0"):
        draw_states(episodes, "rl", 5, seed=5)


def test_rollouts_can_be_read_and_those_without_states_are_refused():
    base, rl, _ = two_policies()
    found = rollout(base, FrozenLake, CONFIG, jobs(TASKS, 2, 2), quality=True, states=True)
    assert len(matched_states(base, rl, FrozenLake, CONFIG, found, found, AnalysisConfig(group=2))) == 4
    with pytest.raises(ValueError, match="states=True"):
        draw_states(rollout(base, FrozenLake, CONFIG, jobs(TASKS, 2, 2)), "base", 1, 0)
    with pytest.raises(ValueError, match="max_action_tokens"):
        compare_actions(base, odds_policy(RL), FrozenLake, CONFIG, [], AnalysisConfig())


def test_summaries_by_hand():
    df = pd.DataFrame({
        "source": ["base", "base", "rl", "rl"], "task": ["a", "b", "a", "b"], "depth": [0.2, 0.5, 0.6, 1.0],
        "difference": [0.0, 0.5, -0.25, 0.75], "outcome": ["equal", "better", "worse", "better"],
    })  # fmt: skip
    assert better_share(df) == 0.5 and better_share(df, "base") == 0.5
    assert late_minus_early(df) == pytest.approx(0.25 - 0.25)
    depth = by_depth(df, "difference", bins=5)
    assert depth.depth.tolist() == pytest.approx([0.1, 0.5, 0.9]) and depth.rows.tolist() == [1, 2, 1]
    assert depth.estimate.tolist() == [0.0, 0.125, 0.75] and depth.low.isna().tolist() == [True, False, True]
    with pytest.raises(ValueError, match="source 'all'"):
        better_share(df, "all")


def test_clustered_interval():
    y, task = np.array([1.0, 0, 1, 1, 0, 0]), np.array(["a", "a", "b", "b", "c", "c"])
    i = clustered_mean(y, task, clip=(0, 1))
    means = [0.5, 1.0, 0.0]
    low, high = stats.t.interval(0.95, 2, 0.5, stats.sem(means))
    assert (i.estimate, i.low, i.high) == (0.5, max(low, 0), min(high, 1))
    # unequal clusters, by hand: r = 3/4; residuals y_j - r n_j of a (3 rows, sum 3) and b (1 row, sum 0): 3/4, -3/4
    i = clustered_mean([1, 1, 1, 0], ["a", "a", "a", "b"])
    half = stats.t.ppf(0.975, 1) * np.sqrt((0.375**2 + 0.375**2) / (1 * 2))
    assert i.estimate == pytest.approx(0.75) and (i.low, i.high) == pytest.approx((0.75 - half, 0.75 + half))
    with pytest.raises(ValueError, match="at least 2 tasks"):
        clustered_mean([1.0, 0.0], ["a", "a"])
    with pytest.raises(ValueError, match="not finite"):
        clustered_mean([1.0, np.nan], ["a", "b"])


@pytest.mark.parametrize("bad", [{"group": 0}, {"tie": -0.1}, {"deltas": (0.2, 0.1)}, {"delta": 0.3}])
def test_bad_configs_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        AnalysisConfig(**bad)


def test_actions_are_single_tokens():  # what the closed forms above rest on
    assert all(len(odds_policy(BASE).chat.assistant(w)) == 2 for w in ACTIONS)
