"""What the sandbox is asked and what it answers: limits, a job (one program, many tests), results."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lib.sandbox.values import decode, encode


@dataclass(frozen=True)
class Limits:
    """What one test may use.

    wall_s, cpu_s: seconds (compiling a program has wall_s of its own). memory_bytes: address space, the interpreter's
    40 MB included. output_bytes: of stdout, of stderr and of a function's value. processes: threads, the first one
    included. files: open descriptors. give_up: after so many timeouts in one job its remaining tests count as timed
    out without being run; 0: never.
    """

    wall_s: float = 5.0
    cpu_s: float = 5.0
    memory_bytes: int = 512 << 20
    output_bytes: int = 1 << 20
    processes: int = 16
    files: int = 32
    give_up: int = 0

    def __post_init__(self):
        lowest = dict(wall_s=0.01, cpu_s=0.01, memory_bytes=64 << 20, output_bytes=1, processes=1, files=8, give_up=0)
        for name, low in lowest.items():
            if not getattr(self, name) >= low:
                raise ValueError(f"Limits.{name} is {getattr(self, name)!r}, the least allowed is {low}")


@dataclass(frozen=True)
class Job:
    """One program and its tests.

    tests: stdin texts; with `function`, argument lists (Python values that `values.encode` takes). function: name of a
    function of the program, or of a method of its class `Solution`. batch: run tests in one process where the program
    leaves no traces; False: one process a test, always. Programs have the standard library and nothing else.
    """

    code: str
    tests: Sequence[Any]
    function: str | None = None
    limits: Limits = Limits()
    batch: bool = True

    def __post_init__(self):
        kind = str if self.function is None else (list, tuple)
        for t in self.tests:
            if not isinstance(t, kind):
                raise ValueError(
                    f"a test of a {'function' if self.function else 'program'} is {type(t).__name__}: {t!r:.80}"
                )
        if not isinstance(self.code, str):
            raise ValueError(f"code is {type(self.code).__name__}, not str")

    def part(self, start: int, size: int) -> Job:
        """The same job with the tests start…start+size-1."""
        return self if size >= len(self.tests) else replace(self, tests=self.tests[start : start + size])

    def payload(self) -> bytes:
        """Code and tests as JSON, the form in which they enter the sandbox."""
        tests = list(self.tests) if self.function is None else [json.dumps(encode(list(t))) for t in self.tests]
        return json.dumps({"code": self.code, "tests": tests, "function": self.function}).encode()


@dataclass(frozen=True)
class Result:
    """What one test did.

    status: "ok", "error" (an exception, or a non-zero exit), "timeout", "memory", "output" (too much of it) or "killed"
    (a signal ended it). stdout: at most `output_bytes` of it. stderr: its last 2000 bytes. value: what the function
    returned. wall_s, cpu_s: seconds as the process itself measured them, so for information only.
    """

    status: str
    stdout: str = ""
    stderr: str = ""
    value: Any = None
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def said(self, show: Callable[[Any], str] = repr) -> str:
        """What came of a call, in short: the value as `show` writes it, or the last line of the error."""
        if self.status == "ok":
            return show(self.value)
        if self.status in ("timeout", "memory", "output"):
            return f"{self.status.replace('timeout', 'time')} limit exceeded"
        return (self.stderr.strip().splitlines() or [self.status])[-1]


GIVEN_UP = Result("timeout", stderr="not run: earlier tests of this program timed out")


def _read(fd: int, start: Any, size: Any, most: int, tail: bool = False) -> str:
    end = os.fstat(fd).st_size
    start = min(max(int(start), 0), end)
    size = min(max(int(size), 0), end - start)
    if tail and size > most:
        start, size = start + size - most, most
    return os.pread(fd, min(size, most), start).decode("utf-8", "replace")


def read_results(job: Job, reply: dict, results: int, out: int, err: int) -> list[Result]:
    """Read a job's memory files. Everything in them may be forged, so nothing in them is trusted to be well formed."""
    cap, found = job.limits.output_bytes, {}
    most = 2 * len(job.tests) * (cap + 4096)
    data = os.pread(results, most, 32)  # after the progress record
    for line in data.split(b"\n")[:-1]:
        try:
            i, status, o, o_size, e, e_size, value, wall, cpu = json.loads(line)
            if i in found or status not in ("ok", "error", "memory", "output"):
                continue
            stdout, stderr = _read(out, o, o_size, cap), _read(err, e, e_size, 2000, tail=True)
            value = None if value is None else decode(json.loads(value))
            found[i] = Result(status, stdout, stderr, value, float(wall), float(cpu))
        except (ValueError, TypeError, RecursionError, OverflowError):
            continue
    for i, status, late, o, e, wall, cpu, out_end, err_end in reply["verdicts"]:
        over = max(out_end - o, err_end - e) > cap
        failed = status or job.function
        ended = "timeout" if late else "output" if over else "error" if failed else "ok"
        stderr = _read(err, e, err_end - e, 2000, tail=True)
        if os.WIFSIGNALED(status) and ended == "error":
            ended, stderr = "killed", stderr + f"ended by signal {os.WTERMSIG(status)}"
        found[i] = Result(ended, _read(out, o, out_end - o, cap), stderr, None, wall, cpu)
    nothing = Result("error", stderr="the program left no result")
    return [found.get(i, nothing) if i < reply["reached"] else GIVEN_UP for i in range(len(job.tests))]
