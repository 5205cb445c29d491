"""The rollout engine: what was sampled is what a plain forward pass says, whatever the batch, errors and budgets."""

import hashlib
import os
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

import lib.rollout
from lib.envs.base import NoStepMeasure, Task
from lib.envs.frozenlake import FrozenLake
from lib.episode import End
from lib.policies import session
from lib.policies.hf import HFPolicy
from lib.rollout import Job, jobs, rollout


def ragged_jobs(lake, samples=4):
    """Budgets 1 to Tmax, mixed."""
    return [Job(t, s, 1 + (i + s) % 6, 7) for i, t in enumerate(lake.tasks) for s in range(samples)]


def tokens(e):
    return [(t.context, t.action) for t in e.turns]


def check_teacher_forcing(model, episodes, temperature=1.0):
    for e in episodes:
        prompt, (ids, mask, logps, _) = e.prompt_ids(), e.completion()
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0] / temperature
        plain = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1].gather(1, torch.tensor(ids)[:, None])[:, 0]
        np.testing.assert_allclose(logps, plain * torch.tensor(mask), atol=1e-5)


def test_logprobs_equal_teacher_forcing_with_ragged_turns(policy, lake):
    policy.temperature = 0.7
    episodes = rollout(policy, FrozenLake, lake.config, ragged_jobs(lake))
    assert len({len(t.context) for e in episodes for t in e.turns[1:]}) > 2  # invalid answers: longer observations
    assert len({len(t.action) for e in episodes for t in e.turns}) > 3
    assert len({e.end for e in episodes}) >= 3 and len({len(e.turns) for e in episodes}) > 3
    check_teacher_forcing(policy.model, episodes, 0.7)
    stop = policy.tokenizer.eos_token_id
    for e in episodes:
        for t, after in zip(e.turns, e.turns[1:], strict=False):  # a cut action gets its end from the context
            assert (t.action[-1] == stop) != (after.context[0] == stop)


@pytest.mark.parametrize("spare", [0.8, 1.1])  # 1.1: rows change places and holes are removed in every turn
def test_rows_that_wait_and_holes_that_are_removed_change_nothing(policy, monkeypatch, spare):
    """Texts of 1 to 60 tokens between actions of 1 to 12, episodes that end: against plain forward passes."""
    monkeypatch.setattr(session, "SPARE", spare)
    policy.max_action_tokens = 12
    removed, compact = [], session.Session._compact

    def counted(self):
        before = self.mask.shape[1]
        compact(self)
        removed.append(before - self.mask.shape[1])

    monkeypatch.setattr(session.Session, "_compact", counted)
    rng, playing, alive = np.random.default_rng(5), policy.session(), list(range(24))
    rows, plain = {e: [] for e in alive}, {e: [] for e in alive}
    rngs = {e: np.random.default_rng(e) for e in alive}
    for _ in range(6):
        told = [rng.integers(3, 250, rng.integers(1, 61)).tolist() for _ in alive]
        for e, a, (action, logps) in zip(alive, told, playing.act(alive, told, [rngs[e] for e in alive]), strict=True):
            rows[e] += a + action
            plain[e] += [np.nan] * len(a) + logps
        alive = [e for e in alive if rng.random() < 0.85]
    assert sum(removed) > 20
    for e, ids in rows.items():
        with torch.no_grad():
            logits = policy.model(torch.tensor([ids])).logits[0]
        exact = torch.log_softmax(logits, -1)[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0].numpy()
        acted = ~np.isnan(plain[e])
        np.testing.assert_allclose(np.array(plain[e])[acted], exact[acted[1:]], atol=2e-5)


def test_a_lora_policy_plays_and_scores_alike(policy, lake):
    torch.manual_seed(0)
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    model = get_peft_model(policy.model, lora).eval()
    policy = replace(policy, model=model)
    episodes = rollout(policy, FrozenLake, lake.config, jobs(lake.tasks[:4], 2, 6))
    check_teacher_forcing(model, episodes)
    with model.disable_adapter():
        others = rollout(policy, FrozenLake, lake.config, jobs(lake.tasks[:4], 2, 6))
    assert [tokens(e) for e in others] != [tokens(e) for e in episodes]  # the adapter does take part


def test_episodes_do_not_depend_on_the_batch_and_come_back_in_order(policy, lake):
    todo = ragged_jobs(lake)
    together = rollout(policy, FrozenLake, lake.config, todo, batch_size=64)
    alone = rollout(policy, FrozenLake, lake.config, todo[::-1], batch_size=1)[::-1]
    assert [(e.task, e.sample, e.budget, e.seed) for e in together] == [
        (j.task.id, j.sample, j.budget, j.seed) for j in todo
    ]
    for a, b in zip(together, alone, strict=True):
        assert tokens(a) == tokens(b) and (a.end, a.reward) == (b.end, b.reward)
        np.testing.assert_allclose(a.completion()[2], b.completion()[2], atol=1e-5)


def test_no_more_episodes_are_played_side_by_side_than_there_is_room_for(policy, lake, monkeypatch):
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert policy.room() == memory // 8 // (2 * 2 * 32 * 4 * 512)  # keys and values, layers, width, bytes, context
    todo, widths, play = ragged_jobs(lake), [], lib.rollout._play
    expected = rollout(policy, FrozenLake, lake.config, todo)
    monkeypatch.setattr(HFPolicy, "room", lambda self: 3)
    monkeypatch.setattr(lib.rollout, "_play", lambda p, plays: (widths.append(len(plays)), play(p, plays)))
    found = rollout(policy, FrozenLake, lake.config, todo)
    assert max(widths) == 3 and sum(widths) == len(todo)
    assert list(map(tokens, found)) == list(map(tokens, expected))


def test_a_shorter_budget_only_cuts_an_episode(policy, lake):
    for long, short in zip(
        rollout(policy, FrozenLake, lake.config, jobs(lake.tasks, 2, 6)),
        rollout(policy, FrozenLake, lake.config, jobs(lake.tasks, 2, 2)),
        strict=True,
    ):
        assert tokens(short) == tokens(long)[:2]
        assert short.end is (End.BUDGET if len(long.turns) > 2 else long.end)
        assert long.end is not End.BUDGET or len(long.turns) == 6


class Flaky(FrozenLake):
    """Fails in `reset` for the first of its tasks and in the second `step` for the second."""

    bad: tuple[str, str]
    closed = 0

    def reset(self, task, seed, budget=None):
        self.id = task.id
        if task.id == self.bad[0]:
            raise OSError("no disk")
        return super().reset(task, seed, budget)

    def step(self, action):
        if self.id == self.bad[1] and self.turns == 1:
            raise TimeoutError("no answer")
        return super().step(action)

    def close(self):
        type(self).closed += 1


def test_infrastructure_errors_are_errors_and_touch_nobody_else(policy, lake):
    class Env(Flaky):
        bad = (lake.tasks[0].id, lake.tasks[1].id)

    todo = jobs(lake.tasks[:4], 4, 6)
    found, healthy = rollout(policy, Env, lake.config, todo), rollout(policy, FrozenLake, lake.config, todo)
    assert len(found) == Env.closed == 16
    for e, h in zip(found, healthy, strict=True):
        if e.task == Env.bad[0]:
            assert (e.end, e.turns, e.error) == (End.ERROR, [], "OSError: no disk") and np.isnan(e.reward)
        elif e.task == Env.bad[1] and len(h.turns) > 1:
            assert (e.end, len(e.turns), e.error) == (End.ERROR, 1, "TimeoutError: no answer") and np.isnan(e.reward)
        else:
            assert tokens(e) == tokens(h) and (e.end, e.reward) == (h.end, h.reward) and e.end is not End.ERROR
    assert sum(e.end is End.ERROR for e in found) > 4


def test_a_missing_step_measure_raises_and_the_environments_are_closed(policy, lake):
    class Env(Flaky):
        bad = ("", "")

        def step_quality(self, action):
            raise NoStepMeasure("none")

    with pytest.raises(NoStepMeasure):
        rollout(policy, Env, lake.config, jobs(lake.tasks, 1, 2), quality=True)
    assert Env.closed == 8


def test_a_full_context_ends_an_episode_as_out_of_budget(policy, lake):
    (first,) = rollout(policy, FrozenLake, lake.config, jobs(lake.tasks[:1], 1, 1))
    policy.max_context = len(first.prompt_ids()) + 40
    episodes = rollout(policy, FrozenLake, lake.config, jobs(lake.tasks, 2, 6))
    full = [e for e in episodes if "context full" in e.error]
    assert full and all(e.end is End.BUDGET and len(e.turns) < 6 for e in full)
    assert all(len(e.prompt_ids()) + len(e.completion()[0]) <= policy.max_context for e in episodes)
    policy.max_context = 20  # not even the prompt fits
    (e,) = rollout(policy, FrozenLake, lake.config, jobs(lake.tasks[:1], 1, 6))
    assert e.end is End.ERROR and np.isnan(e.reward) and "context full" in e.error


def test_stored_states_and_qualities_are_those_of_the_moment_before_the_action(policy, lake):
    env = FrozenLake(lake.config)
    for e in rollout(policy, FrozenLake, lake.config, jobs(lake.tasks, 2, 6), quality=True, states=True):
        for t in e.turns:
            env.restore(t.state)
            assert (repr(env.state_key()), env.step_quality(t.text)) == (t.key, t.quality)
            step = env.step(t.text)
            assert (step.reward, step.info["invalid"]) == (t.reward, t.invalid)
        assert step.done == (e.end in (End.SOLVED, End.FAILED, End.INVALID)) and e.reward == sum(
            t.reward for t in e.turns
        )
        assert e.solved == (e.reward == 1)
        if e.end is End.INVALID:
            assert [t.invalid for t in e.turns[-3:]] == [True] * 3


def test_seeds_come_from_base_seed_task_and_sample():
    sha = hashlib.sha256(b"5/frozen-1/3").digest()
    assert Job(Task("frozen-1", {}), 3, 2, 5).seed == int.from_bytes(sha[:8], "little") // 2
    tasks = [Task(str(i), {}) for i in range(20)]
    assert len({j.seed for base in range(5) for j in jobs(tasks, 4, 1, base)}) == 400
    assert [(j.task.id, j.sample) for j in jobs(tasks[:2], 2, 1)] == [("0", 0), ("0", 1), ("1", 0), ("1", 1)]


def test_bad_input_is_refused(policy, lake, base):
    for samples, budget in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="must be at least 1"):
            jobs(lake.tasks, samples, budget)
    with pytest.raises(ValueError, match=r"budget 7 .*1 to Tmax = 6"):
        rollout(policy, FrozenLake, lake.config, jobs(lake.tasks, 1, 7))
    for change in ({"temperature": 0.0}, {"max_action_tokens": 0}):
        with pytest.raises(ValueError, match=next(iter(change))):
            replace(policy, **change)
    with pytest.raises(FileNotFoundError, match="no model in"):
        HFPolicy.load(base.folder / "missing")
    # a boolean 4-D mask means something else to eager attention: log-probabilities would be wrong without a word
    eager = AutoModelForCausalLM.from_pretrained(base.folder, attn_implementation="eager")
    with pytest.raises(ValueError, match="'eager'.*sdpa"):
        replace(policy, model=eager)


def test_playing_leaves_weights_and_jobs_alone(policy, lake):
    before = {k: v.clone() for k, v in policy.model.state_dict().items()}
    todo = jobs(lake.tasks[:2], 1, 2)
    copy = [asdict(j) for j in todo]
    rollout(policy, FrozenLake, lake.config, todo)
    assert [asdict(j) for j in todo] == copy
    assert all(torch.equal(v, before[k]) for k, v in policy.model.state_dict().items())
