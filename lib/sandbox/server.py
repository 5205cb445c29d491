"""The server inside the sandbox: it forks one child for each run of a program under test.

`pool` starts it as a script and talks to it over a socket. A request brings four memory files (program and tests,
results, stdout, stderr); a child runs tests first…stop-1 of the program one after the other. A child that made progress
and then ended early (it died, ran out of memory, or the program left changes behind) is followed by a fresh child at
the test it had reached; a child that made none gives the verdict on its first test by its death.

Nothing here is secret: expected outputs never come in, so all that a hostile program can forge is its own output.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import platform
import select
import signal
import socket
import sys
import threading
import time

import landlock
import runner
import seccomp
from runner import PROGRESS

USUAL = (
    "_strptime abc array base64 bisect calendar cmath collections.abc contextlib copy dataclasses datetime decimal enum"
    " fractions functools hashlib heapq inspect io itertools json locale math numbers operator queue random re"
    " statistics string struct textwrap time typing unicodedata"
)
# Taken out of sys.modules: a program that imports one of them afresh gets a process of its own for every test.
UNUSUAL = "resource ctypes _ctypes signal gc landlock runner seccomp values"


def watch(pid: int, results: int, first: int, stop: int, wall: float) -> tuple[int, list | None]:
    """Wait for a child; kill it when one test has had `wall` seconds.

    Returns the test to go on with and, where the child's end decides it, the verdict on the test before that one:
    [test, wait status, late, offset in stdout, in stderr, wall s, cpu s].
    """
    began = since = time.monotonic()
    last = began + (stop - first + 1) * wall
    fd = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    late = False
    while not poll.poll(max(0.0, min(since + wall, last) - time.monotonic()) * 1000 + 1):
        when = read_progress(results)[1]
        if since < when <= time.monotonic() < min(when + wall, last):
            since = when
            continue
        late = True
        os.kill(pid, signal.SIGKILL)
        break
    os.close(fd)
    _, status, usage = os.wait4(pid, 0)
    late = late or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU)
    done, when, out, err = read_progress(results)
    done = min(max(done, first), stop)
    if done == stop or (done > first and not late):
        return done, None
    spent = time.monotonic() - since, usage.ru_utime + usage.ru_stime
    return done + 1, [done, status, late, out, err, *spent]


def read_progress(results: int) -> tuple[int, float, int, int]:
    """A child's progress record, or zeros where the program has cut it off."""
    data = os.pread(results, PROGRESS.size, 0)
    return PROGRESS.unpack(data) if len(data) == PROGRESS.size else (0, 0.0, 0, 0)


def serve(sock: socket.socket, lock) -> None:
    """Answer requests until the other end of the socket is closed."""
    while True:
        message, files, _, _ = socket.recv_fds(sock, 1 << 16, 4)
        if not message:
            return  # the pool is gone
        request = json.loads(message)
        n, limits = request["tests"], request["limits"]
        os.pwrite(files[1], PROGRESS.pack(0, 0.0, 0, 0), 0)
        os.lseek(files[1], PROGRESS.size, os.SEEK_SET)
        verdicts, first, late = [], 0, 0
        while first < n and not (limits["give_up"] and late >= limits["give_up"]):
            stop = n if request["batch"] else first + 1
            ends = os.fstat(files[2]).st_size, os.fstat(files[3]).st_size
            for fd, end in zip(files[2:], ends, strict=True):
                os.lseek(fd, end, os.SEEK_SET)
            os.pwrite(files[1], PROGRESS.pack(first, 0.0, *ends), 0)
            pid = os.fork()
            if not pid:
                try:
                    runner.run(lock, request, files, first, stop)
                finally:
                    os._exit(70)
            first, verdict = watch(pid, files[1], first, stop, limits["wall_s"])
            if verdict:
                verdicts.append(verdict + [os.fstat(fd).st_size for fd in files[2:]])
                late += verdict[2]
        for fd in files:
            os.close(fd)
        sock.sendall(json.dumps({"verdicts": verdicts, "reached": first}).encode() + b"\n")


def probe(lock, limits: dict) -> bool:
    """Try the locks in a child; return whether the number of threads is limited.

    Raises RuntimeError if any other lock does not hold.
    """

    def attempt(action) -> bool:
        try:
            action()
            return True
        except (OSError, RuntimeError):
            return False

    pid = os.fork()
    if not pid:
        code = 99
        try:
            runner.confine(lock, limits, 1, 0)
            code = sum(
                attempt(action) << bit
                for bit, action in enumerate((
                    threading.Thread(target=int).start, socket.socket, os.fork, os.pipe,
                    lambda: os.kill(1, 0), lambda: open("probe", "w"), lambda: open("/etc/passwd"),
                ))
            )  # fmt: skip
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code not in (0, 1):
        raise RuntimeError(f"the locks of the sandbox do not hold here (probe {code:#b})")
    return code == 0


def main() -> None:
    config = json.loads(sys.argv[1])
    for name in USUAL.split():
        __import__(name)
    sys.path.remove(os.path.dirname(__file__))
    if config["uid"]:
        os.setgroups([])
        os.setresgid(*[config["uid"]] * 3)
        os.setresuid(*[config["uid"]] * 3)
        os.close(os.open(os.__file__, os.O_RDONLY))
    if config["landlock"]:
        landlock.restrict(*config["landlock"])
    machine, threads = platform.machine(), config["threads"]
    lock = seccomp.Filter(seccomp.build(machine, threads))
    if threads and not probe(lock, config["probe"]):
        threads, lock = False, seccomp.Filter(seccomp.build(machine, False))
    if not threads:
        probe(lock, config["probe"])
    for name in UNUSUAL.split():
        sys.modules.pop(name, None)
    atexit._clear()
    sock = socket.socket(fileno=config["socket"])
    sock.sendall(json.dumps({"threads": threads}).encode() + b"\n")
    gc.collect()
    gc.freeze()
    serve(sock, lock)


if __name__ == "__main__":
    main()
