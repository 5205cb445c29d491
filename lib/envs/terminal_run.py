"""Where a Terminal-Bench episode runs: `Bwrap` (lib/envs/terminal_sandbox.py) or `Docker` (through its command line).

A provider holds one episode: `open(data)` (a task's data, see lib/envs/terminal_tasks.py), `run(command)`, `verify()`
-> (reward or None, the tests' output), `solve()` (the reference solution), `save()` and `load(data, blob)`, `digest()`,
`close()`. Docker's part is not covered by the tests beyond its command lines.
A test that runs the agent's programs gives them the rights of the test, here as in Harbor.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import secrets
import shlex
import shutil
import struct
import subprocess
import tarfile
import zlib
from collections import OrderedDict
from functools import lru_cache
from typing import Any

from lib.envs.terminal_sandbox import EPOCH, Limits, Ran, sandboxed, watch
from lib.envs.terminal_tasks import archive
from lib.sandbox import SandboxUnavailable

_KEPT, _LONGEST = 20_000, 1 << 16  # results remembered, bytes of files and output of one that is
_seen: OrderedDict[bytes, tuple[Ran, bytes]] = OrderedDict()


@lru_cache(maxsize=4096)
def content_digest(packed: bytes) -> str:
    """SHA-256 of names, kinds, modes, links and contents of a compressed tar archive; dates and owners left out."""
    h = hashlib.sha256()
    with tarfile.open(fileobj=io.BytesIO(zlib.decompress(packed))) as tar:
        for m in tar:
            h.update(repr((m.name, m.type, m.mode, m.linkname, m.size)).encode("utf-8", "surrogateescape"))
            if m.isreg():
                h.update(tar.extractfile(m).read())
    return h.hexdigest()


def read_reward(text: str) -> float | None:
    """The number in the verifier's reward.txt; None where there is none in [0, 1]."""
    try:
        reward = float(text.strip())
    except ValueError:
        return None
    return reward if math.isfinite(reward) and 0 <= reward <= 1 else None


def _once(packed: bytes, command: str, seconds: float, limits: Limits, **more: Any) -> tuple[Ran, bytes]:
    """`sandboxed` on compressed files, remembered where no limit was met: the same command on the same files gives the
    same for the life of this process, even where it asks for the time. One thread at a time."""
    key = hashlib.sha256(repr((packed, command, seconds, limits, more)).encode("utf-8", "surrogateescape")).digest()
    if key in _seen:
        _seen.move_to_end(key)
        return _seen[key]
    ran, saved = sandboxed(zlib.decompress(packed), command, seconds, limits, **more)
    result = ran, zlib.compress(saved, 1)
    if not ran.note and len(result[1]) + len(ran.stdout) + len(ran.stderr) < _LONGEST:
        _seen[key] = result
        if len(_seen) > _KEPT:
            _seen.popitem(last=False)
    return result


class Bwrap:
    """An episode in bubblewrap. Its whole state is `_files` (compressed tar) and the number of changes so far."""

    def __init__(self, limits: Limits):
        self.limits = limits

    def open(self, data: dict[str, Any]) -> None:
        """Lay out the task's files and run its setup commands. Raises ValueError where the task cannot run so."""
        if data["needs"]:
            raise ValueError(f"this task cannot run under bwrap: {'; '.join(data['needs'])}. Use provider='docker'")
        self._data, self._changes = data, -1  # so that what the setup changes is dated EPOCH
        self._files = zlib.compress(archive(data["files"]), 1)
        setup = ["set -e", f"mkdir -p {shlex.quote(data['workdir'])}", *data["setup"]]
        ran = self._step("\n".join(setup), self.limits.verify_s)
        if ran.code or ran.undone:
            raise ValueError(f"the task's setup fails with exit {ran.code} {ran.note}: {ran.stderr[-300:]}")
        self._changes = 0

    def run(self, command: str) -> Ran:
        """Run one command of the agent within its limits."""
        return self._step(command, self.limits.command_s)

    def _step(self, command: str, seconds: float, **more: Any) -> Ran:
        stamp = EPOCH + 60 * (self._changes + 1)
        ran, files = _once(
            self._files, command, seconds, self.limits, workdir=self._data["workdir"], stamp=stamp, **more
        )
        if not ran.undone and files != self._files:
            self._files, self._changes = files, self._changes + 1
        return ran

    def solve(self) -> Ran:
        """Run the reference solution."""
        extra = archive(self._data["solution"])
        return self._step("bash /solution/solve.sh", self.limits.verify_s, extra=extra, tops=("solution",))

    def verify(self) -> tuple[float | None, str]:
        """Run the tests on a copy of the files. The reward is None where they wrote none (they were killed, say)."""
        extra = archive(self._data["tests"] | {"logs/verifier/": [0o755, ""]})
        seconds = min(self.limits.verify_s, self._data["verify_s"])
        ran, reward = _once(self._files, "bash /tests/test.sh", seconds, self.limits, workdir=self._data["workdir"],
                            stamp=EPOCH, extra=extra, tops=("tests", "logs"), want="reward")  # fmt: skip
        text = zlib.decompress(reward).decode("utf-8", "replace")
        return read_reward(text), "\n".join(filter(None, (ran.note, ran.stdout, ran.stderr)))

    def save(self) -> bytes:
        """The state as bytes: the number of changes and all files."""
        return struct.pack("<I", self._changes) + self._files

    def load(self, data: dict[str, Any], blob: bytes) -> None:
        """Go back to a state that `save` gave."""
        self._data, self._changes, self._files = data, *struct.unpack_from("<I", blob), blob[4:]

    def digest(self) -> str:
        """A hash of the files: equal states have equal ones."""
        return content_digest(self._files)

    def close(self) -> None:
        """Nothing runs between two commands."""


class Docker:
    """An episode in a container of the task's image: one `docker exec` a command, so that it keeps all it changed.

    `save` holds the working folder only: `load` starts a fresh container and puts it there. The container has a network
    where the task's task.toml allows one, as Harbor does it. Raises SandboxUnavailable without docker or its daemon.
    """

    def __init__(self, limits: Limits):
        self.limits, self._name = limits, ""

    @staticmethod
    def check() -> None:
        """Raise SandboxUnavailable where docker or its daemon does not answer."""
        if shutil.which("docker") is None:
            raise SandboxUnavailable("provider='docker' needs the docker command: install Docker, or use 'bwrap'")
        found = subprocess.run(["docker", "version"], capture_output=True, text=True)
        if found.returncode:
            reason = (found.stderr.strip().splitlines() or ["no answer"])[-1]
            raise SandboxUnavailable(
                f"provider='docker': the daemon does not answer ({reason}): start it, or use 'bwrap'"
            )

    def start_command(self, data: dict[str, Any], name: str) -> list[str]:
        """`docker run …` for a container of the task. Raises ValueError where the task names no image."""
        if not data["image"]:
            raise ValueError(
                "the task names no docker_image in task.toml: build its environment and name the image there"
            )
        memory = f"{max(data['memory_mb'], 256)}m"
        return ["docker", "run", "--detach", "--rm", "--init", "--name", name, "--network",
                "bridge" if data["network"] else "none", "--memory", memory, "--memory-swap", memory, "--cpus",
                str(data["cpus"]), "--pids-limit", str(max(self.limits.processes, 512)), "--security-opt",
                "no-new-privileges", data["image"], "sleep", "infinity"]  # fmt: skip

    def exec_command(self, command: str, seconds: float, workdir: str) -> list[str]:
        """`docker exec …` for one command; `timeout` ends it inside, where killing the client would not."""
        return ["docker", "exec", "--workdir", workdir, self._name, "timeout", "-s", "KILL", str(seconds), "bash", "-c",
                command]  # fmt: skip

    def open(self, data: dict[str, Any]) -> None:
        """Start a container of the task's image; an earlier one is removed."""
        self.check()
        self.close()
        name = f"terminal-{secrets.token_hex(6)}"
        self._call(self.start_command(data, name))
        self._data, self._name = data, name

    def run(self, command: str) -> Ran:
        """Run one command of the agent in the container."""
        return self._exec(command, self.limits.command_s)

    def solve(self) -> Ran:
        """Run the reference solution in the container."""
        self._put(archive(self._data["solution"]))
        return self._exec("bash /solution/solve.sh", self.limits.verify_s)

    def verify(self) -> tuple[float | None, str]:
        """Run the tests in the container. The reward is None where they wrote none."""
        self._put(archive(self._data["tests"] | {"logs/verifier/": [0o755, ""]}))
        ran = self._exec("bash /tests/test.sh", self._data["verify_s"])
        reward = self._exec("head -c 100 /logs/verifier/reward.txt", self.limits.command_s)
        return read_reward(reward.stdout), "\n".join(filter(None, (ran.note, ran.stdout, ran.stderr)))

    def save(self) -> bytes:
        """The working folder as bytes."""
        command = ["docker", "exec", self._name, "tar", "-C", "/", "-cf", "-", self._data["workdir"].strip("/") or "."]
        return zlib.compress(self._call(command), 1)

    def load(self, data: dict[str, Any], blob: bytes) -> None:
        """A fresh container with the working folder that `save` gave."""
        self.open(data)
        self._call(["docker", "exec", self._name, "find", data["workdir"], "-mindepth", "1", "-delete"])
        self._put(zlib.decompress(blob))

    def digest(self) -> str:
        """A hash of the working folder."""
        return content_digest(self.save())

    def close(self) -> None:
        """Remove the container."""
        if self._name:
            subprocess.run(["docker", "rm", "--force", self._name], capture_output=True)
            self._name = ""

    def _put(self, files: bytes) -> None:
        self._call(["docker", "exec", "--interactive", self._name, "tar", "-C", "/", "-xpf", "-"], files)

    def _exec(self, command: str, seconds: float) -> Ran:
        pipes = [os.pipe(), os.pipe()]
        argv = self.exec_command(command, seconds, self._data["workdir"])
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipes[0][1], stderr=pipes[1][1])
        for _, end in pipes:
            os.close(end)
        outputs, note = watch(process, [r for r, _ in pipes], seconds, self.limits.output_kb << 10, lambda: "")
        if note:
            process.kill()
        code = process.wait()
        texts = [o[: self.limits.output_kb << 10].decode("utf-8", "replace") for o in outputs]
        return Ran(code % 256, *texts, note="time limit exceeded" if note or code == 137 else "")

    @staticmethod
    def _call(command: list[str], given: bytes = b"") -> bytes:
        done = subprocess.run(command, input=given, capture_output=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)[:200]}: {done.stderr.decode('utf-8', 'replace').strip()[-300:]}")
        return done.stdout


PROVIDERS = {"bwrap": Bwrap, "docker": Docker}
