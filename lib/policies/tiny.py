"""The tiny base policy: a Qwen3-architecture transformer trained here from nothing on demonstrations of mixed quality.

It stands in for a pretrained model: it knows the format and the rudiments, and succeeds sometimes. It is saved as an
ordinary Hugging Face folder. The supervised part is a plain loop and not TRL's SFTTrainer: the loss is needed on action
tokens only of ragged episodes, which `lib.policies.hf.score` does without padding (the update of one epoch takes less
time than SFTTrainer's start-up and data preparation), and there is nothing else to configure.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from lib.envs.base import Env, Task
from lib.policies.chat import ChatFormat
from lib.policies.config import SPECIAL, TinyConfig
from lib.policies.hf import score

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def demonstrate(env_class: type[Env], config: Any, tasks: Sequence[Task], n: int, seed: int) -> list[list[dict]]:
    """`n` conversations played by the environment's demonstrators of mixed quality (one a task, round robin)."""
    env = env_class(config)
    out = []
    for i in range(n):
        task = tasks[i % len(tasks)]
        episode_seed = seed * 1_000_003 + i
        messages = list(env.reset(task, episode_seed))
        act = env_class.demonstrator(config, task, episode_seed)
        for _ in range(config.max_turns):
            text = act(env)
            step = env.step(text)
            messages.append({"role": "assistant", "content": text})
            if step.done:
                break
            messages.append({"role": "user", "content": step.observation})
        out.append(messages)
    env.close()
    return out


def train_tokenizer(
    conversations: Sequence[list[dict]], vocabulary: int, max_context: int, phrases: bool = False
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer (any text round-trips) with a ChatML template, trained on the conversations."""
    tok = Tokenizer(models.BPE())
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    lines = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Split("\n", "isolated")]
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.pre_tokenizer = pre_tokenizers.Sequence([*lines, whole]) if phrases else words
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [m["content"] for c in conversations for m in c] + ["system\n", "user\n", "assistant\n"] * 100
    tok.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tok,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=max_context,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=CHATML,
    )


def tokenise(chat: ChatFormat, conversation: list[dict]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids of a demonstrated conversation, exactly as the rollout engine would build them, and the action mask."""
    first = next(i for i, m in enumerate(conversation) if m["role"] == "assistant")
    ids = chat.prompt(conversation[:first])
    mask = [False] * len(ids)
    for i in range(first, len(conversation), 2):
        action = chat.assistant(conversation[i]["content"])
        ids, mask = ids + action, mask + [True] * len(action)
        if i + 1 < len(conversation) - 1:
            context = chat.between(action, conversation[i + 1]["content"])
            ids, mask = ids + context, mask + [False] * len(context)
    return torch.tensor(ids), torch.tensor(mask)


def train_base(
    env_class: type[Env], config: Any, tiny: TinyConfig, max_context: int, tasks: Sequence[Task], out: Path
) -> dict[str, Any]:  # fmt: skip
    """Train the tiny base policy on `tasks` and save model and tokenizer in the folder `out`.

    max_context: the model's, in tokens; demonstrations are cut there.
    Returns the numbers for the manifest: parameters, tokens seen, the loss (nats an action token) of the first and
    last twentieth of the steps.
    """
    talks = demonstrate(env_class, config, tasks, tiny.demonstrations, tiny.seed)
    tokenizer = train_tokenizer(talks, tiny.vocabulary, max_context, tiny.phrases)
    chat = ChatFormat(tokenizer)
    data = [tokenise(chat, c) for c in talks]
    data = [(ids[:max_context], mask[:max_context]) for ids, mask in data]
    torch.manual_seed(tiny.seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=tiny.hidden,
            intermediate_size=3 * tiny.hidden,
            num_hidden_layers=tiny.layers,
            num_attention_heads=tiny.heads,
            num_key_value_heads=tiny.heads,
            head_dim=tiny.hidden // tiny.heads,
            max_position_embeddings=max_context,
            tie_word_embeddings=True,
            initializer_range=0.5 * tiny.hidden**-0.5,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    steps = max(1, tiny.epochs * len(data) // tiny.batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=tiny.lr, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, tiny.lr, total_steps=steps, pct_start=0.1)
    rng = np.random.default_rng(tiny.seed)
    order = np.concatenate([rng.permutation(len(data)) for _ in range(tiny.epochs + 1)])
    losses, tokens = [], 0
    for step in range(steps):
        batch = [data[i] for i in order[step * tiny.batch : (step + 1) * tiny.batch]]
        logps, _ = score(model, [ids for ids, _ in batch], [mask for _, mask in batch])
        loss = -torch.cat(logps).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        tokens += sum(len(ids) for ids, _ in batch)
    model.eval().save_pretrained(out)
    tokenizer.save_pretrained(out)
    k = max(1, steps // 20)
    return {
        "parameters": model.num_parameters(),
        "tokens": tokens,
        "first_loss": float(np.mean(losses[:k])),
        "last_loss": float(np.mean(losses[-k:])),
    }
