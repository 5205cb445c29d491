"""The terminal's sandbox: what it keeps, what it limits, attempts to escape from it."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from terminal_parts import by_hand, start

from lib.envs import terminal_sandbox
from lib.envs.terminal_run import Bwrap, read_reward
from lib.envs.terminal_sandbox import ROOT, Limits
from lib.envs.terminal_tasks import LOCAL, read_task
from lib.sandbox import SandboxUnavailable


def test_the_nth_change_is_dated_n_minutes_after_the_epoch():
    env = start(by_hand(setup=["echo 0 > made"]))
    for command in ("echo 1 > first", "ls", "echo 2 > second"):
        env.step(command)
    assert env.step("stat -c %Y a.txt made first second").observation == (
        "exit 0\n1735689600\n1735689600\n1735689660\n1735689720"
    )


ESCAPES = {
    "network": ("exec 3<>/dev/tcp/1.1.1.1/53", "Network is unreachable"),
    "other machines": ("cat /proc/net/dev | tail -n +3 | cut -d: -f1", "exit 0\n    lo"),
    "the system": ("touch /usr/x /etc/x /x /opt/bin/x; echo > /etc/passwd", "Read-only file system"),
    "devices": ("echo x > /dev/shm/x || echo x > /dev/x", "exit 1"),
    "a namespace": ("unshare --user --map-root-user mount -t tmpfs none /tmp", "Operation not permitted"),
    "other rights": ("chown 0:0 a.txt; mknod d b 8 0; su root -c id", "ermi"),
    "the kernel": ("echo 1 > /proc/sys/kernel/panic; dmesg", "ermi"),
    "tests": ("ls /tests /solution /logs", "exit 2"),
    "the reward": ("mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt", "exit 1"),
    "the project": (f"ls {ROOT} || ls /root/../{ROOT}", "exit 2"),
    "the driver": ("kill -9 1; kill -9 $PPID; cat /proc/1/environ", "exit"),
}


@pytest.mark.parametrize("name", ESCAPES)
def test_an_escape_fails_and_the_episode_goes_on(name):
    command, shown = ESCAPES[name]
    env = start()
    assert shown in env.step(command).observation
    assert env.step("cat a.txt").observation == "exit 0\none\ntwo"
    assert env.step("submit").reward == 0.0


def test_nothing_survives_a_command_but_files():
    env = start()
    marker = "987654.25"
    env.step(
        f"(trap '' TERM HUP; setsid sleep {marker} & while :; do kill -9 -1; done) > x 2>&1 & disown; echo no > out"
    )
    env.step("ls")
    alive = [p for p in Path("/proc").glob("[0-9]*/cmdline") if _has(p, marker)]
    assert alive == []
    assert env.step("ps -e | wc -l").info["exit"] == 0
    env.step("echo yes > out")
    assert env.step("submit").reward == 1.0


def _has(path, text):
    try:
        return text.encode() in path.read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize(
    ("command", "limit", "seconds"),
    [
        (":(){ :|:& };:; sleep 99", "time", 3.0),
        ("head -c 100M /dev/zero > big; for i in $(seq 40); do head -c 4M /dev/zero > f$i; done", "disk", 60.0),
        (
            "for i in 1 2 3 4 5 6; do python3 -c 'x = bytearray(90 << 20); import time; time.sleep(50)' & done; wait",
            "memory",
            60.0,
        ),
        ("python3 -c 'x = bytearray(1 << 30)'", "", 60.0),
        ("echo kept > kept; sleep 99", "time", 3.0),
    ],
)
def test_limits_hold(command, limit, seconds):
    env = start(limits=Limits(command_s=seconds, memory_mb=256, disk_mb=8, processes=32))
    step = env.step(command)
    assert step.info["exit"] != 0 and limit in step.info["limit"]
    assert env.step("cat a.txt").observation == "exit 0\none\ntwo"
    assert (env.step("cat kept").info["exit"] == 0) == ("kept" in command)


def test_endless_output_is_cut():
    env = start(shown=40)
    step = env.step("yes 0123456789")
    assert step.info["exit"] != 0 and "left out" in step.observation and len(step.observation) < 120


def test_a_verifier_without_a_reward_is_a_failure():
    for test, said in (("kill -9 $$", "no reward"), ("echo lots > /logs/verifier/reward.txt", "no reward")):
        step = start(by_hand(test)).step("submit")
        assert (step.reward, step.info["solved"]) == (0.0, False) and step.info["verifier"].startswith(said)
    part = start(by_hand("echo 0.5 > /logs/verifier/reward.txt")).step("submit")
    assert (part.reward, part.info["solved"]) == (0.5, False)
    found = [read_reward(t) for t in ("1\n", "0.25", "nan", "inf", "2", "-1", "", "one")]
    assert found == [1.0, 0.25, None, None, None, None, None, None]


def test_a_program_of_the_agent_cannot_stand_in_for_the_library():
    env = start(read_task(LOCAL / "config-to-json"), task_set="local")
    env.step("echo 'import os; os._exit(0)' | tee json.py pathlib.py sitecustomize.py > ~/x; echo exit > ~/.bashrc")
    env.step("printf '#!/bin/bash\\nexit 0\\n' > python3; chmod +x python3; cp python3 bash")
    assert env.step("submit").reward == 0.0


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has the one way only")
def test_the_way_of_an_ordinary_user(monkeypatch):
    monkeypatch.setattr(terminal_sandbox.os, "geteuid", lambda: 1000)
    env = start(by_hand(files={"app/b": [0o600, "b\n"]}))
    assert env.step("id -un; chmod 000 b; cat b").observation.startswith(
        "exit 1\nagent\nstderr: cat: b: Permission denied"
    )
    assert env.step("kill -9 -1").info["exit"] == 137
    assert (
        env.step("grep Cap /proc/self/status | sort -u -k2; echo yes > out").observation.count("0000000000000000") == 1
    )
    assert "Read-only" in env.step("touch /usr/x").observation
    assert env.step("submit").reward == 1.0


def test_archives_hold_what_was_put_in():
    files = {"app/x": [0o640, "x"], "root/deep/er/y": [0o755, "AAE=", "base64"], "tmp/empty/": [0o700, ""]}
    data = by_hand(files=files).data
    at = Bwrap(Limits())
    at.open(data)
    ran = at.run("stat -c '%a %n' /app/x /root/deep/er/y /tmp/empty; od -An -tx1 /root/deep/er/y")
    assert ran.stdout == "640 /app/x\n755 /root/deep/er/y\n700 /tmp/empty\n 00 01\n"


@settings(max_examples=8, deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=60), st.binary()
    )
)
def test_files_of_any_name_and_content_survive(files):
    files = {n: c for n, c in files.items() if n not in (".", "..") and len(n.encode()) < 200}
    env = start(by_hand(files={f"app/{n}": [0o644, c.decode("latin-1")] for n, c in files.items()}))
    key = env.state_key()
    env.step("touch x && rm x")
    assert env.state_key() == key
    assert env.step("find . -type f -print0 | tr -dc '\\0' | wc -c").observation == f"exit 0\n{len(files)}"


def test_hostile_trees_are_failures_and_no_errors():
    env = start(limits=Limits(command_s=20.0, disk_mb=8))
    assert "lost" in env.step("for i in $(seq 20000); do : > $RANDOM.$i; done; truncate -s 7M sparse").observation
    env.step("mkdir -m 0 shut; chmod 0 .")
    assert env.step("chmod 755 /app; stat -c %a /app/shut").observation == "exit 0\n0"
    env.step("x=$(printf 'd%.0s' $(seq 200)); for i in $(seq 30); do mkdir $x && cd $x || break; done")
    assert env.step("ls").info["exit"] in (0, 137)
    assert env.step("submit").reward == 0.0


def test_without_bubblewrap_the_message_says_what_to_do(monkeypatch, tmp_path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho no namespaces here >&2\nexit 1\n")
    fake.chmod(0o755)
    for binary, said in ((None, "needs Linux and bubblewrap. Run: "), (str(fake), "no namespaces here. Run: ")):
        monkeypatch.setattr(terminal_sandbox, "bwrap_binary", lambda b=binary: b)
        with pytest.raises(SandboxUnavailable, match=said):
            start(by_hand(files={f"app/{said[:2]}": [0o644, ""]}))


def test_no_descriptor_is_left_open():
    env, before = start(), len(os.listdir("/proc/self/fd"))
    for i in range(5):
        env.step(f"echo {i}")
    env.step("yes descriptor")
    assert len(os.listdir("/proc/self/fd")) == before
