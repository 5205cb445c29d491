"""The child inside the sandbox: locks itself in, then runs the tests of one program. Used by `server` only.

Each test runs in a fresh `__main__` with new standard streams, seeded chance and a default decimal context. A program
that leaves other changes behind, in a module it names, in the environment, in a thread, is noticed (`Traces`) and its
next test gets a fresh process, so that a verdict does not depend on how many tests share one. (Changes deep inside
an object of the library are not noticed; all they can spoil is the same program's later tests.)
"""

from __future__ import annotations

import atexit
import contextlib
import decimal
import gc
import json
import os
import random
import resource
import struct
import sys
import threading
import time
import traceback
import types

import values

RESULTS = 3
# A program that mentions one of these may reach a module without naming it.
REFLECTION = set("eval exec __import__ importlib modules __builtins__ globals vars getattr setattr __dict__".split())
PROGRESS = struct.Struct("=qdqq")  # tests done, when the next began (monotonic s), its offsets in stdout and stderr


def confine(lock, limits: dict, tests: int, payload: int) -> None:
    """Resource limits and the system call filter. limits: as in `jobs.Limits`; payload: bytes of program and tests."""
    cap, memory = limits["output_bytes"], limits["memory_bytes"]
    for what, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_STACK, memory),
        (resource.RLIMIT_NPROC, limits["processes"] + 1),  # + 1: the server
        (resource.RLIMIT_NOFILE, limits["files"]),
        (resource.RLIMIT_FSIZE, 2 * (tests + 1) * (cap + 4096) + payload),  # what the memory files may grow to
        (resource.RLIMIT_CPU, int((tests + 1) * limits["cpu_s"]) + 2),
    ):
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))
    lock.install()


def soft(what: int, value: int | None) -> None:
    """Set a soft limit; None: as high as the hard one."""
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (hard if value is None else min(value, hard), hard))


def names_in(code: types.CodeType) -> set[str]:
    """All global and attribute names that a program mentions, the modules it imports among them."""
    inner = (names_in(c) for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*inner)


class Traces:
    """Whether a program left changes in the modules it names, so that the next test needs a fresh process."""

    def __init__(self, names: set[str]):
        every = names & REFLECTION
        named = [m for k, m in sys.modules.items() if every or names.intersection(k.split("."))]
        self.modules, self.vars = set(sys.modules), [(vars(m), dict(vars(m))) for m in named]
        self.rest = self._rest()

    @staticmethod
    def _rest() -> tuple:
        files = [os.fstat(fd).st_ino for fd in range(4)]
        return list(sys.path), os.environ._data.copy(), files, threading.active_count()

    def none(self) -> bool:
        return (
            set(sys.modules) == self.modules
            and all(now == before for now, before in self.vars)
            and self._rest() == self.rest
        )


def report(error: BaseException) -> None:
    """The end of the traceback, without this file's frames, on stderr."""
    tb = error.__traceback__
    while tb and tb.tb_frame.f_code.co_filename == __file__:
        tb = tb.tb_next
    text = "".join(traceback.format_exception(type(error), error, tb, limit=-6)).encode("utf-8", "replace")
    with contextlib.suppress(OSError):  # a stderr that is full
        os.write(2, text[-2000:])


def finish(streams: tuple) -> None:
    """What an interpreter does at its end: wait for threads, run exit functions, drop the module, flush."""
    for t in threading.enumerate():
        if t is not threading.main_thread() and not t.daemon:
            t.join()
    atexit._run_exitfuncs()
    for stream in (*streams, sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()


def run_one(code: types.CodeType, function: str | None, test: str, cap: int) -> tuple[str, str | None]:
    """One test in a fresh `__main__`. -> (status, the function's value as JSON text)"""
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    streams = tuple(
        open(fd, mode, encoding="utf-8", errors=errors, closefd=False)
        for fd, mode, errors in ((0, "r", "surrogateescape"), (1, "w", "surrogateescape"), (2, "w", "backslashreplace"))
    )
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__ = streams
    random.seed(0)
    decimal.setcontext(decimal.DefaultContext.copy())
    status, value = "ok", None
    try:
        exec(code, module.__dict__)
        if function is not None:
            space = module.__dict__
            f = space[function] if function in space else getattr(space["Solution"](), function)
            value = json.dumps(values.encode(f(*values.decode(json.loads(test)))))
            status = "ok" if len(value) <= cap else "output"
    except MemoryError:
        status = "memory"
    except SystemExit as stop:
        if stop.code not in (None, 0) or function is not None:
            status = "error"
            report(stop)
    except BaseException as error:
        status = "error"
        report(error)
    try:
        finish(streams)
        module.__dict__.clear()  # an output file that the program left open is flushed here
    except BaseException as error:
        status = "error" if status == "ok" else status
        report(error)
    return status, value if status == "ok" else None


def restore() -> None:
    """Undo what a program commonly sets in its interpreter."""
    sys.settrace(None)
    sys.setprofile(None)
    sys.setrecursionlimit(1000)
    sys.__stdin__ = sys.__stdout__ = sys.__stderr__ = sys.stdin = sys.stdout = sys.stderr = None


def run(lock, request: dict, files: list[int], first: int, stop: int) -> None:
    """Run tests first…stop-1 and leave. Descriptors: 0 stdin, 1 stdout, 2 stderr, 3 results; nothing else is open."""
    stdin = os.memfd_create("stdin")
    size = os.fstat(files[0]).st_size
    payload = json.loads(os.pread(files[0], size, 0))  # pread: the offset is shared with the other children
    for source, target in zip((stdin, files[2], files[3], files[1]), range(4), strict=True):
        os.dup2(source, target)
    os.closerange(4, 1 << 16)  # the server's socket above all
    limits, tests, function = request["limits"], payload["tests"], payload["function"]
    cap = limits["output_bytes"]
    confine(lock, limits, len(tests), size)
    gc.enable()
    restore()

    def progress(done: int) -> tuple[int, int]:
        start = os.fstat(1).st_size, os.fstat(2).st_size
        os.pwrite(RESULTS, PROGRESS.pack(done, time.monotonic(), *start), 0)
        return start

    try:
        code = compile(payload["code"], "<program>", "exec", dont_inherit=True)
    except BaseException as error:  # the same for every test
        start = os.fstat(2).st_size
        report(error)
        status = "memory" if isinstance(error, MemoryError) else "error"
        row = [status, os.fstat(1).st_size, 0, start, os.fstat(2).st_size - start, None, 0.0, 0.0]
        os.write(RESULTS, b"".join(json.dumps([i, *row]).encode() + b"\n" for i in range(first, stop)))
        progress(stop)
        os._exit(0)
    start, traces = progress(first), Traces(names_in(code)) if stop - first > 1 else None
    for i in range(first, stop):
        text = b"" if function else tests[i].encode("utf-8", "surrogateescape")
        os.ftruncate(0, 0)
        os.pwrite(0, text, 0)
        os.lseek(0, 0, os.SEEK_SET)
        soft(resource.RLIMIT_FSIZE, max(start) + cap + 1)
        soft(resource.RLIMIT_CPU, int(time.process_time() + limits["cpu_s"]) + 1)
        wall, cpu = time.monotonic(), time.process_time()
        status, value = run_one(code, function, tests[i], cap)
        wall, cpu = time.monotonic() - wall, time.process_time() - cpu
        restore()
        soft(resource.RLIMIT_FSIZE, None)
        out, err = os.fstat(1).st_size - start[0], os.fstat(2).st_size - start[1]
        status = "output" if max(out, err) > cap else status
        if status == "memory" and i > first:
            os._exit(0)  # in a process that earlier tests have used this says nothing: a fresh one decides
        row = [i, status, start[0], out, start[1], err, value, wall, cpu]
        os.write(RESULTS, json.dumps(row).encode() + b"\n")
        start = progress(i + 1)
        if traces and i + 1 < stop and not traces.none():
            os._exit(0)
    os._exit(0)
