"""Pretrained models: found or refused, LoRA merged for rollouts and taken out without a trace, chat formats."""

from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from lib import stages
from lib.config import EvalConfig, Experiment
from lib.envs.frozenlake import FrozenLakeConfig
from lib.policies.chat import ChatFormat
from lib.policies.config import PolicyConfig
from lib.policies.hf import HFPolicy, score
from lib.policies.pretrained import autocast, choose_device, choose_dtype, merged, model_folder
from lib.policies.tiny import CHATML, train_tokenizer
from lib.store import read_jsonl
from lib.trainers.config import TrainConfig

TALK = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "Left Right Up Down"}]
QWEN3 = CHATML.replace(
    "<|im_start|>assistant\n' }}{% endif %}",
    "<|im_start|>assistant\n' }}{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}",
)


def tokenizer(template=CHATML, stop="<|im_end|>", eos="<|im_end|>") -> PreTrainedTokenizerFast:
    made = train_tokenizer([TALK] * 3, 300, 512)
    made.add_special_tokens({"additional_special_tokens": [stop], "eos_token": eos})
    made.chat_template = template.replace("<|im_end|>", stop)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small random Qwen3 in a folder, as a user would have one."""
    out, tok = tmp_path_factory.mktemp("model"), tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tok), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, tie_word_embeddings=True, eos_token_id=tok.eos_token_id,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(out)
    tok.save_pretrained(out)
    return out


def adapted(folder, dtype=torch.float32):
    """The model with a LoRA adapter that changes it."""
    model = HFPolicy.load(folder, dtype=str(dtype).removeprefix("torch.")).model
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(std=0.05)
    return model


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.arange(20)[None] % 250).logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merging_for_a_rollout_leaves_no_trace(folder, dtype):
    model = adapted(folder, dtype)
    weights = {n: p.detach().clone() for n, p in model.named_parameters()}
    before = logits(model)
    with merged(model):
        inside = logits(model)
        assert not all(torch.equal(p, weights[n]) for n, p in model.named_parameters())
    assert all(torch.equal(p, weights[n]) for n, p in model.named_parameters())
    assert torch.equal(logits(model), before)
    assert torch.allclose(inside, before, atol=1e-5 if dtype == torch.float32 else 0.05)
    with pytest.raises(RuntimeError, match="rollout broke"), merged(model):
        raise RuntimeError("rollout broke")
    assert torch.equal(logits(model), before)


def test_an_adapter_folder_is_loaded_merged(folder, tmp_path):
    model = adapted(folder)
    model.save_pretrained(tmp_path / "adapter")
    tokenizer().save_pretrained(tmp_path / "adapter")
    policy = HFPolicy.load(tmp_path / "adapter")
    assert torch.allclose(logits(policy.model), logits(model), atol=1e-5)
    assert type(policy.model) is Qwen3ForCausalLM


def test_what_is_not_there_is_refused(folder, tmp_path):
    assert model_folder(str(folder)) == folder
    with pytest.raises(FileNotFoundError, match="no model in .*: it needs config.json"):
        model_folder(str(tmp_path))
    with pytest.raises(ValueError, match="dtype 'float16': it must be one of float32, bfloat16, auto"):
        PolicyConfig(dtype="float16")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no CUDA GPU is visible"):
            choose_device("cuda")
    assert choose_device("auto") in ("cpu", "cuda") and choose_dtype("auto", "cpu") in (torch.float32, torch.bfloat16)


def test_bfloat16_is_scored_in_mixed_precision(folder):
    rows, masks = [torch.arange(30) % 250], [torch.arange(30) > 5]
    exact, _ = score(HFPolicy.load(folder).model, rows, masks)
    model = HFPolicy.load(folder, dtype="bfloat16").model
    with torch.no_grad(), autocast(model):
        rough, _ = score(model, rows, masks)
    assert rough[0].dtype == torch.float32 and torch.allclose(rough[0], exact[0], atol=0.1)


def test_a_turn_closed_by_another_token_than_end_of_sequence():
    chat = ChatFormat(tokenizer(stop="<end_of_turn>", eos="<|endoftext|>"))
    tok = chat.tokenizer
    assert chat.stop_ids == tuple(tok.convert_tokens_to_ids(["<end_of_turn>", "<|endoftext|>"]))
    action = chat.assistant("Left")
    assert tok.decode(action) == "Left<end_of_turn>" and chat.text(action) == "Left"
    text = tok.decode(action + chat.between(action, "Up"))
    assert text == "Left<end_of_turn>\n<|im_start|>user\nUp<end_of_turn>\n<|im_start|>assistant\n"


def test_a_template_without_system_messages_gets_the_rules_with_the_request():
    refuses = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML
    chat = ChatFormat(tokenizer(refuses))
    text = chat.tokenizer.decode(chat.prompt(TALK))
    assert text.startswith("<|im_start|>user\nRules.\n\nLeft Right Up Down<|im_end|>")
    assert chat.tokenizer.decode(ChatFormat(tokenizer()).prompt(TALK)).startswith(
        "<|im_start|>system\nRules.<|im_end|>"
    )


@pytest.mark.parametrize(
    ("said", "read"),
    [("<think>Up? No.</think>\n\nLeft", "Left"), ("<think>Up? Down?", ""), ("Left", "Left")],
)
def test_thoughts_are_tokens_but_not_part_of_the_answer(said, read):
    on, off = ChatFormat(tokenizer(QWEN3), thinking=True), ChatFormat(tokenizer(QWEN3))
    action = on.assistant(said)
    assert on.text(action) == read and off.text(action) == said
    assert on.tokenizer.decode(on.prompt(TALK)).endswith("assistant\n")
    assert off.tokenizer.decode(off.prompt(TALK)).endswith("assistant\n<think>\n\n</think>\n\n")
    assert off.tokenizer.decode(off.between(action, "Up")).endswith("assistant\n<think>\n\n</think>\n\n")


def test_the_steps_of_a_pretrained_experiment(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "RUNS", tmp_path)
    x = Experiment(
        profile="mine", env="frozenlake", env_config=FrozenLakeConfig(max_turns=4), model=str(folder),
        policy=PolicyConfig(dtype="bfloat16", max_context=512),
        train=TrainConfig(updates=2, tasks_per_update=2, group_size=2, lr=1e-2, lora_rank=4, probe_every=1,
                          gradient_checkpointing=True),
        evaluation=EvalConfig(tasks=2, samples=2, train_tasks=2, train_samples=1, ks=(1, 2), budget_k=2),
        train_tasks=8, probe_tasks=2, arms=("grpo",),
    )  # fmt: skip
    run = stages.train_step(x, "grpo", 0)
    gaps = [r["logp_gap"] for r in read_jsonl(run / "metrics.jsonl")]
    assert max(gaps) < 0.2  # what was sampled (merged, bfloat16) and what is trained on, nats
    assert (run / "model" / "adapter_config.json").is_file() and not list(run.glob("model/model*.safetensors"))
    assert stages.base_policy(x) == folder
    found = stages.episodes(x, "grpo", 0)
    assert len(found) == 4 and all(e.end.value != "error" for e in found)
    assert stages.surface(x, "grpo", 0, (1, 2), (4,)).shape == (2, 2, 1)
    with pytest.raises(ValueError, match="dtype 'bfloat16' with lora_rank 0"):
        replace(x, train=replace(x.train, lora_rank=0))
