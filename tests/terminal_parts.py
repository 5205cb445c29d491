"""What the tests of the terminal share: a task written by hand, and an episode of it."""

from lib.envs.base import Task
from lib.envs.terminal import Terminal, TerminalConfig
from lib.envs.terminal_sandbox import Limits

TEST = '#!/bin/bash\nr=0; [ "$(cat /app/out)" = yes ] && r=1\necho $r > /logs/verifier/reward.txt\n'


def by_hand(test=TEST, **changes):
    data = dict(
        instruction="write yes to out", workdir="/app", setup=[], needs=[], image="", network=False, memory_mb=2048,
        cpus=1, verify_s=20.0, files={"app/a.txt": [0o644, "one\ntwo\n"], "app/run.sh": [0o755, "echo ran\n"]},
        tests={"tests/test.sh": [0o755, test]}, solution={"solution/solve.sh": [0o755, "echo yes > out\n"]},
    )  # fmt: skip
    return Task("by-hand", data | changes)


def start(task=None, limits=None, **config):
    env = Terminal(TerminalConfig(limits=limits or Limits(command_s=20.0), **config))
    env.reset(task or by_hand(), 0)
    return env
