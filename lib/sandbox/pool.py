"""The host's side of the sandbox: a pool of prefork servers."""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from lib.sandbox.jobs import GIVEN_UP, Job, Limits, Result, read_results
from lib.sandbox.launch import SandboxUnavailable, Server, ServerDied, advice, ways

_CHUNK = 32  # tests a request: bounds what the memory files of a hostile program can take up


class SandboxError(RuntimeError):
    """The sandbox itself failed twice in a row on a job: nothing is known about the program."""


class Pool:
    """`workers` servers (default: one a CPU), used from any number of threads of this process. A context manager.

    mode: "bwrap" (namespaces, read-only root without data, seccomp, resource limits), "landlock" (weaker: in the host's
    process space and network stack, kept apart by Landlock and seccomp alone) or "auto": the first that works, with a
    warning on stderr if it is the weaker. Raises SandboxUnavailable if none does.
    """

    def __init__(self, workers: int | None = None, mode: str = "auto"):
        if sys.platform != "linux":
            raise SandboxUnavailable(
                f"the sandbox needs Linux, this is {sys.platform}. Run: docker run -it python:3.11"
            )
        workers = len(os.sched_getaffinity(0)) if workers is None else workers
        if workers < 1:
            raise ValueError(f"a pool needs at least one worker, not {workers}")
        self._pid, self._closed, self.servers, failures = os.getpid(), False, [], []
        for self._way in ways(mode):
            try:
                self.servers.append(Server(self._way))
                break
            except ServerDied as error:
                failures.append(str(error))
        if not self.servers:
            raise SandboxUnavailable(f"no sandbox in mode {mode!r} ({'; '.join(failures)}). Run: {advice()}")
        self.mode = self.servers[0].mode
        if self.mode == "landlock":
            print(f"sandbox: weaker mode 'landlock' in use ({'; '.join(failures) or 'as asked'})", file=sys.stderr)
        if not self.servers[0].threads:
            print("sandbox: programs cannot start threads here (their number cannot be limited)", file=sys.stderr)
        self.servers += [Server(self._way) for _ in range(workers - 1)]
        self._idle: queue.LifoQueue[int] = queue.LifoQueue()
        for i in range(workers):
            self._idle.put(i)
        self._threads = ThreadPoolExecutor(workers)

    def run(self, job: Job) -> list[Result]:
        """The results of all tests of a job, in order. Raises SandboxError, or RuntimeError on a closed pool."""
        out: list[Result] = []
        limits = job.limits
        while len(out) < len(job.tests):
            part = job.part(len(out), _CHUNK)
            out += self._retry(part)
            if limits.give_up and sum(r.status == "timeout" for r in out) >= limits.give_up:
                out += [GIVEN_UP] * (len(job.tests) - len(out))
        return out

    def map(self, jobs: Iterable[Job]) -> list[list[Result]]:
        """`run` for many jobs on all workers at once, in order."""
        return list(self._threads.map(self.run, jobs))

    def run_program(self, code: str, stdins: Sequence[str], limits: Limits | None = None) -> list[Result]:
        """Run a program once for each stdin text."""
        return self.run(Job(code, stdins, None, limits or Limits()))

    def call_function(
        self, code: str, name: str, arguments: Sequence[Sequence[Any]], limits: Limits | None = None
    ) -> list[Result]:
        """Call a program's function (or a method of its class `Solution`) once for each argument list."""
        return self.run(Job(code, arguments, name, limits or Limits()))

    def close(self) -> None:
        """End all servers. The pool cannot be used afterwards."""
        if not self._closed and self._pid == os.getpid():
            self._closed = True
            self._threads.shutdown(wait=False, cancel_futures=True)
            for server in self.servers:
                server.kill()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _retry(self, job: Job) -> list[Result]:
        if self._closed or self._pid != os.getpid():
            raise RuntimeError("this pool is closed, or belongs to another process; make a new one")
        i = self._idle.get()
        try:
            try:
                return _ask(self.servers[i], job)
            except ServerDied:
                self._restart(i)
            try:
                return _ask(self.servers[i], job)
            except ServerDied as error:
                self._restart(i)
                raise SandboxError(f"two servers in a row ended on one job ({error})") from error
        finally:
            self._idle.put(i)

    def _restart(self, i: int) -> None:
        """A new server, the same way as the first: never a weaker one."""
        if self._closed:
            raise RuntimeError("the pool was closed while a job was running")
        self.servers[i].kill()
        try:
            self.servers[i] = Server(self._way)
        except ServerDied as error:
            raise SandboxError(f"a server ended and could not be started again ({error})") from error


def _ask(server: Server, job: Job) -> list[Result]:
    files = [os.memfd_create(name) for name in ("payload", "results", "out", "err")]
    try:
        payload = memoryview(job.payload())
        while payload:
            payload = payload[os.write(files[0], payload) :]
        request = {"tests": len(job.tests), "limits": asdict(job.limits), "batch": job.batch}
        longest = 2 * (len(job.tests) + 1) * job.limits.wall_s + 30.0
        return read_results(job, server.ask(request, files, longest), *files[1:])
    finally:
        for fd in files:
            os.close(fd)


_shared: list[Pool] = []
_lock = threading.Lock()


def shared_pool() -> Pool:
    """This process's pool, started when first asked for and closed at exit. A forked process gets its own."""
    with _lock:
        if not _shared or _shared[0]._pid != os.getpid() or _shared[0]._closed:
            _shared[:] = [Pool()]
            atexit.register(_shared[0].close)
        return _shared[0]
