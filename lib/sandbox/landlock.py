"""Landlock (Linux ≥ 5.13): what is left for reading when no namespaces are to be had."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same numbers on x86_64 and aarch64
_EXECUTE, _READ_FILE, _READ_DIR = 1, 4, 8
_ACCESS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}  # by ABI version


def _call(libc: ctypes.CDLL, number: int, *args) -> int:
    result = libc.syscall(ctypes.c_long(number), *args)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"landlock system call {number}: {os.strerror(code)}")
    return result


def restrict(readable: Iterable[str], listable: Iterable[str]) -> None:
    """Drop all capabilities, and deny this process and its children every file access but two: reading (and mapping)
    what lies at or under `readable`, and listing the directories at or under `listable`.

    Files already open stay usable. Cannot be undone. Raises OSError where the kernel has no Landlock.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_long(0)
    abi = _call(libc, _CREATE, None, zero, ctypes.c_long(1))
    attr = struct.pack("=Q", _ACCESS[min(abi, 5)])
    rules = _call(libc, _CREATE, attr, ctypes.c_long(len(attr)), zero)
    for paths, rights in ((readable, _READ_FILE | _EXECUTE), (listable, _READ_DIR)):
        for path in paths:
            fd = os.open(path, os.O_PATH)
            rule = struct.pack("=Qi", rights, fd)
            _call(libc, _ADD, ctypes.c_long(rules), ctypes.c_long(1), rule, zero)
            os.close(fd)
    if libc.capset(struct.pack("=Ii", 0x20080522, 0), bytes(24)):  # version 3, this thread: no capabilities
        raise OSError(ctypes.get_errno(), "capset")
    libc.prctl(38, ctypes.c_ulong(1), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))  # no_new_privs
    _call(libc, _RESTRICT, ctypes.c_long(rules), zero)
    os.close(rules)
