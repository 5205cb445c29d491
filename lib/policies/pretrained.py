"""Pretrained models: where they lie, what identifies them, in which precision they run, and LoRA adapters on them.

An adapter is used merged into its model: in evaluation for good, in training for the rollouts of an update, since a
merged model decodes faster. In bfloat16 merging rounds, so training puts the very weights back afterwards.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

_FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.model")  # no other weight formats


def model_folder(name: str, revision: str = "main") -> Path:
    """The local folder of a model: the folder itself, or the snapshot of a hub id, fetched once.

    Raises FileNotFoundError for a folder or a hub id that is not to be had, with what to do.
    """
    if name.startswith(("/", ".", "~")) or Path(name).is_dir():
        folder = Path(name).expanduser().resolve()
        if not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
            raise FileNotFoundError(f"no model in {folder}: it needs config.json (or adapter_config.json) and weights")
        return folder
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise FileNotFoundError(
            f"model {name!r} (revision {revision}): not a local folder, and not to be had from the hub: {error}"
        ) from error


def load_model(path: str | Path, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer from a folder or hub id; a LoRA adapter is merged into the model that it names.

    Raises FileNotFoundError where an adapter's model is not where it was.
    """
    adapter = Path(path, "adapter_config.json")
    if not adapter.is_file():
        return AutoModelForCausalLM.from_pretrained(path, dtype=dtype), AutoTokenizer.from_pretrained(path)
    base = json.loads(adapter.read_text("utf-8"))["base_model_name_or_path"]
    model = AutoModelForCausalLM.from_pretrained(model_folder(base), dtype=dtype)
    return PeftModel.from_pretrained(model, path).merge_and_unload(), AutoTokenizer.from_pretrained(path)


def choose_device(device: str) -> str:
    """ "auto" resolved. Raises ValueError for "cuda" where there is none."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda': no CUDA GPU is visible here; use device='cpu' or 'auto'")
    if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
        return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"  # torchrun starts a process for each GPU
    return "cpu"


@lru_cache(maxsize=4)
def choose_dtype(dtype: str, device: str) -> torch.dtype:
    """ "auto" resolved: bfloat16 where a matrix product is at least 1.5 times as fast with it as with float32 here."""
    if dtype != "auto":
        return getattr(torch, dtype)
    seconds = {}
    for kind in (torch.float32, torch.bfloat16):
        a, b = (torch.randn(1024, 1024, dtype=kind, device=device) for _ in range(2))
        times = []
        for _ in range(4):
            start = time.perf_counter()
            (a @ b).sum().item()
            times.append(time.perf_counter() - start)
        seconds[kind] = min(times)
    return torch.bfloat16 if seconds[torch.float32] > 1.5 * seconds[torch.bfloat16] else torch.float32


@contextmanager
def merged(model: torch.nn.Module) -> Iterator[None]:
    """Within it the LoRA adapters of `model` are merged into its weights; after it the weights are the very same as
    before. Nothing happens to a model without adapters."""
    layers = [m for m in model.modules() if isinstance(m, LoraLayer)] if isinstance(model, PeftModel) else []
    kept = [m.get_base_layer().weight.detach().clone() for m in layers]
    try:
        with torch.no_grad():
            for m in layers:
                m.merge()
        yield
    finally:
        with torch.no_grad():
            for m, weight in zip(layers, kept, strict=True):
                m.unmerge()
                m.get_base_layer().weight.copy_(weight)


def autocast(model: torch.nn.Module) -> AbstractContextManager:
    """Mixed precision for a model in bfloat16, whose adapters are in float32: learning rates of 1e-5 would be rounded
    away in bfloat16, and float32 products are slow. Nothing for a model in float32."""
    embedding = model.get_input_embeddings().weight
    return torch.autocast(embedding.device.type, torch.bfloat16, enabled=embedding.dtype == torch.bfloat16)
