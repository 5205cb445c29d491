"""The official DeepCoder data: rows of `agentica-org/DeepCoder-Preview-Dataset` (MIT) as tasks.

Rows carry tests in three shapes, and function tests in each of them (graders that drop TACO's `fn_name` judge function
tasks as programs that print; here they are called). Function tests may wrap the expected value in a list of one: then
both readings are accepted, as the graders of APPS and TACO do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

DATASET = "agentica-org/DeepCoder-Preview-Dataset"
REVISION = "177913a7bd43791646ef6a43645caa3c871ab3db"
CONFIGS = {"train": ("primeintellect", "taco", "lcbv5"), "test": ("codeforces", "lcbv5")}
VALID_EVERY = 20  # every 20th row of the train stream is held back for "valid"
_STDIN, _FUNCTION = (None, "stdin", "stdin_stdout"), ("functional", "function_call")


class BadRow(ValueError):
    """A row whose tests have none of the known shapes."""


def _json(value: Any, what: str) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadRow(f"{what} is not JSON: {str(value)[:80]!r}") from error


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _arguments(value: Any) -> list[Any]:
    """An argument list: a list, or text with one JSON value a line."""
    if isinstance(value, list):
        return value
    return [_json(line, "an argument") for line in str(value).split("\n") if line.strip()]


def _accepted(value: Any, wrapped: bool) -> list[Any]:
    value = _json(value, "an expected value") if isinstance(value, str) and not wrapped else value
    return [value, value[0]] if wrapped and isinstance(value, list) and len(value) == 1 else [value]


def parse_tests(tests: Any, metadata: Any = None) -> dict[str, Any]:
    """Tests of a row, in any of the shapes, as {"kind", "fn", "inputs", "outputs"}, see `lib.envs.deepcoder_grade`.

    tests: JSON text or what it holds: (1) LiveCodeBench, Codeforces: a list of {"input", "output", "testtype"} with
    "stdin" or "functional" (one JSON value a line; the name in `metadata["func_name"]` of the row or of the test); (2)
    TACO: {"inputs", "outputs"}, with "fn_name" for functions (argument lists); (3) PrimeIntellect: a list of {"type",
    "input", "output"} with "stdin_stdout" or "function_call" (and "fn_name"). Raises BadRow for anything else.
    """
    tests, metadata = _json(tests, "tests"), _json(metadata or {}, "metadata")
    wrapped = True
    if isinstance(tests, dict):
        if not {"inputs", "outputs"} <= tests.keys() or len(tests["inputs"]) != len(tests["outputs"]):
            raise BadRow(f"a dict of tests needs inputs and outputs, as many of the one as of the other: {list(tests)}")
        fn, inputs, outputs = tests.get("fn_name"), list(tests["inputs"]), list(tests["outputs"])
    elif (
        isinstance(tests, list)
        and tests
        and all(isinstance(t, dict) and {"input", "output"} <= t.keys() for t in tests)
    ):
        kinds = {t.get("testtype", t.get("type")) for t in tests}
        if not (kinds <= set(_STDIN) or kinds <= set(_FUNCTION)):
            raise BadRow(f"unknown or mixed kinds of tests: {sorted(map(str, kinds))}")
        inputs, outputs, fn = [t["input"] for t in tests], [t["output"] for t in tests], None
        if kinds <= set(_FUNCTION):
            own = _json(tests[0].get("metadata") or {}, "a test's metadata")
            fn = tests[0].get("fn_name") or own.get("func_name") or metadata.get("func_name")
            wrapped = kinds == {"function_call"}
            if not fn:
                raise BadRow("function tests without the function's name")
    else:
        raise BadRow(f"tests are neither a dict with inputs and outputs nor a list of tests: {str(tests)[:80]!r}")
    if not inputs:
        raise BadRow("no tests")
    if fn:
        given, accepted = [_arguments(v) for v in inputs], [_accepted(v, wrapped) for v in outputs]
    else:
        given, accepted = [_text(v) for v in inputs], [[_text(v)] for v in outputs]
    return {"kind": "function" if fn else "stdin", "fn": fn or None, "inputs": given, "outputs": accepted}


def to_data(row: dict[str, Any], shown: int, hidden: int) -> dict[str, Any]:
    """A row as a task's data: the first `shown` tests are shown, and of the rest the `hidden` with the longest inputs
    are held out (so chooses the graders' `max_tests`). At least one is held out. Raises BadRow."""
    parsed = parse_tests(row["tests"], row.get("metadata"))
    n = len(parsed["inputs"])
    shown = min(shown, n - 1)
    rest = sorted(range(shown, n), key=lambda i: -len(str(parsed["inputs"][i])))[:hidden]
    for part in ("inputs", "outputs"):
        parsed[part] = [parsed[part][i] for i in (*range(shown), *sorted(rest))]
    return {**parsed, "shown": shown, "problem": row["problem"], "starter": row.get("starter_code") or ""}


def rows(split: str, revision: str = REVISION) -> Iterator[dict[str, Any]]:
    """The dataset's rows of a split, streamed in the order of CONFIGS. Raises ConnectionError where out of reach."""
    from datasets import load_dataset

    source = "test" if split == "test" else "train"
    for config in CONFIGS[source]:
        try:
            stream = load_dataset(DATASET, config, split=source, streaming=True, revision=revision)
        except Exception as error:  # the library raises many kinds
            raise ConnectionError(f"cannot read {DATASET} ({config}) at {revision}: {error}") from error
        for i, row in enumerate(stream):
            if split == "test" or (i % VALID_EVERY == 0) == (split == "valid"):
                yield {**row, "id": f"deepcoder-{config}-{source}-{i:05d}"}


def official_tasks(
    stream: Iterable[dict[str, Any]], n: int, shown: int, hidden: int
) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """The first n good rows as (id, data), and what was left out: "id: reason". Raises ValueError where fewer exist."""
    found, bad = [], []
    for row in stream:
        try:
            found.append((row["id"], to_data(row, shown, hidden)))
        except BadRow as error:
            bad.append(f"{row['id']}: {error}")
        if len(found) == n:
            return found, bad
    raise ValueError(f"{n} tasks asked for, {len(found)} found ({len(bad)} rows left out: {'; '.join(bad[:3])})")
