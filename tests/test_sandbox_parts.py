"""The sandbox's parts that need no sandbox: the system call filter, the comparison of outputs, values on the wire."""

import os
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.sandbox import same_stdout, same_value, seccomp
from lib.sandbox.values import decode, encode


def _decide(program: bytes, arch: int, number: int, arguments: tuple[int, ...]) -> int:
    """What the kernel does with a BPF program, by the book: an accumulator, jumps forward, a return value."""
    data = struct.pack("=IIQ6Q", number, arch, 0, *arguments)
    at, a = 0, 0
    while True:
        code, yes, no, k = struct.unpack_from("=HBBI", program, 8 * at)
        at += 1
        if code == 0x20:
            (a,) = struct.unpack_from("=I", data, k)
        elif code == 0x06:
            return k
        else:
            at += yes if {0x15: a == k, 0x35: a >= k, 0x45: bool(a & k)}[code] else no


@pytest.mark.parametrize("machine, column", [("x86_64", 0), ("aarch64", 1)])
def test_the_filter_allows_the_list_and_nothing_else(machine, column):
    program, arch = seccomp.build(machine), seccomp.AUDIT_ARCH[machine]
    allowed = {n[column] for n in seccomp.ALLOWED.values()} - {None}
    special = {name: n[column] for name, n in seccomp.CONDITIONAL.items()}
    for number in set(range(600)) - set(special.values()):
        assert (_decide(program, arch, number, (0,) * 6) == 0x7FFF0000) == (number in allowed), number
    ok = lambda name, *a: _decide(program, arch, special[name], (*a, *[0] * (6 - len(a)))) == 0x7FFF0000  # noqa: E731
    assert ok("clone", 0x3D0F00) and not ok("clone", 17) and not ok("clone", 0x3D0F00 | 0x10000000)
    assert ok("openat", 0, 0, os.O_CLOEXEC) and not any(
        ok("openat", 0, 0, f) for f in (1, 2, 0o100, 0o1000, 0o20000002)
    )
    assert ok("fcntl", 1, 3) and ok("fcntl", 1, 1030) and not any(ok("fcntl", 1, c) for c in (4, 8, 10, 1026, 1033))
    assert ok("prlimit64", 0) and not ok("prlimit64", 1) and ok("ioctl", 0, 0x5401) and not ok("ioctl", 0, 0x5412)
    assert _decide(program, arch ^ 1, 0, (0,) * 6) == 0x80000000
    assert _decide(seccomp.build(machine, threads=False), arch, special["clone"], (0x3D0F00,) + (0,) * 5) != 0x7FFF0000


@pytest.mark.parametrize(
    "actual, expected, same",
    [
        ("1 2\n3\n", " 1 2 \n3", True), ("1.50 2", "1.5 2.0", True), ("1 2", "1\n2", False), ("1", "1\n2", False),
        ("abc", "abd", False), ("1e2", "100", True), ("nan", "NaN", False), ("1_0", "10", False), ("", "\n", True),
        ("0.1", "0.1000000001", False), ("YES 1.0", "YES 1", False), ("1e999999999", "1e999999998", False),
    ],
)  # fmt: skip
def test_same_stdout(actual, expected, same):
    assert same_stdout(actual, expected) is same


@pytest.mark.parametrize(
    "actual, expected, same",
    [
        ((1, [2]), [1, (2,)], True), ([1], [1, 2], False), (0.1 + 0.2, 0.3, True), (1.0, 1, True), (1.01, 1, False),
        ({"a": (1,)}, {"a": [1]}, True), ({"a": 1}, {"b": 1}, False), ({1, 2}, {2, 1}, True), ("1", 1, False),
        (float("inf"), float("inf"), True), (float("nan"), float("nan"), False), (10**400, 1.0, False),
        (None, 0, False),
    ],
)  # fmt: skip
def test_same_value(actual, expected, same):
    assert same_value(actual, expected) is same


_keys = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.tuples(st.integers(), st.text(max_size=2))
_values = st.recursive(
    _keys | st.floats(allow_nan=False),
    lambda v: st.lists(v) | st.lists(v).map(tuple) | st.dictionaries(_keys, v) | st.sets(_keys),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(_values)
def test_values_come_back_with_their_types(value):
    assert repr(decode(encode(value))) == repr(value) or decode(encode(value)) == value


def test_values_that_are_no_data_or_too_deep_are_refused_on_both_sides():
    deep: list = []
    for _ in range(200):
        deep = [deep]
    for bad in (object(), {1: print}, b"x", deep):
        with pytest.raises(TypeError, match="handed over"):
            encode(bad)
    for bad in ({"list": 3}, {"call": []}, {"tuple": [], "set": []}, deep, {"dict": [1]}, {"set": [[1]]}):
        with pytest.raises((ValueError, TypeError)):
            decode(bad)
