"""Terminal-Bench: tasks in Harbor's format, providers, episodes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from terminal_parts import by_hand, start

from lib.envs.base import NoStepMeasure, Task, env_class
from lib.envs.terminal import Terminal, TerminalConfig, parse
from lib.envs.terminal_procedural import KINDS, procedural_tasks
from lib.envs.terminal_run import Bwrap, Docker
from lib.envs.terminal_sandbox import Limits
from lib.envs.terminal_tasks import LOCAL, main, read_dockerfile, read_task, read_tasks, write_task
from lib.sandbox import SandboxUnavailable

LOCAL_TASKS = read_tasks(LOCAL)


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
    trees = {s: {str(t.data["files"]) for t in ts} for s, ts in split.items()}
    assert all(28 <= len(trees[s]) <= 32 for s in split) and not trees["train"] & (trees["valid"] | trees["test"])
    assert all(len({str(t.data) for t in ts}) == 150 for ts in split.values())
    with pytest.raises(ValueError, match="999 valid tasks asked for, .* allow more kinds"):
        procedural_tasks("valid", 999, ("count", "sort"), 8, 1)


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
        "environment/Dockerfile": "FROM ubuntu:24.04\nRUN apt-get update && \\\n  apt-get install x\nWORKDIR /srv\n",
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
    text = "# comment\nFROM python:3.11-slim\nWORKDIR /app\nWORKDIR sub\nCOPY src/ .\nCOPY b.txt /tmp/c.txt\n"
    text += "COPY b.txt .\nRUN ls > x\nCMD bash\n"
    workdir, files, setup, needs = read_dockerfile(text, tmp_path)
    assert (workdir, setup, needs) == ("/app/sub", ["cd /app/sub; ls > x"], [])
    assert files == {"app/sub/a.sh": [0o644, "echo a\n"], "tmp/c.txt": [0o644, "b\n"], "app/sub/b.txt": [0o644, "b\n"]}
    needs = read_dockerfile("FROM a AS b\nFROM debian\nENV X=1\nCOPY ../up /app\n", tmp_path)[3]
    assert [n.split(" ")[0] for n in needs] == ["the", "the", "ENV", "COPY", "files"]  # no WORKDIR: /


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


@pytest.mark.parametrize(
    "change",
    [dict(task_set="all"), dict(provider="vm"), dict(max_turns=0), dict(kinds=("find", "cook")), dict(shown=1),
     dict(limits=3), dict(provider="docker"), dict(show_budget=1), dict(trees=0), dict(parts=4), dict(noise=1.5)],
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
