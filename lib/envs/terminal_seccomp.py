"""The system calls that commands of a terminal task may not make: a deny-list as a seccomp BPF filter.

A shell needs most calls, so an allow-list as in lib/sandbox/seccomp.py does not fit. What is denied are calls that a
shell's work does not need and that would lead past the limits: new namespaces and mounts (memory file systems of any
size), memory outside of processes (memfd, System V), other processes' memory, keys, io_uring, BPF.
"""

from __future__ import annotations

from lib.sandbox import SandboxUnavailable, seccomp

# name: (x86_64, aarch64)
_DENIED = {
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "userfaultfd": (323, 282), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "syslog": (103, 116),
    "kexec_load": (246, 104), "init_module": (175, 105), "finit_module": (313, 273), "open_by_handle_at": (304, 265),
}  # fmt: skip
_NEW_NAMESPACE = 0x7E020000  # CLONE_NEW* of all kinds


def deny_filter(machine: str) -> bytes:
    """The seccomp program: `_DENIED` and new namespaces fail, clone3 is ENOSYS (its flags are out of sight)."""
    if machine not in seccomp.AUDIT_ARCH:
        raise SandboxUnavailable(f"no system call table for machine {machine!r}")
    column, op = list(seccomp.AUDIT_ARCH).index(machine), seccomp._op
    eq, no, kill = seccomp._JEQ, op(seccomp._RET, seccomp._ERRNO | 1), op(seccomp._RET, seccomp._KILL)
    program = op(seccomp._LD, seccomp._ARCH) + op(eq, seccomp.AUDIT_ARCH[machine], 1, 0) + kill
    program += op(seccomp._LD, seccomp._NR) + op(seccomp._JGE, 0x40000000, 0, 1) + kill  # x32 calls have other numbers
    for number in sorted(n[column] for n in _DENIED.values()):
        program += op(eq, number, 0, 1) + no
    program += op(eq, 435, 0, 1) + op(seccomp._RET, seccomp._ERRNO | 38)
    program += op(eq, (56, 220)[column], 0, 3) + seccomp._arg(0) + op(seccomp._JSET, _NEW_NAMESPACE, 0, 1) + no
    return program + op(seccomp._RET, seccomp._ALLOW)
