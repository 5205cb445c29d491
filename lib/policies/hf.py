"""A Hugging Face causal language model as a policy: what is sampled (lib/policies/session.py) and how it is scored."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from transformers import DynamicCache

from lib.policies import attention
from lib.policies.chat import ChatFormat
from lib.policies.pretrained import choose_device, choose_dtype, load_model, model_folder
from lib.policies.session import Session, sample

__all__ = ["HFPolicy", "Session", "length_chunks", "sample", "score"]


@dataclass
class HFPolicy:
    """A model, its tokenizer and how it is sampled.

    model: with "sdpa" attention, the default. temperature: divides the logits, in sampling and in scoring alike.
    max_action_tokens: an action is cut there. max_context: tokens an episode may have, actions included; beyond it an
    episode ends as out of budget. thinking: see `lib.policies.config.PolicyConfig`.
    """

    model: torch.nn.Module
    tokenizer: object
    temperature: float = 1.0
    max_action_tokens: int = 8
    max_context: int = 4096
    thinking: bool = False
    chat: ChatFormat = field(init=False)
    external: ClassVar[bool] = False  # whether another implementation than `model` samples

    def __post_init__(self):
        if self.temperature <= 0:
            raise ValueError(f"temperature {self.temperature}: it must be > 0")
        if self.max_action_tokens < 1:
            raise ValueError(f"max_action_tokens {self.max_action_tokens}: it must be at least 1")
        kind = self.model.config._attn_implementation
        if kind != "sdpa":  # others read the boolean mask of the cache in another way, or not at all
            raise ValueError(f"attention implementation {kind!r}: load the model with attn_implementation='sdpa'")
        attention.install()
        check_head(self.model)
        self.chat = ChatFormat(self.tokenizer, self.thinking)

    @classmethod
    def load(cls, path: str | Path, dtype: str = "float32", device: str = "cpu", **kwargs) -> HFPolicy:
        """From a hub id or a local folder (a LoRA adapter's is merged into its model), ready for sampling. dtype,
        device: see `lib.policies.config.PolicyConfig`. Raises FileNotFoundError for a model that is not to be had."""
        device = choose_device(device)
        model, tokenizer = load_model(model_folder(str(path)), choose_dtype(dtype, device))
        return cls(model.to(device).eval(), tokenizer, **kwargs)

    def session(self) -> Session:
        """A fresh set of episodes to be played side by side."""
        return Session(self)

    def room(self) -> int:
        """How many episodes of max_context tokens can be played side by side: keys and values of all, in a cache that
        is copied when it grows, get a third of a GPU's free memory, or an eighth of the machine's memory."""
        c, weight = self.model.config.get_text_config(), self.model.get_input_embeddings().weight
        width = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        token = 2 * c.num_hidden_layers * c.num_key_value_heads * width * weight.element_size()
        if weight.is_cuda:
            unused = torch.cuda.memory_reserved(weight.device) - torch.cuda.memory_allocated(weight.device)
            memory = (torch.cuda.mem_get_info(weight.device)[0] + unused) / 3
        else:
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 8
        return max(1, int(memory / token / self.max_context))


@torch.no_grad()
def check_head(model: torch.nn.Module) -> None:
    """Raises ValueError for a model whose logits are not just `lm_head` of its trunk's last hidden states.

    Sessions and `score` apply `lm_head` themselves, and only where it is needed. Some families do more to the logits
    (soft-capping in Gemma 2, scaling in Granite and Cohere) or to what enters the head (MiniCPM): their probabilities
    would silently be wrong. The head's output is replaced by numbers of every size: a small model's own logits are too
    small to be capped visibly.
    """
    base, seen = getattr(model, "get_base_model", lambda: model)(), {}
    refused = f"{type(base).__name__} computes its logits in another way than lm_head(model(ids)): it is not supported"
    if not hasattr(base, "model") or not hasattr(base, "lm_head"):
        raise ValueError(refused)

    def head(module, inputs, out):
        seen["input"], seen["out"] = inputs[0], torch.linspace(-100, 100, out.numel()).to(out).view_as(out)
        return seen["out"]

    hooks = [
        base.model.register_forward_hook(lambda module, inputs, out: seen.update(hidden=out[0])),
        base.lm_head.register_forward_hook(head),
    ]
    try:
        logits = base(input_ids=torch.arange(4, device=base.lm_head.weight.device)[None]).logits
    finally:
        for hook in hooks:
            hook.remove()
    passed = seen.keys() == {"hidden", "input", "out"} and torch.equal(seen["input"], seen["hidden"])
    if not passed or not torch.equal(logits.float(), seen["out"].float()):
        raise ValueError(refused)


def score(
    model: torch.nn.Module,
    rows: Sequence[torch.Tensor],
    masks: Sequence[torch.Tensor],
    temperature: float = 1.0,
    value_head: torch.nn.Module | None = None,
) -> tuple[list[torch.Tensor], ...]:
    """Log-probability and entropy (nats) of chosen tokens by teacher forcing, without work on padding or repetition.

    rows: token ids of each sequence, 1-D, of any length. masks: True at the tokens to score (never the first). What all
    rows begin with is computed once. Rows are sorted by length into chunks with little padding, padded on the right
    (causal attention never looks there), and the head is applied to the scored positions only. Returns two lists in the
    order of `rows`; gradients flow.
    value_head: (n, hidden) to (n,); its values of the states in which the tokens were chosen are then a third list.
    """
    base = getattr(model, "get_base_model", lambda: model)()
    logps: list = [None] * len(rows)
    entropies: list = [None] * len(rows)
    values: list = [None] * len(rows)
    if masks and torch.cat([m[:1] for m in masks]).any():
        raise ValueError("the first token of a sequence has no log-probability")
    n = 0 if base.is_gradient_checkpointing else shared_prefix(rows, masks)  # checkpointing allows no cache
    past = base.model(input_ids=rows[0][None, :n], use_cache=True).past_key_values if n else None
    rows, masks = [r[n:] for r in rows], [m[n:] for m in masks]
    for chunk in length_chunks([len(r) for r in rows]):
        ids = torch.nn.utils.rnn.pad_sequence([rows[i] for i in chunk], batch_first=True)
        wanted = torch.nn.utils.rnn.pad_sequence([masks[i].bool() for i in chunk], batch_first=True)
        hidden = base.model(input_ids=ids, **_after(past, n, *ids.shape)).last_hidden_state[:, :-1][wanted[:, 1:]]
        logits = base.lm_head(hidden).float() / temperature
        logp = -F.cross_entropy(logits, ids[wanted], reduction="none")
        with torch.no_grad():
            full = torch.log_softmax(logits, -1)
            entropy = -(full.exp() * full).sum(-1)
        counts = [int(masks[i].sum()) for i in chunk]
        for i, a, b in zip(chunk, logp.split(counts), entropy.split(counts), strict=True):
            logps[i], entropies[i] = a, b
        if value_head is not None:
            for i, v in zip(chunk, value_head(hidden).split(counts), strict=True):
                values[i] = v
    return (logps, entropies) if value_head is None else (logps, entropies, values)


def shared_prefix(rows: Sequence[torch.Tensor], masks: Sequence[torch.Tensor]) -> int:
    """How many tokens all rows begin with, less what must be left to each: its scored tokens and the one before them.
    0 for fewer than two rows."""
    if len(rows) < 2:
        return 0
    n = min(map(len, rows)) - 1
    same = torch.stack([r[:n] == rows[0][:n] for r in rows]).all(0)
    scored = torch.stack([m[1 : n + 1].bool() for m in masks]).any(0)
    return int((same & ~scored).cumprod(0).sum())


def _after(past: DynamicCache | None, n: int, rows: int, width: int) -> dict[str, object]:
    """The model's arguments for `rows` rows of `width` tokens that follow the `n` tokens in the cache `past`."""
    if past is None:
        return {"use_cache": False}
    k = past.layers[0].keys
    position = torch.arange(n, n + width, device=k.device)
    return {
        "past_key_values": DynamicCache([(x.keys.expand(rows, -1, -1, -1), x.values.expand(rows, -1, -1, -1))
                                         for x in past.layers]),
        "position_ids": position[None],
        "attention_mask": k.new_full((width, n + width), -torch.inf).triu(n + 1)[None, None],
        "use_cache": True,
    }  # fmt: skip


def length_chunks(lengths: Sequence[int], max_tokens: int = 16384, slack: float = 1.15) -> list[list[int]]:
    """Indices sorted by length and cut into chunks in which padding adds at most `slack` - 1 and which hold at most
    `max_tokens` tokens, padding included (a longer single row is a chunk of its own)."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    chunks: list[list[int]] = []
    real = 0
    for i in order:
        longest = lengths[chunks[-1][0]] if chunks else 0
        padded = longest * (len(chunks[-1]) + 1) if chunks else 0
        if not chunks or padded > max_tokens or padded > slack * (real + lengths[i]):
            chunks.append([i])
            real = lengths[i]
        else:
            chunks[-1].append(i)
            real += lengths[i]
    return chunks
