"""The two places where vLLM runs: in this process, or as a `vllm serve`. lib/policies/vllm.py uses them.

Both take requests for one action (`start`: a key, the tokens so far, sampling parameters), wait for those that are done
(`finished`: key, tokens, log-probabilities; [] when none is in flight) and take weights (`push`). max_context: tokens a
request may have. can_sync: whether they can be given other weights. proved: whether that was tested.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from lib.policies.vllm import VLLMPolicy

SERVE = (
    "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs "
    """--weight-transfer-config '{"backend": "nccl"}'"""
)


class Colocated:
    """vLLM in this process, sharing its device. It takes a step whenever somebody waits for an action."""

    can_sync = True

    def __init__(self, policy: VLLMPolicy, memory: float):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine is stepped, and given weights, here
        for name, value in (("VLLM_NO_USAGE_STATS", "1"), ("VLLM_LOGGING_LEVEL", "ERROR")):
            os.environ.setdefault(name, value)
        from vllm import LLM, SamplingParams
        from vllm.platforms import current_platform
        from vllm.sampling_params import RequestOutputKind

        more: dict[str, Any] = {}
        if current_platform.is_cpu():
            _keep_cpu_weights_plain()
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
            more = {"enforce_eager": True, "block_size": 32}  # of the prefix cache; 128 is more than many a turn
        self.session, self.proved, self.asked, self.count = None, False, {}, 0
        self.max_context = policy.max_context
        self.params = partial(SamplingParams, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
        self.llm = LLM(
            model=policy.model.config._name_or_path,
            skip_tokenizer_init=True,
            dtype=str(policy.model.dtype).removeprefix("torch."),
            max_model_len=self.max_context,
            gpu_memory_utilization=memory,
            logprobs_mode="processed_logprobs",  # at the temperature of sampling
            enable_prefix_caching=True,
            seed=0,
            **more,
        )

    def start(self, key: int, tokens: list[int], sampling: dict[str, Any]) -> None:
        name, self.count = str(self.count), self.count + 1
        self.asked[name] = key
        self.llm.llm_engine.add_request(name, {"prompt_token_ids": list(tokens)}, self.params(**sampling))

    def finished(self) -> list[tuple[int, list[int], list[float]]]:
        while self.asked:
            done = [o for o in self.llm.llm_engine.step() if o.finished]
            if done:
                return [self._action(o) for o in done]
        return []

    def _action(self, output: Any) -> tuple[int, list[int], list[float]]:
        (answer,) = output.outputs
        tokens = list(answer.token_ids)
        logps = [p[t].logprob for t, p in zip(tokens, answer.logprobs, strict=True)]
        return self.asked.pop(output.request_id), tokens, logps

    def cancel(self) -> None:
        self.llm.llm_engine.abort_request(list(self.asked))
        self.asked.clear()

    def push(self, model: torch.nn.Module) -> None:
        self.llm.apply_model(lambda inner: inner.load_weights(weights(model)) and None)
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM could not drop its prefix cache, which old weights have filled")


class Server:
    """A running `vllm serve`, through TRL's client: a request a turn, up to 64 at once.

    Weights go over NCCL, so training needs GPUs. On CPU a server can play the model that it was started with.
    Raises ConnectionError where there is no server, ValueError for one started with other settings.
    """

    def __init__(self, url: str, policy: VLLMPolicy):
        from trl.generation.vllm_client import VLLMClient

        self.client = VLLMClient(base_url=url, connection_timeout=60)
        served = self.client.get_server_info()["model_config"]
        if served["logprobs_mode"] != "processed_logprobs":
            raise ValueError(f"{url} has --logprobs-mode {served['logprobs_mode']}; start it with: {SERVE}")
        self.session, self.proved, self.max_context = None, False, served["max_model_len"]
        self.pool = ThreadPoolExecutor(max_workers=64)
        self.asked: dict[Future, int] = {}
        self.can_sync = policy.model.device.type == "cuda"
        self.served = _fingerprint(policy.model)

    def start(self, key: int, tokens: list[int], sampling: dict[str, Any]) -> None:
        self.asked[self.pool.submit(self.client.generate, [list(tokens)], generation_kwargs=sampling)] = key

    def finished(self) -> list[tuple[int, list[int], list[float]]]:
        done = wait(self.asked, return_when=FIRST_COMPLETED).done if self.asked else ()
        found = [(self.asked.pop(f), f.result()) for f in done]
        return [(key, out["completion_ids"][0], [p[0] for p in out["logprobs"][0]]) for key, out in found]

    def cancel(self) -> None:
        for f in self.asked:
            f.cancel()
        wait(self.asked)
        self.asked.clear()

    def push(self, model: torch.nn.Module) -> None:
        if not self.can_sync:
            if _fingerprint(model) != self.served:
                raise NotImplementedError(
                    "a vLLM server gets new weights over NCCL, which needs GPUs: train with vLLM in this process "
                    "(server='') or with engine='hf'"
                )
            return
        if self.client.communicator is None:
            self.client.init_communicator(device=model.device)
        about = [(name, str(p.dtype).removeprefix("torch."), list(p.shape)) for name, p in weights(model)]
        self.client.update_named_params(about, weights(model))
        self.client.reset_prefix_cache()


@torch.no_grad()
def weights(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The model's parameters under their names in a checkpoint, LoRA merged, nothing else (no critic).

    Merging makes new tensors: merged in place and taken out again, frozen weights would drift by rounding.
    """
    base = getattr(model, "get_base_model", lambda: model)()
    for part in ("model", "lm_head"):
        for name, p in getattr(base, part).named_parameters(prefix=part):
            owner, lora, rest = name.partition(".base_layer.")
            layer = base.get_submodule(owner) if lora else None
            if rest == "weight" and not (layer.merged or layer.disable_adapters):
                p = p + sum(layer.get_delta_weight(a) for a in layer.active_adapters)
            if ".lora_" not in name:
                yield f"{owner}.{rest}" if lora else name, p.detach()


def _fingerprint(model: torch.nn.Module) -> float:
    return sum(p.double().sum().item() for _, p in weights(model))


def _keep_cpu_weights_plain() -> None:
    """vLLM repacks linear weights for its CPU kernels when it loads a model, and a sync does not reach the copies."""
    from vllm.model_executor.layers import utils

    def dispatch(layer, *args, **kwargs):
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = dispatch
