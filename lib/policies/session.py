"""Playing many episodes side by side on one KV cache that is kept across turns.

Deviations from `model.generate` per turn: the cache of an episode is kept from turn to turn, so no token is computed
twice; a prompt that several episodes share, and the beginning that all prompts share, are computed once; rows whose
episode is over are dropped from the cache, and those whose action is done wait behind the others; rows of unequal
length leave holes in the cache that the attention mask hides until there are many; the head is applied to one position
a row; every random number comes from the episode's own generator, so an episode does not depend on its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

if TYPE_CHECKING:
    from lib.policies.hf import HFPolicy


SPARE = 0.8  # rows are set aside, or holes removed, once fewer than this share are of use


class _Layer(DynamicLayer):
    """A cache layer that grows into spare room, so that a turn does not copy the whole past, and that can be given new
    tokens for its first rows only."""

    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.room = None
        start = self.keys.shape[-2] if self.keys.numel() else 0
        n, end = key_states.shape[0], start + key_states.shape[-2]
        if self.room is None or self.room[0].shape[-2] < end:
            rows = n if self.room is None else self.room[0].shape[0]
            self._grow(rows, end, [r[:, :, :start] for r in self.room or ()], key_states)
        for r, new in zip(self.room, (key_states, value_states), strict=True):
            r[:n, :, start:end] = new
            r[n:, :, start:end] = 0  # holes, but no NaN by chance
        self.keys, self.values = (r[:n, :, :end] for r in self.room)
        return self.keys, self.values

    def _grow(self, rows: int, end: int, past: Sequence[torch.Tensor], like: torch.Tensor) -> None:
        room = tuple(like.new_empty(rows, like.shape[1], end + max(128, end // 2), like.shape[3]) for _ in range(2))
        for r, p in zip(room, past, strict=False):
            r[:, :, : p.shape[2]] = p
        self.room = room

    def take(self, index: Sequence[int]) -> None:
        """The rows become copies of the rows `index`."""
        self.room = self.keys, self.values = self.keys[index], self.values[index]

    def swap(self, a: Sequence[int], b: Sequence[int]) -> None:
        """The rows a and b change places; nothing else is copied."""
        end = self.keys.shape[-2]
        for r in self.room:
            r[[*a, *b], :, :end] = r[[*b, *a], :, :end]

    def first(self, rows: int) -> None:
        """Keep the first rows only."""
        end = self.keys.shape[-2]
        self.room = tuple(r[:rows] for r in self.room)
        self.keys, self.values = (r[:, :, :end] for r in self.room)

    def pick(self, index: torch.Tensor) -> None:
        """Keep the tokens `index` (rows, n) of each row."""
        index = index.to(self.keys.device)[:, None, :, None].expand(-1, self.keys.shape[1], -1, self.keys.shape[3])
        kept = [x.gather(2, index) for x in (self.keys, self.values)]
        self._grow(len(index), index.shape[2], kept, self.keys)
        self.keys, self.values = (r[:, :, : index.shape[2]] for r in self.room)


class Session:
    """Episodes played side by side on one KV cache: a turn of all of them at a time.

    `add` asks for an action of an episode, `poll` gives the actions that are done (see lib/rollout.py). Here `poll` is
    one call of `act` for all that were added.
    """

    def __init__(self, policy: HFPolicy):
        self.policy = policy
        self.model = policy.model
        self.base = getattr(policy.model, "get_base_model", lambda: policy.model)()
        self.device = self.base.get_input_embeddings().weight.device
        self.rows: list[int] = []  # the episode of each cache row
        self.cache = DynamicCache()
        self.cache.layers = [_Layer() for _ in range(self.base.config.num_hidden_layers)]
        self.mask = torch.zeros(1, 0, dtype=torch.bool)  # (rows, cached tokens): False is a hole
        self.length = torch.zeros(1, dtype=torch.long)  # real tokens of each row
        self.pending: dict[int, list[int]] = {}  # the last sampled token of an episode, not yet in the cache
        self.asked: list[tuple[int, list[int], np.random.Generator]] = []

    def add(self, episode: int, appended: list[int], rng: np.random.Generator) -> None:
        """Ask for the next action of an episode. appended: what the environment put after its last action."""
        self.asked.append((episode, appended, rng))

    def poll(self) -> list[tuple[int, list[int], list[float]]]:
        """Episodes whose action is done, with its tokens and their log-probabilities; [] when none was asked for."""
        asked, self.asked = self.asked, []
        if not asked:
            return []
        episodes, appended, rngs = zip(*asked, strict=True)
        return [(e, *a) for e, a in zip(episodes, self.act(episodes, appended, rngs), strict=True)]

    @torch.inference_mode()
    def act(
        self, episodes: Sequence[int], appended: Sequence[list[int]], rngs: Sequence[np.random.Generator]
    ) -> list[tuple[list[int], list[float]]]:
        """Sample one action for each episode: its token ids and their log-probabilities (nats).

        episodes: numbers of the episodes alive, a subset of those of the call before (the others are dropped; the
        first call sets them). appended: the tokens that the environment put after the last action.
        """
        new = {e: self.pending.get(e, []) + list(a) for e, a in zip(episodes, appended, strict=True)}
        if self.rows:
            self._keep(episodes)
            self._compact()
            logits = self._append([new[e] for e in self.rows])
        else:
            self.rows = list(episodes)
            logits = self._start([tuple(a) for a in new.values()])
        rng = dict(zip(episodes, rngs, strict=True))
        actions: dict[int, list[int]] = {e: [] for e in self.rows}
        logps: dict[int, list[float]] = {e: [] for e in self.rows}
        alive, n = set(self.rows), len(self.rows)  # who still acts; they are among the first n rows
        for k in range(self.policy.max_action_tokens):
            front = self.rows[:n]
            uniforms = [rng[e].random() if e in alive else 0.0 for e in front]
            for e, token, logp in zip(front, *sample(logits, uniforms), strict=True):
                if e in alive:
                    actions[e].append(token)
                    logps[e].append(logp)
            alive = {e for e in alive if actions[e][-1] not in self.policy.chat.stop_ids}
            if not alive or k + 1 == self.policy.max_action_tokens:
                break
            if len(alive) < SPARE * n:
                n = self._front(alive)
            real = torch.tensor([[e in alive] for e in self.rows[:n]])
            logits = self._forward(torch.tensor([[actions[e][-1]] for e in self.rows[:n]]), real)
        self.pending = {e: a[-1:] for e, a in actions.items()}
        return [(actions[e], logps[e]) for e in episodes]

    def _start(self, prompts: list[tuple[int, ...]]) -> torch.Tensor:
        """Fill the cache with one row a prompt and return their logits; what prompts share is computed once."""
        distinct = list(dict.fromkeys(prompts))
        first, last = min(distinct), max(distinct)
        shared = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
        shared = min(shared, min(map(len, distinct)) - 1)  # each row needs a token of its own
        if shared and len(distinct) > 1:
            self._append([first[:shared]])
            self._take([0] * len(distinct))
            logits = self._append([p[shared:] for p in distinct])
        else:
            self._take([0] * len(distinct))
            logits = self._append(distinct)
        where = {p: i for i, p in enumerate(distinct)}
        index = [where[p] for p in prompts]
        self._take(index)
        return logits[index]

    def _take(self, index: list[int]) -> None:
        self.mask, self.length = self.mask[index], self.length[index]
        for layer in self.cache.layers:
            if layer.is_initialized:
                layer.take(index)

    def _keep(self, episodes: Sequence[int]) -> None:
        """Drop the cache rows of all other episodes."""
        if not set(episodes) <= set(self.rows):
            raise ValueError(f"episodes {set(episodes) - set(self.rows)} are not in the session: it has {self.rows}")
        n = self._front(set(episodes))
        for layer in self.cache.layers:
            layer.first(n)
        self.mask, self.length = self.mask[:n], self.length[:n]
        del self.rows[n:]

    def _front(self, episodes: set[int]) -> int:
        """Put the rows of these episodes first; they take the places of others, nothing else moves. -> how many"""
        n = len(episodes)
        a = [i for i in range(n) if self.rows[i] not in episodes]
        b = [i for i in range(n, len(self.rows)) if self.rows[i] in episodes]
        if a:
            for layer in self.cache.layers:
                layer.swap(a, b)
            for x in (self.mask, self.length):
                x[[*a, *b]] = x[[*b, *a]]
        for i, j in zip(a, b, strict=True):
            self.rows[i], self.rows[j] = self.rows[j], self.rows[i]
        return n

    def _compact(self) -> None:
        """Remove the holes, where there are many: each row's tokens move to its beginning."""
        width = int(self.length.max())
        if width > SPARE * self.mask.shape[1]:
            return
        index = (~self.mask).byte().argsort(dim=1, stable=True)[:, :width]
        self.mask = torch.arange(width) < self.length[:, None]
        index = torch.where(self.mask, index, index[:, :1])
        for layer in self.cache.layers:
            layer.pick(index)

    def _append(self, new: Sequence[Sequence[int]]) -> torch.Tensor:
        """Append tokens to each row, any number but 0, and return the logits after the last (rows, vocabulary)."""
        width, pad = max(map(len, new)), self.policy.chat.stop_ids[0]
        ids = torch.tensor([[pad] * (width - len(a)) + list(a) for a in new])
        real = torch.tensor([[False] * (width - len(a)) + [True] * len(a) for a in new])
        return self._forward(ids, real)

    def _forward(self, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Append `ids` (n, width) to the first n rows of the cache, holes to the others, and return the last position's
        logits (n, vocabulary), float32."""
        n, width = ids.shape
        position = (self.length[:n, None] + real.cumsum(1) - 1).clamp(min=0)
        holes = real.new_zeros(len(self.mask) - n, width)
        self.mask = torch.cat([self.mask, torch.cat([real, holes])], 1)
        self.length[:n] += real.sum(1)
        total = self.mask.shape[1]
        causal = torch.ones(width, total, dtype=torch.bool).tril(total - width)
        # a row of a hole attends to something harmless: a softmax over nothing would be NaN
        visible = (self.mask[:n, None, :] & causal[None]) | ~real[:, :, None]
        out = self.base.model(
            input_ids=ids.to(self.device),
            attention_mask=visible[:, None].to(self.device),
            position_ids=position.to(self.device),
            past_key_values=self.cache,
            use_cache=True,
        )
        last = out.last_hidden_state[:, -1].contiguous()  # 2-D and contiguous: a strided head is 15 times slower
        return self.base.lm_head(last).float().cpu() / self.policy.temperature


def sample(logits: torch.Tensor, uniforms: Sequence[float]) -> tuple[list[int], list[float]]:
    """One token a row by inverting the distribution function at the given uniform number in [0, 1).

    logits: (rows, vocabulary). Returns token ids and their log-probabilities.
    """
    logp = torch.log_softmax(logits, -1)
    cdf = logp.double().exp().cumsum(-1)
    u = torch.tensor(uniforms, dtype=torch.float64)[:, None] * cdf[:, -1:]
    tokens = torch.searchsorted(cdf, u, right=True).clamp(max=logits.shape[1] - 1)
    return tokens[:, 0].tolist(), logp.gather(1, tokens)[:, 0].tolist()
