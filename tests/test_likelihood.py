"""Action NLL and cumulative LLR of policies whose probabilities are known in closed form."""

from copy import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from known_odds import END, lake, odds_policy, random_policy, scripted

from lib.analyses.likelihood import (
    action_likelihood,
    action_logprobs,
    mean_action_nll,
    mean_cumulative_llr,
    summary,
    trajectories,
)  # fmt: skip
from lib.envs.frozenlake import FrozenLake
from lib.rollout import jobs, rollout

CONFIG, TASKS = lake("SF", "FG")
BASE = {"Right": 0.2, "Down": 0.4, "Left": 0.1, END: 0.3}
RL = {"Right": 0.4, "Down": 0.2, "Left": 0.1, END: 0.3}


def test_closed_form_over_rollouts():
    base, rl = odds_policy(BASE, max_action_tokens=2), odds_policy(RL, max_action_tokens=2)
    played = [rollout(p, FrozenLake, CONFIG, jobs(TASKS, 6, 3)) for p in (base, rl)]
    df = action_likelihood(base, rl, *played, t_max=3, samples=4)
    name = {p.chat.assistant(w)[0]: w for p in (base,) for w in ("Right", "Down", "Left")} | {
        base.chat.stop_ids[0]: END
    }
    turns = {(s, e.task, e.sample, i + 1): t for s, es in zip(("base", "rl"), played, strict=True) for e in es
             for i, t in enumerate(e.turns) if e.sample < 4}  # fmt: skip
    assert len(df) == len(turns)
    for row in df.itertuples():
        words = [name[a] for a in turns[row.source, row.task, row.sample, row.turn].action]
        assert row.nll_base == pytest.approx(-sum(np.log(BASE[w]) for w in words), abs=1e-4)
        assert row.nll_rl == pytest.approx(-sum(np.log(RL[w]) for w in words), abs=1e-4)
        assert row.depth == row.turn / 3
    # log p_RL − log p_base is log 2 for every Right, −log 2 for every Down, 0 for the rest
    for t in trajectories(df).itertuples():
        ids = [a for k, v in turns.items() if k[:3] == (t.source, t.task, t.sample) for a in v.action]
        words = [name[a] for a in ids]
        assert t.llr == pytest.approx((words.count("Right") - words.count("Down")) * np.log(2), abs=1e-4)
    with pytest.raises(ValueError, match="7 trajectories a task"):
        action_likelihood(base, rl, *played, t_max=3, samples=7)


def test_temperature_is_that_of_sampling():
    policy = odds_policy({"Right": 0.8, "Down": 0.2}, temperature=2.0, max_action_tokens=1)
    (found,) = action_logprobs(policy, rollout(policy, FrozenLake, CONFIG, jobs(TASKS[:1], 1, 3)))
    p = np.array([0.8, 0.2]) ** 0.5
    allowed = np.log(p / p.sum())
    assert all(np.isclose(x, allowed, atol=1e-4).any() for x in found)


def test_scores_equal_a_plain_forward_and_the_stored_log_probabilities():
    policy = random_policy(max_action_tokens=3)  # random words: actions that were cut lack their end of turn
    episodes = rollout(policy, FrozenLake, CONFIG, jobs(TASKS, 3, 3))
    assert any(t.action[-1] not in policy.chat.stop_ids for e in episodes for t in e.turns)
    for e, found in zip(episodes, action_logprobs(policy, episodes), strict=True):
        np.testing.assert_allclose(found, [sum(t.logprobs) for t in e.turns], atol=1e-3)
        before: list[int] = []
        for t, x in zip(e.turns, found, strict=True):
            before += t.context
            with torch.no_grad():
                logp = torch.log_softmax(policy.model(torch.tensor([before + t.action])).logits[0], -1)
            plain = sum(logp[len(before) - 1 + k, a].item() for k, a in enumerate(t.action))
            assert x == pytest.approx(plain, abs=1e-3)
            before += t.action


def test_policies_with_other_tokens_are_refused():
    base, rl = odds_policy(BASE), odds_policy(RL)
    rl.chat = copy(rl.chat)
    rl.chat.stop_ids = (0,)
    with pytest.raises(ValueError, match="different vocabularies"):
        action_likelihood(base, rl, [], [], 3, 1)


def test_summaries_by_hand():
    df = pd.DataFrame({
        "source": ["rl"] * 3 + ["base"] * 2, "task": ["a", "a", "b", "a", "b"], "sample": 0, "turn": [1, 2, 1, 1, 1],
        "solved": [True, True, False, False, True], "nll_base": [3.0, 1.0, 2.0, 1.0, 2.0],
        "nll_rl": [1.0, 0.5, 3.0, 2.0, 1.5],
    })  # fmt: skip
    df["llr"] = df.nll_base - df.nll_rl
    assert mean_action_nll(df, "rl") == 2.0 and mean_action_nll(df, "base") == 1.5
    assert mean_cumulative_llr(df, "rl") == 2.5 and mean_cumulative_llr(df, "rl", solved=False) == -1.0
    table = summary(df).set_index(["measure", "source", "solved"])
    assert table.loc[("llr", "rl", "all"), "estimate"] == 0.75 and table.loc[("llr", "rl", "all"), "n"] == 2
    half = 12.7062 * 1.75  # t of 1 degree of freedom times the standard error of 2.5 and −1
    assert table.loc[("llr", "rl", "all"), "high"] == pytest.approx(0.75 + half, rel=1e-4)
    assert np.isnan(table.loc[("llr", "rl", "True"), "low"])  # one task
    with pytest.raises(ValueError, match="'both'"):
        mean_action_nll(df, "both")


def test_scripted_episodes_need_no_log_probabilities_of_their_own():
    base = odds_policy(BASE)
    e = scripted(base, CONFIG, TASKS[0], ["Right", "Down"])
    (found,) = action_logprobs(base, [replace(e, sample=3)])
    np.testing.assert_allclose(found, [np.log(0.2 * 0.3), np.log(0.4 * 0.3)], atol=1e-4)
