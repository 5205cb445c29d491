"""The explorer: values known by hand or from the analyses, hostile texts, and what it says of what is not stored."""

from contextlib import closing
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from known_odds import END, lake, odds_policy, random_policy, scripted
from test_stages import X

from lib import explore, explore_view, stages
from lib.analyses.continuation import continue_from
from lib.analyses.error_states import visited_error_states
from lib.analyses.likelihood import action_likelihood, trajectories
from lib.config import Experiment
from lib.envs.base import NoStepMeasure, env_class
from lib.envs.frozenlake import FrozenLake, q_star
from lib.envs.frozenlake_mdp import dynamics
from lib.episode import End, Episode, Turn
from lib.explore import Checkpoint, Pair
from lib.explore_widgets import Explorer
from lib.profiles import PROFILES
from lib.rollout import jobs, rollout
from lib.store import NotMade

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror='alert(2)'> \"&amp; \x1b[31m \u202e"
BASE, RL = {"Right": 0.2, "Down": 0.4, "Left": 0.1, END: 0.3}, {"Right": 0.4, "Down": 0.2, "Left": 0.1, END: 0.3}


def pair_of(env, config, base, rl, tasks, samples=2, quality=True):
    """A pair whose policies have just played."""
    c = Checkpoint(Experiment(profile="smoke", env=env, env_config=config), "grpo", 0)
    todo, played = jobs(tasks, samples, config.max_turns), {}
    for source, policy in (("rl", rl), ("base", base)):
        played[source] = rollout(policy, env_class(env), config, todo, quality=quality, states=True)
    assert not [e.error for es in played.values() for e in es if e.end is End.ERROR]
    by_name = {s: {(e.task, e.sample): e for e in es} for s, es in played.items()}
    return Pair(c, config, {"base": base, "rl": rl}, by_name)


@pytest.fixture(scope="module")
def pair():
    config, tasks = lake("SFF", "FHF", "FFG", success_rate=0.8, max_turns=6)
    base, rl = (odds_policy(odds, max_action_tokens=2) for odds in (BASE, RL))
    return pair_of("frozenlake", config, base, rl, tasks, samples=6)


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


def test_steps_are_those_of_the_analyses(pair):
    episodes = {s: list(es.values()) for s, es in pair.episodes.items()}
    base, rl = pair.policies["base"], pair.policies["rl"]
    df = action_likelihood(base, rl, episodes["base"], episodes["rl"], t_max=6, samples=6)
    known = trajectories(df).set_index(["source", "task", "sample"])
    env, delta = FrozenLake(pair.config), pair.checkpoint.x.analysis.delta
    for source in explore.SOURCES:
        states = {(s.task, s.sample, s.turn): s.loss
                  for s in visited_error_states(episodes[source], env, source, 10**6, delta, 0)}  # fmt: skip
        found = {}
        for e in episodes[source]:
            df = explore.steps(pair, source, e)
            assert df.llr.sum() == pytest.approx(known.llr[source, e.task, e.sample], abs=1e-6)
            assert df.nll_base.sum() == pytest.approx(known.nll_base[source, e.task, e.sample], abs=1e-6)
            assert df.quality.tolist() == [t.quality for t in e.turns] and df.turns_left.tolist()[0] == 6
            assert np.allclose(df.best - df.quality, df.loss)
            for turn in explore.error_states(pair, e):
                assert df.error[turn - 2]
                found[e.task, e.sample, turn] = df.loss[turn - 2]
        assert found == states and found


def test_the_jump_goes_through_all_error_states_and_begins_again(pair):
    every = [(*n, t) for n, e in pair.episodes["base"].items() for t in explore.error_states(pair, e)]
    at, seen = every[-1], []
    for _ in every:
        at = explore.next_error_state(pair, "base", *at)
        seen.append(at)
    assert seen == every and len(every) > 3
    config, tasks = lake("SG", "FF")
    right = odds_policy({"Right": 1.0}, max_action_tokens=1)  # the best action
    calm = pair_of("frozenlake", config, right, right, tasks)
    assert explore.next_error_state(calm, "base", "lake-0", 0, 1) is None


def test_continuations_are_those_of_the_analysis(pair):
    env, episodes = FrozenLake(pair.config), list(pair.episodes["rl"].values())
    state = visited_error_states(episodes, env, "rl", 1, 0.1, 0)[0]
    here = explore.moment(pair, "rl", state.task, state.sample, state.turn)
    assert (here.name, here.tokens, here.snapshot) == (state.name, state.tokens, state.snapshot)
    for who in ("base", "rl"):
        (analysed,) = continue_from(pair.policies[who], FrozenLake, pair.config, [state], 5, 3)
        assert repr(explore.continue_here(pair, here, who, 5, 3)) == repr(analysed)


def test_the_board_has_the_exact_values_and_both_policies():
    config, tasks = lake("SF", "FG")
    base, rl = odds_policy(BASE, max_action_tokens=2), odds_policy(RL, max_action_tokens=2)
    pair = pair_of("frozenlake", config, base, rl, tasks)
    e = scripted(base, config, tasks[0], ["Left", "Down", "Right"])
    pair.episodes["base"][e.task, e.sample] = e
    env, state = FrozenLake(config), explore.moment(pair, "base", e.task, 0, 2)
    env.restore(state.snapshot)
    p = explore.probabilities(pair, state)
    assert p.base.to_list() == pytest.approx([0.03, 0.12, 0.06, 0, 0.79], abs=1e-4)  # a word and its end, as ACTIONS
    assert p.rl.to_list() == pytest.approx([0.03, 0.06, 0.12, 0, 0.79], abs=1e-4)
    left, right = explore_view.board(env, p, "Down").axes
    at = {tuple(np.round(t.get_position(), 2).tolist()): t.get_text() for t in left.texts}
    # Two turns left: from the start Down and Right reach the goal in time, from the cell beside it all but Left.
    exact = q_star(dynamics(("SF", "FG"), 1.0), 3)[2]
    assert exact[0].tolist() == [0, 1, 1, 0] and exact[1].tolist() == [0, 1, 1, 1]
    for cell, x in ((0, 0), (1, 1)):
        places = [(round(x + 0.18, 2), 0.5), (x + 0.5, 0.87), (round(x + 0.82, 2), 0.5), (x + 0.5, 0.13)]
        assert [float(at[q]) for q in places] == exact[cell].tolist()
    assert "2 turns left" in left.get_title() and at[0.5, 0.51] == "P" and "GOAL" in at.values()
    assert [b.get_width() for b in right.patches] == pytest.approx([*p.base, *p.rl])
    assert [t.get_text() for t in right.get_yticklabels()][:2] == ["Left\nQ* 0.000", "Down\nQ* 1.000"]


def test_hostile_texts_are_shown_and_never_run():
    policy = random_policy()
    context = policy.chat.prompt(
        [{"role": "system", "content": "s" * 2000 + HOSTILE}, {"role": "user", "content": "?"}]
    )
    action = policy.chat.assistant(HOSTILE)
    first = Turn(context, action, [-1.0] * len(action), HOSTILE, 0.0, True)
    second = Turn(policy.chat.between(action, HOSTILE), action, [-1.0] * len(action), HOSTILE, 0.0, False)
    e = Episode("sql", "t", 0, 0, 2, [first, second], End.BUDGET, 0.0, error=HOSTILE)
    steps = pd.DataFrame({"turn": [1, 2], "action": HOSTILE, "invalid": [True, False], "quality": 0.5, "best": 1.0,
                          "loss": 0.5, "error": True, "nll_base": 2.0, "nll_rl": 1.0, "llr": 1.0})  # fmt: skip
    whole = Page(explore_view.transcript(policy.tokenizer, e, steps, now=1))
    for page in (whole, Page(explore_view.overview(steps, 1)),
                 Page(explore_view.continuations(policy.tokenizer, "rl", [e, e], 3))):  # fmt: skip
        assert page.tags <= {"style", "div", "pre", "b", "span", "details", "summary", "table", "tr", "td", "th"}
        assert page.attributes <= {"class", "open"} and "\x1b" not in page.text and "\u202e" not in page.text
    visible = HOSTILE.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    assert whole.text.count(visible) == 5  # system message, two actions, the observation, the error
    assert whole.text.count("error, loses 0.500") == 2 and "LLR +1.00" in whole.text


def test_messages_are_read_back_from_the_tokens():
    chat = random_policy().chat
    said = [{"role": "system", "content": "The rules.\nuser\nare these."}, {"role": "user", "content": "<b>Go</b>"}]
    read = [(m["role"], m["content"]) for m in said]
    assert explore_view.messages(chat.tokenizer, chat.prompt(said)) == read
    for action in (chat.assistant("x"), chat.assistant("x")[:-1]):  # as sampled, and cut before its end
        assert explore_view.messages(chat.tokenizer, chat.between(action, "a\nb <|im_end|>")) == [
            ("user", "a\nb < |im_end|>")
        ]


def test_long_past_turns_are_folded_and_nothing_is_lost():
    config, tasks = lake("SF", "FG", max_turns=6)
    e = scripted(odds_policy(BASE), config, tasks[0], ["Left", "Up", "Up", "Left", "Up", "Left"])
    tokenizer = random_policy().tokenizer
    whole, at_5 = (explore_view.transcript(tokenizer, e, now=now) for now in (0, 5))
    for n in range(1, 7):
        assert f"<b>turn {n}</b>" in at_5
    fold = at_5[at_5.index("<details>") : at_5.index("</details>")]
    assert "turns 1 to 3" in fold and [f"<b>turn {n}</b>" in fold for n in range(1, 7)] == [True] * 3 + [False] * 3
    for page in (whole, at_5):
        assert page.count("<div") == page.count("</div>") and page.count("<pre") == page.count("</pre>") == 13
    assert "<details>" not in whole and at_5.count("class='later'") == 1 and at_5.count("class='now'") == 1


@pytest.mark.parametrize("name", ["deepcoder", "sql", "bfcl", "terminal"])
def test_other_environments_are_readable(name):
    cls, config = env_class(name), env_class(name).Config(max_turns=2)
    policies = random_policy(0, max_action_tokens=6), random_policy(1, max_action_tokens=6)
    for p in policies:
        p.max_context = 8192
    tasks = cls.tasks(config, "test", 1)
    pair = pair_of(name, config, *policies, tasks, samples=1, quality=cls.has_step_measure)
    df = explore.steps(pair, "rl", e := next(iter(pair.episodes["rl"].values())))
    assert len(df) == len(e.turns) and np.isfinite(df.llr).all()
    page = Page(explore_view.transcript(policies[0].tokenizer, e, df, now=1))
    with closing(cls(config)) as env:
        assert all(m["content"].strip("\n") in page.text for m in env.reset(tasks[0], 0))
    assert all(explore_view.shown(t.text) in explore_view.transcript(policies[0].tokenizer, e) for t in e.turns)
    assert ("quality" in page.text) == cls.has_step_measure == (not df.quality.isna().any())
    if cls.has_step_measure:
        assert df.loss.between(0, 1).all()
    else:
        assert explore.error_states(pair, e) == [] and not df.error.any()
        with pytest.raises(NoStepMeasure, match=f"{name} has no step measure"):
            explore.next_error_state(pair, "rl", e.task, e.sample, 1)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "RUNS", tmp_path)
    monkeypatch.setitem(PROFILES, "smoke", (X,))
    for cached in (stages.episodes, explore.open_pair):
        cached.cache_clear()
    yield tmp_path
    for cached in (stages.episodes, explore.open_pair):
        cached.cache_clear()


def test_what_is_not_stored_is_not_made_but_named(runs):
    last, early = Checkpoint(X, "grpo", 4), Checkpoint(X, "grpo", 0, 2)
    for c, command in ((last, "make reproduce PROFILE=smoke SEEDS=5"), (early, "episodes_step(experiment('smoke', ")):
        assert not explore.is_stored(c)
        with pytest.raises(NotMade) as error:
            explore.open_pair(c)
        assert command in str(error.value)
    assert [c.seed for c in explore.checkpoints(X, "grpo")] == [0, 1]  # the seeds that the profile trains
    shown = Explorer("smoke")
    assert "make reproduce PROFILE=smoke SEEDS=2" in shown.message.value and shown.pair is None
    assert [label for label, _ in shown.checkpoint.options][0] == "seed 0, last update (no episodes yet)"
    shown.jump.click()
    assert shown.problem.startswith("LookupError: no stored episode") and not list(runs.iterdir())


def test_the_widgets_step_jump_and_go_on(runs):
    stages.episodes_step(X, "base")
    stages.episodes_step(X, "grpo", 0, update=2)
    shown = Explorer("smoke")
    assert "make reproduce" in shown.problem  # of the last weights there are no episodes
    labels = [label for label, _ in shown.checkpoint.options]
    assert labels[0] == "seed 0, last update (no episodes yet)" and "seed 0, update 2" in labels
    shown.checkpoint.value = Checkpoint(X, "grpo", 0, 2)
    assert shown.problem == "" and bytes(shown.board.value).startswith(b"\x89PNG")
    assert len(shown.task.options) == 4 and len(shown.sample.options) == 3
    for source in ("base", "rl"):
        shown.source.value, shown.sample.value = source, 1
        assert shown.episode == shown.pair.episodes[source][shown.task.value, 1] and shown.turn.value == 1
    board = bytes(shown.board.value)
    shown.step.click()
    assert shown.turn.value == min(2, len(shown.episode.turns)) and shown.problem == ""
    assert len(shown.episode.turns) == 1 or bytes(shown.board.value) != board
    shown.jump.click()
    none = not any(explore.error_states(shown.pair, e) for e in shown.pair.episodes["rl"].values())
    assert bool(shown.problem) == none and (none or shown.turn.value in explore.error_states(shown.pair, shown.episode))
    shown.samples.value = 3
    shown.go_on["base"].click()
    assert "of 3 solved" in shown.continued.value and shown.problem == ""
