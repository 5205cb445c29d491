"""The tiny base policy: an ordinary Hugging Face folder, trained on exactly the demonstrated actions."""

import json
from dataclasses import replace
from functools import cache
from itertools import groupby

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from lib.envs.frozenlake import ACTIONS, FrozenLake
from lib.policies.chat import ChatFormat
from lib.policies.config import TinyConfig
from lib.policies.tiny import demonstrate, tokenise, train_base, train_tokenizer


def test_the_folder_loads_with_the_auto_classes_and_the_loss_fell(base):
    model, tok = AutoModelForCausalLM.from_pretrained(base.folder), AutoTokenizer.from_pretrained(base.folder)
    assert model.config.model_type == "qwen3" and json.loads((base.folder / "config.json").read_text())
    assert model.num_parameters() == base.numbers["parameters"]
    assert model.config.eos_token_id == tok.eos_token_id == tok.convert_tokens_to_ids("<|im_end|>")
    assert model.config.vocab_size == len(tok) <= base.tiny.vocabulary
    assert base.numbers["first_loss"] == pytest.approx(np.log(len(tok)), abs=0.5)  # it starts from nothing
    assert base.numbers["last_loss"] < 0.6 * base.numbers["first_loss"]


@cache
def small_tokenizer():
    talk = [{"role": "user", "content": "P 1 1 G 3 3\n_ O # G Left Right"}]
    return train_tokenizer([talk] * 5, 300, 128)


@cache
def phrase_tokenizer():
    return train_tokenizer([[{"role": "user", "content": "x=sorted(x)\n12 345"}] * 20], 400, 128, phrases=True)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40))
def test_any_text_round_trips_with_tokens_across_words(text):
    tok = phrase_tokenizer()
    assert tok.decode(tok.encode(text, add_special_tokens=False)) == text


def test_a_frequent_line_is_one_token_and_digits_stay_single():
    assert len(phrase_tokenizer().encode("x=sorted(x)")) == 1 < len(small_tokenizer().encode("x=sorted(x)"))
    assert len(phrase_tokenizer().encode("12345")) == 5


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=40))
def test_any_text_round_trips(text):
    tok = small_tokenizer()
    assert tok.decode(tok.encode(text, add_special_tokens=False)) == text


def test_the_saved_tokenizer_is_the_one_trained_with(base, lake):
    tok = AutoTokenizer.from_pretrained(base.folder)
    again = train_tokenizer(demonstrate(FrozenLake, lake.config, lake.tasks, 240, 0), 384, 512)
    for text in ("Left", " P 1 1 G 3 3\n_ O # G", "<|im_start|>user\nüß…  \n<|im_end|>"):
        assert tok.encode(text) == again.encode(text) and tok.decode(tok.encode(text)) == text


def test_demonstrations_are_conversations_of_mixed_quality(lake):
    talks = demonstrate(FrozenLake, lake.config, lake.tasks, 60, seed=3)
    assert talks == demonstrate(FrozenLake, lake.config, lake.tasks, 60, seed=3)
    assert talks != demonstrate(FrozenLake, lake.config, lake.tasks, 60, seed=4)
    for talk in talks:
        roles = [m["role"] for m in talk[1:]]
        assert talk[0]["role"] == "system" and roles == [("user", "assistant")[i % 2] for i in range(len(roles))]
        assert 1 <= roles.count("assistant") <= 6
        assert all(m["content"] in ACTIONS for m in talk if m["role"] == "assistant")


def test_the_mask_covers_exactly_the_demonstrated_actions(lake):
    talks = demonstrate(FrozenLake, lake.config, lake.tasks, 30, seed=0)
    tok = train_tokenizer(talks, 320, 512)
    for talk in talks:
        ids, mask = tokenise(ChatFormat(tok), talk)
        assert len(ids) == len(mask) and not mask[0]
        runs = [
            (m, tok.decode(ids[[i for i, _ in run]])) for m, run in groupby(enumerate(mask.tolist()), lambda x: x[1])
        ]
        actions = [m["content"] for m in talk if m["role"] == "assistant"]
        assert [text for m, text in runs if m] == [a + "<|im_end|>" for a in actions]
        played = talk if talk[-1]["role"] == "assistant" else talk[:-1]  # what follows the last action is not learned
        whole = tok.apply_chat_template(played, tokenize=False)
        assert "".join(text for _, text in runs) == whole.removesuffix("\n")


def test_the_same_seed_gives_the_same_weights(lake, tmp_path):
    tiny = TinyConfig(hidden=16, layers=1, heads=2, vocabulary=300, demonstrations=24, batch=4)
    weights = []
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        torch.manual_seed(len(name))
        train_base(FrozenLake, lake.config, replace(tiny, seed=seed), 256, lake.tasks, tmp_path / name)
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


def test_bad_shapes_are_refused():
    with pytest.raises(ValueError, match="hidden 10 must be a multiple"):
        TinyConfig(hidden=10, heads=4)
    with pytest.raises(ValueError, match="vocabulary 100: at least 259"):
        TinyConfig(vocabulary=100)
