"""Many actions at one context: the context is computed once, and samples that agree so far share their computation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import DynamicCache

from lib.policies.hf import HFPolicy, length_chunks, sample


class _Branches:
    """Token sequences side by side on one KV cache, whose rows can be repeated and dropped while they grow."""

    def __init__(self, policy: HFPolicy, contexts: Sequence[Sequence[int]]):
        self.temperature = policy.temperature
        self.base = getattr(policy.model, "get_base_model", lambda: policy.model)()
        self.device = self.base.get_input_embeddings().weight.device
        self.cache = DynamicCache()
        self.real = torch.ones(1, 0, dtype=torch.bool)
        first, last = min(contexts), max(contexts)
        shared = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
        shared = min(shared, len(first) - 1, len(last) - 1) if len(contexts) > 1 else 0
        if shared > 0:  # the beginning that all contexts have (a system message) is computed once
            self._append(torch.tensor([list(first[:shared])]), torch.ones(1, shared, dtype=torch.bool))
            self._take([0] * len(contexts))
        else:
            self.real = self.real.expand(len(contexts), 0)
        rest = [list(c[shared:]) for c in contexts]
        width, pad = max(map(len, rest)), policy.chat.stop_ids[0]
        ids = torch.tensor([[pad] * (width - len(r)) + r for r in rest])
        self._append(ids, torch.tensor([[False] * (width - len(r)) + [True] * len(r) for r in rest]))

    def grow(self, rows: Sequence[int], tokens: Sequence[int]) -> None:
        """Row i becomes the old row `rows[i]` with `tokens[i]` appended."""
        self._take(rows)
        self._append(torch.tensor(tokens)[:, None], torch.ones(len(rows), 1, dtype=torch.bool))

    def _take(self, rows: Sequence[int]) -> None:
        index = torch.tensor(rows)
        self.cache.batch_select_indices(index.to(self.device))
        self.real = self.real[index]

    @torch.no_grad()
    def _append(self, ids: torch.Tensor, real: torch.Tensor) -> None:
        """Append `ids` (rows, n), of which only those at `real` count, and set `logits` (rows, vocabulary)."""
        self.real = torch.cat([self.real, real], 1)
        n, total = ids.shape[1], self.real.shape[1]
        causal = torch.ones(n, total, dtype=torch.bool).tril(total - n)
        # padding attends to something harmless: a softmax over nothing would be NaN
        visible = (self.real[:, None, :] & causal[None]) | ~real[:, :, None]
        out = self.base.model(
            input_ids=ids.to(self.device),
            attention_mask=visible[:, None].to(self.device),
            position_ids=(self.real.cumsum(1) - 1).clamp(min=0)[:, -n:].to(self.device),
            past_key_values=self.cache,
            use_cache=True,
        )
        last = out.last_hidden_state[:, -1].contiguous()
        self.logits = self.base.lm_head(last).float().cpu() / self.temperature


def sample_actions(
    policy: HFPolicy, contexts: Sequence[Sequence[int]], group: int, seeds: Sequence[int]
) -> list[list[list[int]]]:
    """`group` actions at each context: token ids (contexts, group, tokens), the end-of-turn token included.

    contexts: token ids before the action. seeds: of each context's draws. Two policies that are given the same seeds
    share their random numbers, so that policies with the same distribution draw the same actions; the draws of a
    context do not depend on the others.
    """
    if group < 1 or len(contexts) != len(seeds):
        raise ValueError(f"{group} actions at {len(contexts)} contexts with {len(seeds)} seeds")
    out: list[list[list[int]]] = [[[] for _ in range(group)] for _ in contexts]
    for chunk in length_chunks([len(c) for c in contexts]):
        draws = {i: np.random.default_rng(seeds[i]).random((group, policy.max_action_tokens)) for i in chunk}
        branches = _Branches(policy, [contexts[i] for i in chunk])
        members = [[(i, n) for n in range(group)] for i in chunk]  # the samples that share a row
        for k in range(policy.max_action_tokens):
            flat = [(row, i, n) for row, m in enumerate(members) for i, n in m]
            tokens, _ = sample(branches.logits[[row for row, _, _ in flat]], [draws[i][n, k] for _, i, n in flat])
            grown: dict[tuple[int, int], list[tuple[int, int]]] = {}
            for (row, i, n), token in zip(flat, tokens, strict=True):
                out[i][n].append(token)
                if token not in policy.chat.stop_ids:
                    grown.setdefault((row, token), []).append((i, n))
            if not grown or k + 1 == policy.max_action_tokens:
                break
            members = list(grown.values())
            branches.grow([row for row, _ in grown], [token for _, token in grown])
    return out


def text_probabilities(policy: HFPolicy, contexts: Sequence[Sequence[int]], texts: Sequence[str]) -> np.ndarray:
    """Probability that the next action is exactly `texts[j]` in its standard tokens and its end: (contexts, texts).

    Other tokenisations of the same text are not counted. Raises ValueError for a text longer than an action may be.
    """
    actions = [policy.chat.assistant(text) for text in texts]
    if not texts or max(map(len, actions)) > policy.max_action_tokens:
        raise ValueError(f"texts {list(texts)}: need at least one, each of at most {policy.max_action_tokens} tokens")
    logp = np.zeros((len(contexts), len(texts)))
    for chunk in length_chunks([len(c) for c in contexts]):
        branches = _Branches(policy, [contexts[i] for i in chunk])
        rows = {(i, j): row for row, i in enumerate(chunk) for j in range(len(texts))}
        for k in range(max(map(len, actions))):
            full = torch.log_softmax(branches.logits, -1)
            for (i, j), row in rows.items():
                logp[i, j] += full[row, actions[j][k]].item()
            rows = {(i, j): row for (i, j), row in rows.items() if k + 1 < len(actions[j])}
            if rows:
                branches.grow(list(rows.values()), [actions[j][k] for _, j in rows])
                rows = {pair: row for row, pair in enumerate(rows)}
    return np.exp(logp)
