"""The system calls a program under test may make: an allow-list compiled to a seccomp BPF filter.

Everything not listed fails with EPERM; a call of a foreign architecture kills the process. Five calls are allowed
for some arguments only: `clone` makes threads and nothing else, `openat` opens for reading, `fcntl` cannot ask for
signals, `ioctl` answers "is this a terminal?", `prlimit64` acts on the caller. `clone3` keeps its flags in memory,
where no filter sees them, so it is ENOSYS and libc falls back on `clone`. With no way to make a pipe or a socket and
no kill, a program has nothing but the files it was given.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_NR, _ARCH = 0, 4  # offsets in struct seccomp_data; argument i stands at 16 + 8 i, little-endian
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86_64, aarch64) from asm/unistd_64.h and asm-generic/unistd.h; None where the architecture has no such call.
ALLOWED: dict[str, tuple[int | None, int | None]] = {
    # files that are open already, and reading the file system
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "pwrite64": (18, 68),
    "close": (3, 57), "close_range": (436, 436), "lseek": (8, 62), "ftruncate": (77, 46), "dup": (32, 23),
    "dup2": (33, None), "dup3": (292, 24), "fstat": (5, 80), "stat": (4, None), "lstat": (6, None),
    "newfstatat": (262, 79), "statx": (332, 291), "access": (21, None), "faccessat": (269, 48),
    "faccessat2": (439, 439), "readlink": (89, None), "readlinkat": (267, 78),
    "getdents64": (217, 61), "getcwd": (79, 17), "poll": (7, None),
    "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
    # memory
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216), "madvise": (28, 233),
    "brk": (12, 214),
    # threads and the process's own signals
    "futex": (202, 98), "set_robust_list": (273, 99), "rseq": (334, 293), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132), "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123), "restart_syscall": (219, 128), "exit": (60, 93), "exit_group": (231, 94),
    # clocks, chance, who am I
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153), "getrandom": (318, 278), "uname": (63, 160),
    "getrusage": (98, 165), "sysinfo": (99, 179), "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178),
    "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
}  # fmt: skip
CONDITIONAL = {
    "clone": (56, 220), "clone3": (435, 435), "openat": (257, 56), "fcntl": (72, 25), "ioctl": (16, 29),
    "prlimit64": (302, 261),
}  # fmt: skip

_NEW_THREAD = 0x3D0F00  # the flags of glibc's pthread_create, CLONE_THREAD among them
_OPEN_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FCNTL = (0, 1, 2, 3, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC
_TCGETS = 0x5401


def _op(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, k & 0xFFFFFFFF)


def _arg(i: int) -> bytes:
    """Load the low word of argument i: all that the kernel looks at in the arguments tested here."""
    return _op(_LD, 16 + 8 * i)


_YES, _NO = _op(_RET, _ALLOW), _op(_RET, _ERRNO | errno.EPERM)


def _when(name: str, threads: bool) -> bytes:
    """The instructions that decide about one conditional call; they end in a return on every path."""
    if name == "clone":
        return (_arg(0) + _op(_JEQ, _NEW_THREAD, 0, 1) + _YES if threads else b"") + _NO
    if name == "clone3":
        return _op(_RET, _ERRNO | errno.ENOSYS)
    if name == "openat":
        return _arg(2) + _op(_JSET, _OPEN_WRITING, 1, 0) + _YES + _NO
    if name == "prlimit64":
        return _arg(0) + _op(_JEQ, 0, 0, 1) + _YES + _NO
    values = _FCNTL if name == "fcntl" else (_TCGETS,)
    tests = [_op(_JEQ, v, len(values) - 1 - i, 1 if i == len(values) - 1 else 0) for i, v in enumerate(values)]
    return _arg(1) + b"".join(tests) + _YES + _NO


def build(machine: str, threads: bool = True) -> bytes:
    """The BPF program (8 bytes an instruction) for "x86_64" or "aarch64".

    threads: whether `clone` may make threads. Raises ValueError for any other machine.
    """
    if machine not in AUDIT_ARCH:
        raise ValueError(f"no system call table for machine {machine!r}; known: {', '.join(AUDIT_ARCH)}")
    column = list(AUDIT_ARCH).index(machine)
    program = _op(_LD, _ARCH) + _op(_JEQ, AUDIT_ARCH[machine], 1, 0) + _op(_RET, _KILL) + _op(_LD, _NR)
    for name, numbers in CONDITIONAL.items():
        block = _when(name, threads)
        program += _op(_JEQ, numbers[column], 0, len(block) // 8) + block
    allowed = sorted(n[column] for n in ALLOWED.values() if n[column] is not None)
    return program + _search(_ranges(allowed))


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """Cut the line of all call numbers into [(first number, return value), ...], allowed and denied in turn."""
    out, member = [(0, _ERRNO | errno.EPERM)], set(numbers)
    for n in numbers:
        if n - 1 not in member:
            out.append((n, _ALLOW))
        if n + 1 not in member:
            out.append((n + 1, _ERRNO | errno.EPERM))
    return out[1:] if 0 in member else out


def _search(ranges: list[tuple[int, int]]) -> bytes:
    """Binary search: the kernel walks the filter for every call number when it is installed, once a test."""
    if len(ranges) == 1:
        return _op(_RET, ranges[0][1])
    half = len(ranges) // 2
    low, high = _search(ranges[:half]), _search(ranges[half:])
    return _op(_JGE, ranges[half][0], len(low) // 8, 0) + low + high


class Filter:
    """A built filter, ready to install: for good, for the calling thread and its children."""

    def __init__(self, program: bytes):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._code = ctypes.create_string_buffer(program, len(program))
        self._prog = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(self._code)))

    def install(self) -> None:
        """Set no_new_privs and the filter. Raises OSError where the kernel refuses."""
        word = ctypes.c_ulong
        for option, a, b in ((_PR_SET_NO_NEW_PRIVS, word(1), word(0)), (_PR_SET_SECCOMP, word(_FILTER), self._prog)):
            if self._libc.prctl(option, a, b, word(0), word(0)):
                code = ctypes.get_errno()
                raise OSError(code, f"prctl({option}): {os.strerror(code)}")
