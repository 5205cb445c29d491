"""Comparing what a program gave with what was expected. On the host: expected outputs never enter the sandbox."""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation
from typing import Any


def _numbers(line: str) -> list[Decimal] | None:
    if not line.isascii() or "_" in line:
        return None
    try:
        numbers = [Decimal(word) for word in line.split()]
    except InvalidOperation:
        return None
    return numbers if all(n.is_finite() for n in numbers) else None


def same_stdout(actual: str, expected: str) -> bool:
    """Whether two outputs agree: stripped as a whole, line by line, each stripped. A line that differs as text still
    agrees if both are the same numbers (`1.50 2` and `1.5 2.0`), compared exactly as decimals."""
    left, right = ([line.strip() for line in text.strip().split("\n")] for text in (actual, expected))
    if len(left) != len(right):
        return False
    for a, b in zip(left, right, strict=True):
        if a != b and ((numbers := _numbers(a)) is None or numbers != _numbers(b)):
            return False
    return True


def same_value(actual: Any, expected: Any, rel_tol: float = 1e-6, abs_tol: float = 1e-9) -> bool:
    """Whether two values agree: ==, with tuples as lists and floats within a tolerance, at any depth.

    actual: builtin types only (as `Result.value` is), so that no `==` runs foreign code.
    """
    if isinstance(actual, (list, tuple)) and isinstance(expected, (list, tuple)):
        return len(actual) == len(expected) and all(
            same_value(a, b, rel_tol, abs_tol) for a, b in zip(actual, expected, strict=True)
        )
    if isinstance(actual, dict) and isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(
            same_value(actual[k], expected[k], rel_tol, abs_tol) for k in expected
        )
    if isinstance(actual, float) or isinstance(expected, float):
        numbers = all(isinstance(v, (int, float)) for v in (actual, expected))
        try:
            return numbers and math.isclose(actual, expected, rel_tol=rel_tol, abs_tol=abs_tol)
        except OverflowError:  # an int too large for a float
            return actual == expected
    return actual == expected
