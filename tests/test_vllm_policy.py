"""What lib/policies/vllm.py does with an engine, on one that is a second Hugging Face model: no vLLM is needed.

The tests of the real engine are in tests/with_vllm (`make test-vllm`).
"""

import copy
import json

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from test_rollout import check_teacher_forcing, tokens
from trainer_parts import SMALL, Lengths

from lib.envs.frozenlake import FrozenLake
from lib.policies.hf import HFPolicy
from lib.policies.pretrained import merged
from lib.policies.vllm import VLLMPolicy
from lib.policies.vllm_engine import weights
from lib.rollout import jobs, rollout
from lib.trainers.config import TrainConfig
from lib.trainers.trainer import train


class Twin:
    """A copy of the model with weights of its own; it finishes one action at a time, the rest stay in flight."""

    can_sync, proved, session, max_context = True, False, None, 512

    def __init__(self, policy):
        self.policy = HFPolicy(copy.deepcopy(policy.model), policy.tokenizer)
        self.asked, self.pushes = [], 0

    def start(self, key, tokens, sampling):
        self.asked.append((key, list(tokens), sampling))

    def finished(self):
        if not self.asked:
            return []
        key, tokens, sampling = self.asked.pop(0)
        self.policy.temperature, self.policy.max_action_tokens = sampling["temperature"], sampling["max_tokens"]
        rng = np.random.default_rng(sampling["seed"])
        return [(key, *self.policy.session().act([0], [tokens], [rng])[0])]

    def cancel(self):
        self.asked.clear()

    def push(self, model):
        self.pushes += 1
        self.policy.model.load_state_dict(dict(weights(model)))


@pytest.fixture
def twin(policy):
    engine = Twin(policy)
    return VLLMPolicy(policy.model, policy.tokenizer, max_context=512, engine=engine)


def perturb(model):
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * p.std() * torch.randn(p.shape, generator=torch.Generator().manual_seed(0))


def test_a_rollout_has_the_present_weights_and_is_reproducible(twin, lake):
    todo = jobs(lake.tasks, 2, 6)
    before = rollout(twin, FrozenLake, lake.config, todo)
    perturb(twin.model)
    after = rollout(twin, FrozenLake, lake.config, todo)
    check_teacher_forcing(twin.model, after)
    assert [tokens(e) for e in after] != [tokens(e) for e in before] and len({len(e.turns) for e in after}) > 2
    alone = [rollout(twin, FrozenLake, lake.config, [j])[0] for j in todo[::5]]
    assert [tokens(e) for e in alone] == [tokens(e) for e in after[::5]]


@pytest.mark.parametrize("missed", ["", "mlp", "self_attn.o_proj"])
def test_a_sync_that_misses_weights_is_noticed(twin, lake, missed, monkeypatch):
    inner = twin.engine.policy.model
    some = lambda model: {n: p for n, p in weights(model) if missed not in n}  # noqa: E731
    monkeypatch.setattr(twin.engine, "push", lambda model: inner.load_state_dict(some(model), strict=False))
    before = {k: v.clone() for k, v in twin.model.state_dict().items()}
    with pytest.raises(RuntimeError, match="after a sync of halved weights .*does not have the model's weights"):
        twin.session()  # although engine and model start with the same weights
    assert all(torch.equal(v, before[k]) for k, v in twin.model.state_dict().items())
    twin.engine.proved = True  # and later, once they differ
    perturb(twin.model)
    with pytest.raises(RuntimeError, match="after a weight sync "):
        twin.session()


def test_lora_reaches_the_engine_merged_once(twin, lake):
    torch.manual_seed(0)
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    twin.model = get_peft_model(twin.model, lora).eval()
    before = {k: v.clone() for k, v in twin.model.state_dict().items()}
    read = lambda: {k: v.clone() for k, v in weights(twin.model)}  # noqa: E731
    found = [read()]
    with merged(twin.model):  # as the trainer plays
        found.append(read())
        twin.sync()
    assert all(torch.equal(v, before[k]) for k, v in twin.model.state_dict().items())
    whole = copy.deepcopy(twin.model).merge_and_unload().state_dict()
    for each in found:
        assert each.keys() == whole.keys() and all(torch.allclose(v, whole[k], atol=1e-6) for k, v in each.items())
    with twin.model.disable_adapter():
        twin.sync()


@pytest.mark.parametrize("change", [{}, {"algorithm": "ppo"}, {"lora_rank": 4}, {"iterations": 2}], ids=str)
def test_training_syncs_before_every_rollout(twin, lake, tmp_path, change):
    run = TrainConfig(**SMALL | {"updates": 2, "lr": 1e-2, "probe_every": 1, "probe_samples": 1} | change)
    train(twin, Lengths, lake.config, run, lake.tasks, lake.probe, tmp_path)
    found = [json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(found) == 2 and all(r["logp_gap"] < 1e-4 and r["grad_norm"] > 0 for r in found)
    assert twin.engine.pushes == 1 + 3 + 2  # the proof, three probes, two updates


def test_a_session_ends_with_the_next_one(twin):
    session = twin.session()
    session.add(0, twin.chat.prompt([{"role": "user", "content": "x"}]), np.random.default_rng(0))
    other = twin.session()
    assert other.poll() == []
    with pytest.raises(RuntimeError, match="this session is over"):
        session.poll()
    twin.max_context = 513
    with pytest.raises(ValueError, match="max_context 513: the engine was started with 512"):
        twin.session()
