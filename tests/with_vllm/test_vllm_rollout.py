"""vLLM plays what the model says: log-probabilities, weight sync, turns that join at once, seeds."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from test_rollout import check_teacher_forcing, ragged_jobs, tokens

from lib.config import ROOT
from lib.envs.base import NoStepMeasure
from lib.envs.frozenlake import FrozenLake
from lib.policies.pretrained import merged
from lib.policies.vllm_engine import weights
from lib.rollout import jobs, rollout


def test_episodes_are_the_models_before_and_after_syncs(vllm_policy, lake, perturb):
    policy, todo = vllm_policy, ragged_jobs(lake)
    seen = []
    for seed in range(3):
        episodes = rollout(policy, FrozenLake, lake.config, todo)
        check_teacher_forcing(policy.model, episodes)  # 1e-5; the contract is 1e-4
        assert policy.compare("now") < 1e-5
        assert len({len(t.action) for e in episodes for t in e.turns}) > 3 and {len(e.turns) for e in episodes} > {1, 2}
        stop = policy.tokenizer.eos_token_id
        for e in episodes:
            for t, after in zip(e.turns, e.turns[1:], strict=False):
                assert t.text == policy.chat.text(t.action) and stop not in t.action[:-1]
                assert after.context[0] == stop if t.action[-1] != stop else after.context[0] != stop
        seen.append([tokens(e) for e in episodes])
        if seed == 1:
            assert seen[0] == seen[1]  # nothing changed: the same episodes again
        if seed:
            perturb(policy.model, seed=seed)
    assert seen[1] != seen[2]


def test_log_probabilities_are_those_of_the_temperature(vllm_policy, lake):
    vllm_policy.engine.cancel()
    policy = replace(vllm_policy, temperature=0.7)
    episodes = rollout(policy, FrozenLake, lake.config, jobs(lake.tasks[:4], 2, 6))
    check_teacher_forcing(policy.model, episodes, 0.7)


def test_an_episode_does_not_depend_on_those_beside_it(vllm_policy, lake):
    todo = ragged_jobs(lake, samples=2)
    together = rollout(vllm_policy, FrozenLake, lake.config, todo)
    alone = [rollout(vllm_policy, FrozenLake, lake.config, [j])[0] for j in todo[::3]]
    assert [tokens(e) for e in together[::3]] == [tokens(e) for e in alone]
    other = rollout(vllm_policy, FrozenLake, lake.config, [replace(j, base_seed=8) for j in todo])
    assert [tokens(e) for e in other] != [tokens(e) for e in together]


def test_sampling_follows_the_distribution(vllm_policy):
    """The first token of many one-token answers, against the model's own probabilities."""
    policy, n = replace(vllm_policy, max_action_tokens=1), 4000
    prompt = policy.chat.prompt([{"role": "user", "content": "left"}])
    session, rng, found = policy.session(), np.random.default_rng(0), []
    for i in range(n):
        session.add(i, prompt, rng)
    while done := session.poll():
        found += [a[0] for _, a, _ in done]
    with torch.no_grad():
        p = policy.model(torch.tensor([prompt])).logits[0, -1].softmax(-1).numpy()
    count = np.bincount(found, minlength=len(p))
    assert len(found) == n and np.abs((count - n * p) / np.sqrt(n * p * (1 - p) + 1e-9))[n * p > 5].max() < 4.5


def test_the_next_turn_is_in_flight_while_another_row_still_generates(vllm_policy, lake, monkeypatch):
    engine, log, clock, cached = vllm_policy.engine, [], [0], []
    start, action, step = engine.start, engine._action, engine.llm.llm_engine.step

    def logged_action(output):
        found = action(output)
        log.append((clock[0], "end", found[0]))
        cached.append((output.num_cached_tokens, len(output.prompt_token_ids)))
        return found

    def logged_step():
        clock[0] += 1
        return step()

    monkeypatch.setattr(
        engine, "start", lambda key, *a, **k: (log.append((clock[0], "start", key)), start(key, *a, **k))
    )
    monkeypatch.setattr(engine, "_action", logged_action)
    monkeypatch.setattr(engine.llm.llm_engine, "step", logged_step)
    policy = replace(vllm_policy, max_action_tokens=24)
    episodes = rollout(policy, FrozenLake, lake.config, jobs(lake.tasks, 2, 6))
    turns, spans = {}, []  # (episode, turn, first step, last step)
    for at, what, key in log:
        if what == "start":
            turns[key] = at
        else:
            spans.append((key, turns.pop(key), at))
    joined = [(a, b) for a in spans for b in spans if a[0] != b[0] and a[1] < b[1] < a[2]]
    assert len(joined) > 10  # b's turn began after a's did and before a's was over
    assert sum(len(e.turns) for e in episodes) < len(spans)
    block = engine.llm.llm_engine.vllm_config.cache_config.block_size
    assert max(hit for hit, _ in cached) >= block and any(hit >= n - 2 * block for hit, n in cached if n > 3 * block)


def test_lora_is_merged_on_the_way_and_frozen_weights_stay(vllm_policy, lake):
    torch.manual_seed(0)
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    model = get_peft_model(vllm_policy.model, lora).eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    policy = replace(vllm_policy, model=model)
    episodes = rollout(policy, FrozenLake, lake.config, jobs(lake.tasks[:4], 2, 6))
    check_teacher_forcing(model, episodes)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    found = dict(weights(model))
    with model.disable_adapter():
        others = rollout(policy, FrozenLake, lake.config, jobs(lake.tasks[:4], 2, 6))
        check_teacher_forcing(model, others)
    assert [tokens(e) for e in others] != [tokens(e) for e in episodes]
    with merged(model):  # as in training
        again = rollout(policy, FrozenLake, lake.config, jobs(lake.tasks[:4], 2, 6))
        assert [tokens(e) for e in again] == [tokens(e) for e in episodes]
    whole = model.merge_and_unload().state_dict()
    assert found.keys() == whole.keys() and all(torch.allclose(v, whole[k], atol=1e-6) for k, v in found.items())


def test_a_sync_that_changes_nothing_is_noticed(vllm_policy, lake, perturb, monkeypatch):
    rollout(vllm_policy, FrozenLake, lake.config, jobs(lake.tasks[:1], 1, 1))
    monkeypatch.setattr(vllm_policy.engine, "push", lambda model: None)
    perturb(vllm_policy.model)
    with pytest.raises(RuntimeError, match="differ from the model's by .*does not have the model's weights"):
        rollout(vllm_policy, FrozenLake, lake.config, jobs(lake.tasks[:1], 1, 1))


def test_a_sync_that_misses_some_weights_is_noticed_before_training(vllm_policy, monkeypatch):
    """While the weights are the first ones nothing looks wrong; with all of them halved it does."""
    engine = vllm_policy.engine

    def partly(model):
        some = [(n, p) for n, p in weights(model) if "mlp" not in n]
        engine.llm.apply_model(lambda inner: inner.load_weights(some) and None)
        assert engine.llm.reset_prefix_cache()

    vllm_policy.sync()
    before = {k: v.clone() for k, v in vllm_policy.model.state_dict().items()}
    monkeypatch.setattr(engine, "push", partly)
    vllm_policy.sync()
    monkeypatch.setattr(engine, "proved", False)
    with pytest.raises(RuntimeError, match="after a sync of halved weights .*does not have the model's weights"):
        vllm_policy.sync()
    assert all(torch.equal(v, before[k]) for k, v in vllm_policy.model.state_dict().items())


LOAD = """
import sys
import torch
from lib.policies import vllm_engine
from lib.policies.vllm import VLLMPolicy
if sys.argv[2] == "repacked":
    vllm_engine._keep_cpu_weights_plain = lambda: None
VLLMPolicy.load(sys.argv[1], max_context=512)
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="only vLLM's CPU backend repacks weights")
def test_repacked_cpu_weights_are_noticed_at_load(vllm_policy):
    folder = vllm_policy.model.config._name_or_path
    command = [sys.executable, "-c", LOAD, folder]
    found = subprocess.run([*command, "repacked"], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 1 and ("load_weights" in found.stderr or "model's weights" in found.stderr), found.stderr
    print(found.stderr[-1500:])


def test_a_rollout_that_broke_leaves_nothing_in_flight(vllm_policy, lake):
    class Env(FrozenLake):
        def step_quality(self, action):
            raise NoStepMeasure("none")

    todo = jobs(lake.tasks, 2, 6)
    healthy = rollout(vllm_policy, FrozenLake, lake.config, todo)
    session = vllm_policy.session()
    session.add(0, vllm_policy.chat.prompt([{"role": "user", "content": "x"}]), np.random.default_rng(0))
    with pytest.raises(NoStepMeasure):
        rollout(vllm_policy, Env, lake.config, todo, quality=True)
    assert [tokens(e) for e in rollout(vllm_policy, FrozenLake, lake.config, todo)] == [tokens(e) for e in healthy]
    with pytest.raises(RuntimeError, match="this session is over"):
        session.poll()


def test_what_vllm_would_change_without_a_word_is_refused(vllm_policy, monkeypatch):
    with pytest.raises(ValueError, match="temperature 0.001: vLLM samples at 0.01 or more"):
        replace(vllm_policy, temperature=0.001)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(NotImplementedError, match="plays on one process"):
        type(vllm_policy).load(vllm_policy.model.config._name_or_path)
