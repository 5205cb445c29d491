"""Sampling by inversion, scoring without padding, and the chunks it works in."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM, CohereConfig, Gemma2Config, GPT2Config, GraniteConfig, LlamaConfig

from lib.policies.hf import HFPolicy, check_head, length_chunks, sample, score, shared_prefix


@pytest.mark.parametrize("shared", [0, 12])  # tokens that all rows begin with, which are computed once
def test_score_equals_a_plain_forward_of_each_row(policy, shared):
    g = torch.Generator().manual_seed(0)
    lengths = (40, 3, 17, 40, 2, 39, 5)
    rows = [torch.randint(0, 300, (n,), generator=g) for n in lengths]
    masks = [(torch.rand(n, generator=g) < 0.5) & (torch.arange(n) > 0) for n in lengths]
    masks[2][:] = False  # a row of which nothing is wanted
    beginning = torch.randint(0, 300, (shared,), generator=g)
    rows = [torch.cat([beginning, r]) for r in rows]
    masks = [torch.cat([torch.zeros(shared, dtype=torch.bool), m]) for m in masks]
    assert shared_prefix(rows, masks) >= shared
    logps, entropies = score(policy.model, rows, masks, temperature=0.5)
    for row, mask, logp, entropy in zip(rows, masks, logps, entropies, strict=True):
        full = torch.log_softmax(policy.model(row[None]).logits[0] / 0.5, -1)[:-1]
        at = full[mask[1:]]
        np.testing.assert_allclose(logp.detach(), at.gather(1, row[mask][:, None])[:, 0].detach(), atol=1e-5)
        np.testing.assert_allclose(entropy, -(at.exp() * at).sum(-1).detach(), atol=1e-5)
    weights = [torch.randn(len(x), generator=g) for x in logps]
    name, p = next((n, p) for n, p in policy.model.named_parameters() if "q_proj" in n)
    (ours,) = torch.autograd.grad(sum((w * x).sum() for w, x in zip(weights, logps, strict=True)), p)
    plain = 0
    for row, mask, w in zip(rows, masks, weights, strict=True):
        full = torch.log_softmax(policy.model(row[None]).logits[0] / 0.5, -1)[:-1]
        plain = plain + (w * full[mask[1:]].gather(1, row[mask][:, None])[:, 0]).sum()
    (expected,) = torch.autograd.grad(plain, p)
    np.testing.assert_allclose(ours, expected, atol=1e-5, err_msg=name)
    with pytest.raises(ValueError, match="first token"):
        score(policy.model, rows[:1], [torch.ones(40 + shared)])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 1000), st.floats(1.0, 2.0, allow_nan=False))
def test_chunks_part_the_rows_and_keep_their_bounds(lengths, max_tokens, slack):
    chunks = length_chunks(lengths, max_tokens, slack)
    assert sorted(i for c in chunks for i in c) == list(range(len(lengths)))
    for c in chunks:
        of = [lengths[i] for i in c]
        padded = max(of) * len(of)
        assert padded <= slack * sum(of) * (1 + 1e-12)
        assert padded <= max_tokens or len(c) == 1
    for a, b in zip(chunks, chunks[1:], strict=False):  # no chunk is closed without need
        of = [lengths[i] for i in a] + [lengths[b[0]]]
        assert max(of) * len(of) > min(max_tokens, slack * sum(of) * (1 - 1e-12))


def test_sampled_frequencies_are_the_probabilities():
    p = np.array([0.5, 0.25, 0.0, 0.2, 0.05])
    n = 4000
    logits = torch.tensor(p).log().float().expand(n, -1) + 3.0  # any constant
    tokens, logps = sample(logits, np.random.default_rng(0).random(n))
    counts = np.bincount(tokens, minlength=5)
    assert counts[2] == 0 and chisquare(counts[p > 0], n * p[p > 0]).pvalue > 0.001
    np.testing.assert_allclose(np.exp(logps), p[tokens], atol=1e-6)


def test_inversion_at_its_edges():
    p = torch.tensor([[0.0, 0.25, 0.5, 0.0, 0.25, 0.0]])
    almost_one = np.nextafter(1.0, 0.0)
    for u, token in ((0.0, 1), (0.249, 1), (0.251, 2), (0.749, 2), (0.751, 4), (almost_one, 4)):
        tokens, logps = sample(p.log(), [u])
        assert tokens == [token] and logps[0] == pytest.approx(np.log(p[0, token].item()))
    wide = torch.randn(1, 150_000, generator=torch.Generator().manual_seed(1))  # a sum that is not quite 1
    wide[0, :10] = wide[0, -10:] = -torch.inf
    assert sample(wide, [0.0])[0] == [10] and sample(wide, [almost_one])[0] == [149_989]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-30, 30), min_size=1, max_size=8).map(sorted), st.floats(0, 1, exclude_max=True))
def test_inversion_finds_the_token_whose_interval_holds_u(logits, u):
    (token,), (logp,) = sample(torch.tensor([logits]), [u])
    p = np.exp(np.array(logits) - max(logits))
    p /= p.sum()
    assert p[:token].sum() - 1e-5 <= u <= p[: token + 1].sum() + 1e-5
    assert logp == pytest.approx(np.log(p[token]), abs=1e-4)


SHAPE = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 8,
         "num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": 0}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        (Gemma2Config(**SHAPE, final_logit_softcapping=30.0), True),
        (Gemma2Config(**SHAPE, final_logit_softcapping=None), False),
        (GraniteConfig(**SHAPE, logits_scaling=8.0), True),
        (GraniteConfig(**SHAPE, logits_scaling=1.0), False),
        (CohereConfig(**SHAPE, logit_scale=0.0625), True),
        (GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2), True),  # no `model` with a head `lm_head`
        (LlamaConfig(**SHAPE), False),
    ],
    ids=lambda x: type(x).__name__,
)
def test_models_that_do_more_than_apply_the_head_are_refused(config, refused, policy):
    model = AutoModelForCausalLM.from_config(config).eval()
    if refused:
        with pytest.raises(ValueError, match=f"{type(model).__name__} computes its logits in another way"):
            HFPolicy(model, policy.tokenizer)
    else:
        HFPolicy(model, policy.tokenizer)
        ids = torch.tensor([[3, 5, 9, 2]])
        logps, _ = score(model, [ids[0]], [torch.tensor([0, 1, 1, 1])])
        plain = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        torch.testing.assert_close(logps[0], plain, atol=1e-5, rtol=0)


def test_a_scaled_input_of_the_head_is_refused(policy):
    class Scaled(type(policy.model)):  # as MiniCPM does
        def forward(self, input_ids, **kwargs):
            out = self.model(input_ids, **kwargs)
            return type("Out", (), {"logits": self.lm_head(out.last_hidden_state / 2)})

    with pytest.raises(ValueError, match="Scaled computes its logits"):
        check_head(Scaled(policy.model.config))
