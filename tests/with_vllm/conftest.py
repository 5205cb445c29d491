"""One engine for all tests of this folder: a start costs seconds. `make test-vllm` runs them; they need vLLM."""

import copy

import pytest
import torch
from known_odds import random_policy

from lib.policies.config import PolicyConfig


@pytest.fixture(scope="session")
def loaded(tmp_path_factory):
    """A tiny random Qwen3 whose probabilities depend on everything before, played by vLLM in this process."""
    folder = tmp_path_factory.mktemp("vllm") / "model"
    policy = random_policy(head_dim=32)  # a size that vLLM has attention kernels for
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return PolicyConfig(engine="vllm", max_context=512, max_action_tokens=6).load(folder)


@pytest.fixture
def vllm_policy(loaded):
    """The policy with fresh weights and a wrapper of its own, on the shared engine."""
    model = copy.deepcopy(loaded.model)
    policy = copy.copy(loaded)
    policy.model = model
    return policy


@pytest.fixture
def perturb():
    def change(model, scale=0.1, seed=0):
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in model.parameters():
                p += scale * p.std() * torch.randn(p.shape, generator=draw)

    return change
