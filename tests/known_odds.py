"""Policies whose probabilities are known in closed form, and episodes played from a script."""

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from lib.envs.base import Task
from lib.envs.frozenlake import ACTIONS, FrozenLake, FrozenLakeConfig
from lib.episode import End, Episode, Turn
from lib.policies.hf import HFPolicy
from lib.policies.tiny import train_tokenizer

TOKENIZER = train_tokenizer([[{"content": w}] for w in ACTIONS] * 50, 300, 512)  # each action word is one token
END = "<|im_end|>"


def random_policy(seed=0, head_dim=8, **kwargs):
    """A Qwen3 with random weights, whose probabilities depend on everything before."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(TOKENIZER), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=head_dim, max_position_embeddings=512, tie_word_embeddings=True,
        initializer_range=0.5, eos_token_id=TOKENIZER.eos_token_id, pad_token_id=TOKENIZER.pad_token_id,
    )  # fmt: skip
    return HFPolicy(Qwen3ForCausalLM(config).eval(), TOKENIZER, max_context=512, **kwargs)


def odds_policy(odds, **kwargs):
    """The next token is word w (or END) with probability odds[w], whatever stood before: the head is a bias."""
    policy = random_policy(**kwargs)
    head = torch.nn.Linear(16, len(TOKENIZER))
    bias = torch.full((len(TOKENIZER),), -1e4)
    for word, p in odds.items():
        token = TOKENIZER.eos_token_id if word == END else policy.chat.assistant(word)[0]
        bias[token] = float(np.log(p)) if p else -1e4
    head.weight.data.zero_()
    head.bias.data.copy_(bias)
    policy.model.config.tie_word_embeddings = False
    policy.model.lm_head = head
    return policy


def lake(*desc, success_rate=1.0, max_turns=3):
    """A config and two tasks (the least for an interval) of one map."""
    config = FrozenLakeConfig(size=len(desc), success_rate=success_rate, max_turns=max_turns, observation="local")
    return config, [Task(f"lake-{i}", {"desc": list(desc)}) for i in range(2)]


def scripted(policy, config, task, words, sample=0):
    """The episode in which these words are played, token by token as the rollout engine would build it."""
    env, turns = FrozenLake(config), []
    context = policy.chat.prompt(env.reset(task, seed=sample))
    for word in words:
        action = policy.chat.assistant(word)
        quality, state, key = env.step_quality(word), env.snapshot(), repr(env.state_key())
        step = env.step(word)
        logp = [-1.0] * len(action)
        turns.append(Turn(context, action, logp, word, step.reward, step.info["invalid"], quality, key, state))
        context = policy.chat.between(action, step.observation)
        if step.done:
            break
    end = End.SOLVED if step.info["solved"] else End.FAILED if step.done else End.BUDGET
    return Episode("frozenlake", task.id, sample, sample, config.max_turns, turns, end, sum(t.reward for t in turns))
