"""Shared fixtures: a small FrozenLake and a policy trained on a few demonstrations of it. torch is imported only in the
fixtures that need it, so that the tests of light modules stay light."""

from types import SimpleNamespace

import pytest

from lib.envs.frozenlake import FrozenLake, FrozenLakeConfig


@pytest.fixture(scope="session")
def lake():
    """A 3x3 lake: `config`, 8 training tasks `tasks`, 2 validation tasks `probe`."""
    config = FrozenLakeConfig(size=3, max_turns=6, observation="local")
    tasks, probe = FrozenLake.tasks(config, "train", 8), FrozenLake.tasks(config, "valid", 2)
    return SimpleNamespace(config=config, tasks=tasks, probe=probe)


@pytest.fixture(scope="session")
def base(lake, tmp_path_factory):
    """A tiny base policy that knows a little: `folder`, and `numbers` that its training returned."""
    from lib.policies.config import TinyConfig
    from lib.policies.tiny import train_base

    folder = tmp_path_factory.mktemp("base") / "model"
    tiny = TinyConfig(hidden=32, layers=2, heads=2, vocabulary=384, demonstrations=240)
    return SimpleNamespace(
        folder=folder, tiny=tiny, numbers=train_base(FrozenLake, lake.config, tiny, 512, lake.tasks, folder)
    )


@pytest.fixture
def policy(base):
    """The base policy, loaded afresh: a test may train it."""
    from lib.policies.hf import HFPolicy

    return HFPolicy.load(base.folder, max_context=512)
