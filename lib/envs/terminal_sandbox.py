"""Running commands of a Terminal-Bench task in bubblewrap, without Docker: no network, no capabilities, bounded.

The files of an episode are a tar archive in memory. A command is a function of it: a fresh sandbox unpacks the archive
into memory file systems at /app, /root and /tmp, runs one `bash -c`, kills what is left and packs the files again. So
nothing survives a command but files, nothing is written on the host's disk, and the host never unpacks what an agent
made. The rest of the sandbox is the host's /usr and the running Python's standard library, read-only.
Files changed by the n-th changing command are dated n minutes after `EPOCH`: archives depend on contents, not on when
they were made. The tests are put into the sandbox of the verifier only.
"""

from __future__ import annotations

import os
import platform
import random
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from lib.envs.terminal_seccomp import deny_filter
from lib.sandbox import SandboxUnavailable
from lib.sandbox.launch import _UIDS, _tree, advice, bwrap_binary

EPOCH = 1735689600  # 2025-01-01 UTC
TOPS = ("app", "root", "tmp")  # folders of the root that are written and kept
PATH = "/opt/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
GRACE_S = 30.0  # for starting, unpacking and packing
ROOT = Path(__file__).resolve().parents[2]

_DRIVER = r"""
set -f; as=($1); SECS=$2 WORK=$3 STAMP=$4 WANT=$5 OWNER=$6 OUT=$7 ERR=$8 STATUS=$9 SAVE=${10}; CMD=${11}
shift 11; ulimit -c 0 -n 256; ulimit -u $1 -v $2 -f $3; shift 3
echo ready >&$STATUS
chown $OWNER "$@" && "${as[@]}" tar -xipf - -C / --no-same-owner || exit 90
cd "$WORK" 2>/dev/null || cd /app
"${as[@]}" timeout -s KILL $SECS bash --noprofile --norc -c "$CMD" 1>&$OUT 2>&$ERR </dev/null \
    {OUT}>&- {ERR}>&- {STATUS}>&- {SAVE}>&-
code=$?; exec {OUT}>&- {ERR}>&-; kill -9 -1 2>/dev/null; cd /
if [ $WANT = files ]; then
  tar -cf - --sort=name --format=gnu --mtime=@$STAMP --clamp-mtime --numeric-owner --owner=0 --group=0 app root tmp \
    >&$SAVE || exit 91
else head -c 100 /logs/verifier/reward.txt >&$SAVE 2>/dev/null; fi
echo $code >&$STATUS
"""


@dataclass(frozen=True)
class Limits:
    """What one command may use. Raises ValueError for a value that is too small.

    command_s, verify_s: seconds of wall time, of a command and of the tests. memory_mb: address space of one process,
    and anonymous memory of all together (looked at every 50 ms). disk_mb: of /app, /root and /tmp each, of a file, and
    of all of them packed. processes: threads too. output_kb: of stdout and of stderr; more ends in a broken pipe.
    """

    command_s: float = 10.0
    verify_s: float = 60.0
    memory_mb: int = 1024
    disk_mb: int = 64
    processes: int = 64
    output_kb: int = 256

    def __post_init__(self):
        lowest = dict(command_s=0.1, verify_s=0.1, memory_mb=64, disk_mb=1, processes=8, output_kb=1)
        for name, low in lowest.items():
            if not getattr(self, name) >= low:
                raise ValueError(f"Limits.{name} is {getattr(self, name)!r}, the least allowed is {low}")


@dataclass(frozen=True)
class Ran:
    """What a command gave. note: the limit that ended it ("" for none); undone: its changes of files are lost."""

    code: int
    stdout: str = ""
    stderr: str = ""
    note: str = ""
    undone: bool = False


@lru_cache(maxsize=1)
def _system() -> list[str]:
    """Bubblewrap's arguments for the read-only part: /usr, its links in /, Python; project and packages are hidden."""
    python, folders, hidden = _tree()
    args, bound = ["--ro-bind", "/usr", "/usr"], ["/usr"]
    for top in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(top):
            args += ["--symlink", os.readlink(top), top]
        elif os.path.isdir(top):
            args, bound = [*args, "--ro-bind", top, top], [*bound, top]
    for path in dict.fromkeys([*folders, python, "/etc/alternatives", "/etc/ld.so.cache"]):
        if os.path.exists(path) and not any(os.path.realpath(path).startswith(b + "/") for b in bound):
            for parent in reversed(Path(path).parents[:-1]):
                args += ["--dir", str(parent)]
            args, bound = [*args, "--ro-bind", path, path], [*bound, path]
    for path in (*hidden, str(ROOT)):
        if any(path.startswith(b + "/") for b in bound):
            args += ["--tmpfs", path, "--remount-ro", path]
    for name in ("python", "python3"):
        args += ["--symlink", python, f"/opt/bin/{name}"]
    return [*args, "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]


def _memory_file(content: bytes = b"") -> int:
    fd = os.memfd_create("terminal")
    with open(fd, "wb", closefd=False) as f:
        f.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _exceeded(pid: int, limits: Limits) -> str:
    """The limit that a process and all its descendants, those in other namespaces too, exceed together, or ""."""
    threads, memory, todo = 0, 0, [pid]
    while todo:
        here = f"/proc/{todo.pop()}"
        try:
            _, resident, shared = map(int, Path(here, "statm").read_text().split()[:3])
            memory += (resident - shared) * resource.getpagesize()
            for task in os.listdir(f"{here}/task"):
                threads += 1
                todo += map(int, Path(here, "task", task, "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    if memory > limits.memory_mb << 20:
        return "memory"
    return "processes" if threads > limits.processes + 16 else ""  # 16: the sandbox's own


def watch(
    process: subprocess.Popen, pipes: list[int], seconds: float, most: int, look: Callable[[], str]
) -> tuple[list[bytes], str]:
    """Read stdout and stderr (`most` bytes of each, then the pipe is closed) until the process ends or meets a limit.

    look: asked every 50 ms which limit is exceeded, "" for none. -> (outputs, the limit); the caller ends the process.
    """
    outputs, note, deadline, looked = [b"", b""], "", time.monotonic() + seconds + GRACE_S, time.monotonic()
    with selectors.DefaultSelector() as waiting:
        done = os.pidfd_open(process.pid)
        waiting.register(done, selectors.EVENT_READ)
        for i, fd in enumerate(pipes):
            waiting.register(fd, selectors.EVENT_READ, i)
        while len(waiting.get_map()) and not note:
            for key, _ in waiting.select(0.05):
                chunk = b"" if key.fd == done else os.read(key.fd, 1 << 16)
                if chunk:
                    outputs[key.data] += chunk
                if not chunk or len(outputs[key.data]) > most:
                    waiting.unregister(key.fd)
                    os.close(key.fd)
            if (now := time.monotonic()) - looked > 0.05:
                looked, note = now, look() or ("time" if now > deadline else "")
        for fd in [k.fd for k in waiting.get_map().values()]:
            os.close(fd)
    return outputs, note


def sandboxed(
    files: bytes, command: str, seconds: float, limits: Limits, *, workdir="/app", stamp=EPOCH, extra: bytes = b"",
    tops: tuple[str, ...] = (), want: str = "files",
) -> tuple[Ran, bytes]:  # fmt: skip
    """Run one command on a tar archive of files. -> (Ran, the archive afterwards, or with want="reward" the first 100
    bytes of /logs/verifier/reward.txt, b"" where there is none)

    extra, tops: a second archive and the folders of the root it fills. Raises SandboxUnavailable where bubblewrap does
    not start.
    """
    binary, root = bwrap_binary(), os.geteuid() == 0
    if sys.platform != "linux" or binary is None:
        raise SandboxUnavailable(f"the terminal's sandbox needs Linux and bubblewrap. Run: {advice()}")
    uid = random.SystemRandom().choice(_UIDS) if root else 1000
    tops = (*TOPS, *tops)
    pipes = [os.pipe(), os.pipe()]
    own = dict(inp=files + extra, status=b"", save=b"", log=b"", bpf=deny_filter(platform.machine()))
    own["names"] = f"root:x:0:0::/root:/bin/bash\nagent:x:{uid}:{uid}::/root:/bin/bash\n".encode()
    own["groups"] = f"root:x:0:\nagent:x:{uid}:\n".encode()
    own = {name: _memory_file(content) for name, content in own.items()}
    caps = "SETUID SETGID SETPCAP KILL CHOWN DAC_READ_SEARCH".split()
    spaces = "--unshare-ipc --unshare-pid --unshare-net --unshare-uts --unshare-cgroup-try".split()
    spaces = spaces if root else ["--unshare-all", "--uid", "1000", "--gid", "1000"]
    args = [binary, *spaces, "--hostname", "terminal", "--as-pid-1", "--die-with-parent", "--cap-drop", "ALL"]
    for cap in caps:
        args += ["--cap-add", f"CAP_{cap}"]
    for name, value in dict(PATH=PATH, HOME="/root", LANG="C.UTF-8", TERM="dumb", USER="agent").items():
        args += ["--setenv", name, value]
    args += [*_system(), "--ro-bind-data", str(own["names"]), "/etc/passwd"]
    args += ["--ro-bind-data", str(own["groups"]), "/etc/group"]
    for top in tops:
        args += ["--perms", "0755", "--size", str(limits.disk_mb << 20), "--tmpfs", f"/{top}"]
    as_agent = f"setpriv {f'--reuid {uid} --regid {uid} --clear-groups ' if root else ''}--ambient-caps=-all "
    as_agent += "--inh-caps=-all --bounding-set=-all --no-new-privs"
    fds = [pipes[0][1], pipes[1][1], own["status"], own["save"]]
    args += ["--remount-ro", "/", "--seccomp", str(own["bpf"]), "--", "bash", "--noprofile", "--norc", "-c", _DRIVER]
    values = (as_agent, seconds, workdir, stamp, want, f"{uid}:{uid}", *fds, command, limits.processes,
              limits.memory_mb << 10, limits.disk_mb << 10, *(f"/{t}" for t in tops))  # fmt: skip
    start = time.monotonic()
    try:
        process = subprocess.Popen(
            [*args, "driver", *map(str, values)], stdin=own["inp"], stdout=own["log"], stderr=own["log"], env={},
            cwd="/", start_new_session=True, pass_fds=[*fds, own["bpf"], own["names"], own["groups"]],
        )  # fmt: skip
        for _, end in pipes:
            os.close(end)
        try:
            look = lambda: _exceeded(process.pid, limits)  # noqa: E731
            outputs, note = watch(process, [r for r, _ in pipes], seconds, limits.output_kb << 10, look)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        ready, _, code = os.pread(own["status"], 100, 0).decode().partition("\n")
        log = os.pread(own["log"], 500, 0).decode("utf-8", "replace").strip()
        if not ready and not note:
            raise SandboxUnavailable(f"bubblewrap: {log}. Run: {advice()}")
        saved = os.pread(own["save"], os.fstat(own["save"]).st_size, 0)
    finally:
        for fd in own.values():
            os.close(fd)
    texts = [o[: limits.output_kb << 10].decode("utf-8", "replace") for o in outputs]
    if not code:  # the files could not be laid out or packed, or a limit ended the sandbox
        return Ran(137, texts[0], texts[1] + log, f"{note or 'disk'} limit exceeded", True), b""
    late = code.strip() == "137" and time.monotonic() - start >= seconds
    return Ran(int(code), *texts, note="time limit exceeded" if late else ""), saved
