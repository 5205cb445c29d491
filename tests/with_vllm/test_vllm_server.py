"""A real vLLM server on this machine plays episodes; on CPU it cannot be given new weights, and says so."""

import os
import socket
import subprocess
import sys

import pytest
import torch
from test_rollout import check_teacher_forcing, tokens

from lib.envs.frozenlake import FrozenLake
from lib.policies.config import PolicyConfig
from lib.rollout import jobs, rollout


@pytest.fixture(scope="module")
def server(loaded, tmp_path_factory):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = os.environ | {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    env.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)  # of the engine in this process
    log = open(tmp_path_factory.mktemp("serve") / "log", "w")
    # not `vllm serve`: the command asks for a distribution named vllm, and that of a CPU is named vllm-cpu
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", loaded.model.config._name_or_path,
        "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager", "--max-model-len", "512",
        "--logprobs-mode", "processed_logprobs", "--weight-transfer-config", '{"backend": "nccl"}',
    ]  # fmt: skip
    process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(60)
    print(open(log.name).read()[-4000:])


def test_a_server_plays_and_refuses_new_weights_without_gpus(server, loaded, lake, perturb):
    folder = loaded.model.config._name_or_path
    policy = PolicyConfig(engine="vllm", server=server, max_context=512, max_action_tokens=6).load(folder)
    todo = jobs(lake.tasks, 2, 6)
    episodes = rollout(policy, FrozenLake, lake.config, todo)
    check_teacher_forcing(policy.model, episodes)
    assert [tokens(e) for e in rollout(policy, FrozenLake, lake.config, todo)] == [tokens(e) for e in episodes]
    if not torch.cuda.is_available():
        perturb(policy.model)
        with pytest.raises(NotImplementedError, match="over NCCL, which needs GPUs"):
            rollout(policy, FrozenLake, lake.config, todo)
