"""Attention under grouped queries: against the formula, and a whole session against a model with eager attention."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen3Config, Qwen3ForCausalLM

from lib.policies.attention import grouped_sdpa
from lib.policies.hf import HFPolicy


@given(
    st.integers(1, 5), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(0, 9), st.booleans(),
    st.integers(0, 99),
)  # fmt: skip
def test_it_is_softmax_of_scaled_products_over_what_is_visible(rows, groups, share, new, past, masked, seed):
    g = torch.Generator().manual_seed(seed)
    heads, tokens = groups * share, past + new
    q, k, v = (torch.randn(rows, n, m, 4, generator=g) for n, m in ((heads, new), (groups, tokens), (groups, tokens)))
    visible = torch.rand(rows, 1, new, tokens, generator=g) < 0.5
    visible[..., 0] = True
    if not masked:
        visible = torch.ones(rows, 1, new, tokens, dtype=torch.bool).tril(past)
    module = SimpleNamespace(num_key_value_groups=share, is_causal=True)
    mask = visible if masked or new > 1 else None
    found, _ = grouped_sdpa(module, q, k, v, mask, scaling=0.3)
    for h in range(heads):
        scores = (q[:, h] @ k[:, h // share].transpose(1, 2) * 0.3).masked_fill(~visible[:, 0], -torch.inf)
        torch.testing.assert_close(found[:, :, h], scores.softmax(-1) @ v[:, h // share], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_a_session_samples_from_the_model_with_eager_attention(policy, groups):
    """Three episodes of two turns with texts of unequal length between them."""
    torch.manual_seed(groups)
    config = Qwen3Config(
        vocab_size=len(policy.tokenizer), hidden_size=48, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=groups, head_dim=8, initializer_range=0.3,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    model = Qwen3ForCausalLM(config).eval()
    session = HFPolicy(model, policy.tokenizer, max_action_tokens=5).session()
    rng = [np.random.default_rng(i) for i in range(3)]
    texts = [[[5, 6, 7, 8], [5, 6], [5, 6, 9]], [[11], [12, 13, 14], [15, 16]]]
    rows, masks, logps = ([[] for _ in range(3)] for _ in range(3))
    for appended in texts:
        for i, (action, logp) in enumerate(session.act(range(3), appended, rng)):
            rows[i] += appended[i] + action
            masks[i] += [False] * len(appended[i]) + [True] * len(action)
            logps[i] += logp
    model.set_attn_implementation("eager")
    for row, mask, logp in zip(rows, masks, logps, strict=True):
        with torch.no_grad():
            plain = torch.log_softmax(model(input_ids=torch.tensor([row])).logits[0], -1)
        chosen = plain[:-1].gather(1, torch.tensor(row)[1:, None])[:, 0][torch.tensor(mask)[1:]]
        np.testing.assert_allclose(logp, chosen, atol=1e-5)
