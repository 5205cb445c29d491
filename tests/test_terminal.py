"""Terminal-Bench: tasks in Harbor's format, the sandbox's promises, episodes, and attempts to escape."""

import os
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.envs import terminal_sandbox
from lib.envs.base import NoStepMeasure, Task, env_class
from lib.envs.terminal import Terminal, TerminalConfig, parse
from lib.envs.terminal_procedural import KINDS, procedural_tasks
from lib.envs.terminal_run import Bwrap, Docker, read_reward
from lib.envs.terminal_sandbox import ROOT, TOPS, Limits
from lib.envs.terminal_tasks import LOCAL, archive, main, read_dockerfile, read_task, read_tasks, write_task
from lib.sandbox import SandboxUnavailable

LOCAL_TASKS = read_tasks(LOCAL)
TEST = '#!/bin/bash\nr=0; [ "$(cat /app/out)" = yes ] && r=1\necho $r > /logs/verifier/reward.txt\n'


def by_hand(test=TEST, **changes):
    data = dict(
        instruction="write yes to out", workdir="/app", setup=[], needs=[], image="", network=False, memory_mb=2048, cpus=1,
        verify_s=20.0, files={"app/a.txt": [0o644, "one\ntwo\n"], "app/run.sh": [0o755, "echo ran\n"]},
        tests={"tests/test.sh": [0o755, test]}, solution={"solution/solve.sh": [0o755, "echo yes > out\n"]},
    )  # fmt: skip
    return Task("by-hand", data | changes)


def start(task=None, limits=None, **config):
    env = Terminal(TerminalConfig(limits=limits or Limits(command_s=5.0), **config))
    env.reset(task or by_hand(), 0)
    return env


@pytest.mark.parametrize("kind", KINDS)
def test_generated_tasks_are_solved_by_their_solution_and_not_by_nothing(kind):
    for task in procedural_tasks("train", 2, (kind,)):
        env = start(task)
        before = env.snapshot()
        assert env.step("submit")[1:3] == (0.0, True)
        env.restore(before)
        assert env.solve().code == 0
        assert env.step("submit")[1:] == (1.0, True, {"solved": True, "invalid": False, "exit": None, "limit": "",
                                                      "verifier": "", "score": 1.0})  # fmt: skip


@pytest.mark.parametrize("task", LOCAL_TASKS, ids=lambda t: t.id)
def test_local_tasks_are_solved_by_their_solution_and_not_by_nothing(task):
    if task.data["needs"] and all(n.startswith("the command ") for n in task.data["needs"]):
        pytest.skip(f"this machine lacks {task.data['needs']}")
    env = start(task, task_set="local", limits=Limits())
    before = env.snapshot()
    nothing = env.step("submit")
    assert nothing.reward == 0 and "Error" in nothing.info["verifier"]
    env.restore(before)
    assert env.solve().code == 0
    last = env.step("submit")
    assert last.reward == 1.0 and last.info["solved"], last.info["verifier"]


def test_there_are_local_tasks_and_they_are_a_test_set():
    config = TerminalConfig(task_set="local")
    assert len(LOCAL_TASKS) >= 6 and all(t.data["solution"] for t in LOCAL_TASKS)
    runnable = sum(not t.data["needs"] for t in LOCAL_TASKS)
    assert len(Terminal.tasks(config, "test", runnable)) == runnable
    with pytest.raises(ValueError, match="test set"):
        Terminal.tasks(config, "train", 1)
    with pytest.raises(ValueError, match=f"99 tasks asked for, {runnable} of"):
        Terminal.tasks(config, "test", 99)


def test_no_goal_is_in_two_splits_and_the_first_tasks_do_not_depend_on_n():
    split = {s: procedural_tasks(s, 150) for s in ("train", "valid", "test")}
    goals = {s: {(t.data["instruction"], t.data["tests"]["tests/test.sh"][1]) for t in ts} for s, ts in split.items()}
    assert not goals["train"] & (goals["valid"] | goals["test"]) and not goals["valid"] & goals["test"]
    assert procedural_tasks("train", 5) == split["train"][:5]
    assert {t.id for t in split["train"]}.isdisjoint({t.id for t in split["test"]})


def test_an_episode_played_by_hand():
    env = start(show_budget=True)
    messages = env.reset(by_hand(), 0, budget=4)
    assert messages[1]["content"] == "write yes to out\nYou have 4 turns left."
    assert env.step("cat a.txt; pwd").observation == "exit 0\none\ntwo\n/app\nYou have 3 turns left."
    step = env.step("```bash\nls nothing\n```")
    assert step.observation.startswith("exit 2\nstderr: ls: cannot access 'nothing'") and step.info["exit"] == 2
    assert env.step("bash run.sh > out; echo yes > out").observation == "exit 0\nYou have 1 turn left."
    last = env.step("Submit")
    assert (last.observation, last.reward, last.done, last.info["solved"]) == ("", 1.0, True, True)
    with pytest.raises(RuntimeError, match="over after 4 of 4"):
        env.step("ls")
    with pytest.raises(NoStepMeasure):
        env.step_quality("ls")


def test_invalid_answers_end_the_episode():
    env = start(max_invalid=2)
    first, second = env.step("  "), env.step("a\0b")
    assert first.info["invalid"] and not first.done and second.done and second.info["invalid"]
    assert parse("x" * 30_000) is None and parse("\ud800") is None and parse("```\nls\n```") == "ls"


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_any_text_is_a_command_or_invalid(text):
    found = parse(text)
    assert found is None or found.encode() and "\0" not in found


def test_a_snapshot_brings_everything_back():
    env = start()
    env.step(
        "mkdir d; echo x > d/f; chmod 000 d/f; chmod 555 d; ln -s d/f link; mkfifo pipe; echo h > ~/h; echo t > /tmp/t"
    )
    blob, key = env.snapshot(), env.state_key()
    look = "stat -c '%A %n' d d/f link pipe ~/h /tmp/t; readlink link; cat d/f"
    actions = ("echo more > new", look, "submit")
    first = [(env.step(a), env.snapshot(), env.state_key()) for a in actions]
    other = Terminal(env.config)
    other.restore(blob)
    assert other.state_key() == key
    assert [(other.step(a), other.snapshot(), other.state_key()) for a in actions] == first
    shown = first[1][0].observation
    assert "dr-xr-xr-x d\n---------- d/f\nlrwxrwxrwx link\nprw-r--r-- pipe" in shown and "Permission denied" in shown
    with pytest.raises(ValueError, match="not a terminal snapshot"):
        env.restore(b"something")
    small = Terminal(TerminalConfig(max_turns=2))
    with pytest.raises(ValueError, match="budget of 10 turns"):
        small.restore(blob)


def test_states_are_equal_where_the_files_are():
    env = start()
    key = env.state_key()
    env.step("ls")
    assert env.state_key() == key
    env.step("echo 1 > b")
    assert env.state_key() != key
    env.step("rm b")
    assert env.state_key() == key
    env.step("chmod 600 a.txt")
    assert env.state_key() != key


def test_later_changes_have_later_dates():
    env = start()
    for command in ("echo 1 > first", "ls", "echo 2 > second"):
        env.step(command)
    assert (
        env.step("[ second -nt first ] && [ first -nt a.txt ]; stat -c %Y a.txt first second").observation
        == ("exit 0\n1735689600\n1735689600\n1735689660")
        or env.step("[ second -nt first ]").info["exit"] == 0
    )


ESCAPES = {
    "network": ("exec 3<>/dev/tcp/1.1.1.1/53", "Network is unreachable"),
    "other machines": ("cat /proc/net/dev | tail -n +3 | cut -d: -f1", "exit 0\n    lo"),
    "the system": (
        "touch /usr/x; touch /etc/x; touch /x; touch /opt/bin/x; echo > /etc/passwd",
        "Read-only file system",
    ),
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
        f"(trap '' TERM HUP; setsid sleep {marker} & while :; do kill -9 -1; done) >/dev/null 2>&1 & disown; echo no > out"
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
    ("command", "limit"),
    [
        (":(){ :|:& };:; sleep 30", ""),
        ("head -c 100M /dev/zero > big; for i in $(seq 40); do head -c 4M /dev/zero > f$i; done", "disk"),
        (
            "for i in 1 2 3 4 5 6; do python3 -c 'x = bytearray(90 << 20); import time; time.sleep(20)' & done; wait",
            "memory",
        ),
        ("python3 -c 'x = bytearray(1 << 30)'", ""),
        ("echo kept > kept; sleep 60", "time"),
    ],
)
def test_limits_hold(command, limit):
    env = start(limits=Limits(command_s=2.0, memory_mb=256, disk_mb=8, processes=32))
    began = time.monotonic()
    step = env.step(command)
    assert step.info["exit"] != 0 and limit in step.info["limit"] and time.monotonic() - began < 60
    assert env.step("cat a.txt").observation == "exit 0\none\ntwo"
    assert (env.step("cat kept").info["exit"] == 0) == (limit == "time")


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
    env = start(next(t for t in LOCAL_TASKS if t.id == "config-to-json"), task_set="local")
    env.step(
        "echo 'import os; os._exit(0)' | tee json.py pathlib.py sitecustomize.py > ~/x; mkdir -p ~/.local; echo exit > ~/.bashrc"
    )
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


def test_a_task_written_in_harbors_format_is_read_back(tmp_path):
    for task in procedural_tasks("train", 12):
        write_task(task, tmp_path / task.id)
        assert read_task(tmp_path / task.id) == task
    assert len(read_tasks(tmp_path)) == 12


def test_what_bubblewrap_cannot_run_is_named(tmp_path, capsys):
    folder = tmp_path / "build-it"
    for part, text in {
        "task.toml": '[environment]\ndocker_image = "someone/build-it:1"\nmemory = "4G"\ncpus = 2\ngpus = 1\n',
        "instruction.md": "Build it.\n",
        "environment/Dockerfile": "FROM ubuntu:24.04\nRUN apt-get update && \\\n    apt-get install -y tmux\nWORKDIR /srv\n",
        "tests/test.sh": "curl -LsSf https://example.org/uv.sh | sh\nuvx pytest /tests/test_outputs.py\n",
    }.items():
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        (folder / part).write_text(text)
    data = read_task(folder).data
    assert data["memory_mb"] == 4096 and data["network"]
    assert [n.split(" ")[0] for n in data["needs"]] == ["RUN", "files", "a", "curl"]
    config = TerminalConfig(task_set="official", folder=str(tmp_path))
    with pytest.raises(ValueError, match="0 of 1 run under bwrap. build-it needs RUN apt-get"):
        Terminal.tasks(config, "test", 1)
    with pytest.raises(ValueError, match="cannot run under bwrap: RUN apt-get"):
        Bwrap(Limits()).open(data)
    assert main([str(tmp_path)]) == 0 and "0 of 1 tasks run" in capsys.readouterr().out
    docker = TerminalConfig(task_set="official", folder=str(tmp_path), provider="docker")
    assert [t.id for t in Terminal.tasks(docker, "test", 1)] == ["build-it"]
    command = Docker(Limits()).start_command(data, "box")
    assert command[:7] == ["docker", "run", "--detach", "--rm", "--init", "--name", "box"]
    assert command[-3:] == ["someone/build-it:1", "sleep", "infinity"]
    joined = " ".join(command)
    assert "--network bridge" in joined and "--memory 4096m" in joined and "--cpus 2" in joined
    assert "--network none" in " ".join(Docker(Limits()).start_command(data | {"network": False}, "box"))
    (folder / "tests/test.sh").unlink()
    with pytest.raises(ValueError, match="tests/test.sh is missing"):
        read_task(folder)


def test_a_dockerfile_is_followed(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.sh").write_text("echo a\n")
    (tmp_path / "b.txt").write_text("b\n")
    text = "# comment\nFROM python:3.11-slim\nWORKDIR /app\nWORKDIR sub\nCOPY src/ .\nCOPY b.txt /tmp/c.txt\nRUN ls > x\nCMD bash\n"
    workdir, files, setup, needs = read_dockerfile(text, tmp_path)
    assert (workdir, setup, needs) == ("/app/sub", ["cd /app/sub; ls > x"], [])
    assert files == {"app/sub/a.sh": [0o644, "echo a\n"], "tmp/c.txt": [0o644, "b\n"]}
    needs = read_dockerfile("FROM a AS b\nFROM debian\nENV X=1\nCOPY ../up /app\n", tmp_path)[3]
    assert [n.split(" ")[0] for n in needs] == ["the", "the", "ENV", "COPY"]


def test_docker_says_what_is_missing(monkeypatch, tmp_path):
    docker = Docker(Limits())
    with pytest.raises(ValueError, match="no docker_image"):
        docker.start_command(by_hand().data, "box")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match="install Docker, or use 'bwrap'"):
        docker.open(by_hand().data)
    fake = tmp_path / "docker"
    fake.write_text("#!/bin/sh\necho Cannot connect to the Docker daemon >&2\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(SandboxUnavailable, match="Cannot connect to the Docker daemon"):
        docker.open(by_hand().data)
    assert docker.exec_command("ls", 5.0, "/app")[-7:] == ["timeout", "-s", "KILL", "5.0", "bash", "-c", "ls"]
    assert shutil.which("bash") is None or True


def test_demonstrations_are_of_mixed_quality():
    task = procedural_tasks("train", 1)[0]
    rewards = []
    for seed in range(16):
        env = start(task)
        act = Terminal.demonstrator(env.config, task, seed)
        while not env.over and env.turns < 10:
            step = env.step(act(env))
        rewards.append(step.reward)
    assert 3 <= sum(rewards) <= 14


def test_archives_hold_what_was_put_in():
    files = {"app/x": [0o640, "x"], "root/deep/er/y": [0o755, "AAE=", "base64"], "tmp/empty/": [0o700, ""]}
    saved, data = archive(files), by_hand(files=files).data
    at = Bwrap(Limits())
    at.open(data)
    assert saved and TOPS == ("app", "root", "tmp")
    ran = at.run("stat -c '%a %n' /app/x /root/deep/er/y /tmp/empty; od -An -tx1 /root/deep/er/y")
    assert ran.stdout == "640 /app/x\n755 /root/deep/er/y\n700 /tmp/empty\n 00 01\n"


@pytest.mark.parametrize(
    "change",
    [dict(task_set="all"), dict(provider="vm"), dict(max_turns=0), dict(kinds=("find", "cook")), dict(shown=1), dict(limits=3),
     dict(provider="docker"), dict(show_budget=1)],
)  # fmt: skip
def test_bad_configs_are_refused(change):
    with pytest.raises(ValueError):
        TerminalConfig(**change)


def test_bad_input_is_refused():
    assert env_class("terminal") is Terminal
    for bad in (dict(command_s=0.0), dict(memory_mb=1)):
        with pytest.raises(ValueError, match="the least allowed"):
            Limits(**bad)
    env = Terminal(TerminalConfig())
    with pytest.raises(RuntimeError, match="no episode"):
        env.step("ls")
    with pytest.raises(ValueError, match="budget=11"):
        env.reset(by_hand(), 0, budget=11)
    with pytest.raises(ValueError, match="not a terminal task: no files"):
        env.reset(Task("x", {"instruction": "do"}), 0)
    with pytest.raises(ValueError, match="setup fails with exit 3"):
        env.reset(by_hand(setup=["exit 3"]), 0)
    with pytest.raises(ValueError, match="no task.toml below"):
        read_tasks(LOCAL / "log-errors" / "tests")
