"""Grading a program on a task's tests: run in the sandbox, compared on the host.

A task's data (JSON-able): `kind` "lines" (procedural), "function", "stdin" or "humaneval"; `fn` the function's name;
`inputs` argument lists or stdin texts; `outputs` for each input the list of accepted outputs; `shown` how many tests,
from the first on, the agent sees. HumanEval's tests are asserts: `lib.envs.humaneval`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lib.envs import humaneval
from lib.sandbox import Job, Limits, run_once, same_stdout, same_value

# LeetCode-style solutions are written for a judge that has imported these.
_STARRED = "typing collections itertools functools math heapq bisect".split()
PRELUDE = "; ".join([*(f"from {m} import *" for m in _STARRED), f"import re, string, {', '.join(_STARRED)}"])


class Outcome(NamedTuple):
    """One test's outcome: whether it passed; as text input, expected, what came instead (or the error); whether the
    program crashed on it: ended by an error or a limit, and not in an answer."""

    passed: bool
    input: str
    expected: str
    got: str
    crashed: bool


def grade(data: dict[str, Any], code: str, limits: Limits, show: Callable[[Any], str] = repr) -> list[Outcome]:
    """The outcomes of all tests of a task for one program. show: how values are written.

    Raises SandboxError where nothing is known about the program.
    """
    if data["kind"] == "humaneval":
        return [Outcome(*o) for o in humaneval.grade(data, code, limits)]
    code = f"{PRELUDE}\n{code}" if data["kind"] == "function" else code
    results = run_once(Job(code, data["inputs"], data["fn"], limits))
    out = []
    for given, accepted, r in zip(data["inputs"], data["outputs"], results, strict=True):
        ok = r.status == "ok"
        if data["kind"] == "stdin":
            ok = ok and any(same_stdout(r.stdout, e) for e in accepted)
            out.append(Outcome(ok, given, accepted[0], r.stdout if r.status == "ok" else r.said(), r.status != "ok"))
        else:
            ok = ok and any(same_value(r.value, e) for e in accepted)
            out.append(Outcome(ok, ", ".join(map(show, given)), show(accepted[0]), r.said(show), r.status != "ok"))
    return out
