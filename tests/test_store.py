"""The step cache: what survives crashes, corruption, full disks and races."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.store import NotMade, append_jsonl, found_only, git_state, load_manifest, read_jsonl, run_step, source_hash

ROOT = Path(__file__).resolve().parent.parent


def step(root, fn, config=1, **kwargs):
    return run_step("train", config, fn, root=root, **{"source": "lib.episode"} | kwargs)


def write(text, result=None):
    def fn(work):
        (work / "out.txt").write_text(text)
        return result

    return fn


def fail(work):
    raise AssertionError("a finished step must not run again")


def test_found_only_makes_nothing(tmp_path):
    with found_only(), pytest.raises(NotMade, match="train-.* is not in"):
        step(tmp_path, fail)
    assert not list(tmp_path.iterdir())
    made = step(tmp_path, write("x"))
    with found_only():
        assert step(tmp_path, fail) == made
        with pytest.raises(NotMade):
            step(tmp_path, fail, config=2)
        (made / "out.txt").write_text("damaged")
        with pytest.raises(NotMade):
            step(tmp_path, fail)
    assert step(tmp_path, write("x")) == made and (made / "out.txt").read_text() == "x"


def test_a_finished_step_is_found_again(tmp_path):
    first = step(tmp_path, write("x", {"tokens": 7}))
    assert step(tmp_path, fail) == first
    assert first.name == f"train-{load_manifest(first)['key'][:12]}"
    assert load_manifest(first)["result"] == {"tokens": 7} and load_manifest(first)["git"] == git_state()
    second = step(tmp_path, write("y"), inputs=[first])
    assert second != first and load_manifest(second)["inputs"] == [load_manifest(first)["key"]]
    assert step(tmp_path, write("z"), source="lib.store") != first != step(tmp_path, write("z"), config=1.0)


def test_source_is_that_of_the_function(tmp_path):
    fn = write("x")
    out = run_step("train", 1, fn, root=tmp_path)
    assert load_manifest(out)["source"] == source_hash(fn.__module__)
    assert run_step("train", 1, functools.partial(fn), root=tmp_path) == out
    fn.__module__ = "__main__"  # as in a notebook cell
    with pytest.raises(ValueError, match="no source found for module '__main__'; give source="):
        run_step("train", 1, fn, root=tmp_path)


def test_bad_requests(tmp_path):
    for kwargs, error in [
        ({"inputs": "abc"}, TypeError),
        ({"inputs": [tmp_path]}, ValueError),
        ({"config": {1}}, TypeError),
        ({"source": "no_such_module"}, ValueError),
    ]:
        with pytest.raises(error):
            step(tmp_path, fail, **kwargs)
    with pytest.raises(ValueError, match="step name"):
        run_step("../x", 1, fail, root=tmp_path, source="lib.store")
    assert not list(tmp_path.iterdir())


def test_exception_leaves_work_to_resume_from(tmp_path):
    def crash(work):
        (work / "checkpoint").write_text("half")
        raise KeyError("bug")

    with pytest.raises(KeyError, match="bug"):
        step(tmp_path, crash)
    assert not list(tmp_path.rglob("DONE")) and not list(tmp_path.rglob("manifest.json"))
    out = step(tmp_path, write("x"))
    assert (out / "checkpoint").read_text() == "half" and load_manifest(out)["resumed"]
    assert not list(tmp_path.glob("*.work"))


@pytest.mark.parametrize("damage", ["change", "remove", "tear"])
def test_damaged_step_is_built_again(tmp_path, capsys, damage):
    out = step(tmp_path, write("right"))
    target = out / ("DONE" if damage == "tear" else "out.txt")
    target.unlink() if damage == "remove" else target.write_text("wrong")  # as long as "right"
    assert step(tmp_path, write("right")) == out
    assert (out / "out.txt").read_text() == "right" and "damaged" in capsys.readouterr().err
    assert step(tmp_path, fail) == out and len(list(tmp_path.iterdir())) == 2  # the step and its lock


def test_crash_between_rename_and_done(tmp_path):
    out = step(tmp_path, write("x"))
    (out / "DONE").rename(out / "DONE.part")

    def resume(work):
        assert (work / "out.txt").read_text() == "x"

    assert step(tmp_path, resume) == out == step(tmp_path, fail)


SCRIPT = """
import sys, time
from pathlib import Path
from lib.store import run_step
root, seconds = Path(sys.argv[1]), float(sys.argv[2])
def fn(work):
    with open(root / "log", "a") as f:
        f.write("ran\\n")
    (work / "checkpoint").write_text("half")
    print("inside", flush=True)
    time.sleep(seconds)
print(run_step("train", 1, fn, root=root, source="lib.episode"))
"""


def start(root, seconds):
    command = [sys.executable, "-c", SCRIPT, str(root), str(seconds)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_four_processes_do_the_work_once(tmp_path):
    processes = [start(tmp_path, 1.5) for _ in range(4)]
    outputs = [p.communicate(timeout=60)[0].split() for p in processes]
    assert all(p.returncode == 0 for p in processes)
    assert (tmp_path / "log").read_text() == "ran\n" and len({o[-1] for o in outputs}) == 1


def test_killed_process_is_resumed(tmp_path):
    process = start(tmp_path, 600)
    assert process.stdout.readline() == "inside\n"
    process.kill()
    process.communicate()
    assert not list(tmp_path.rglob("DONE"))

    def resume(work):
        assert (work / "checkpoint").read_text() == "half"
        (work / "checkpoint").write_text("whole")

    out = step(tmp_path, resume)
    assert (out / "checkpoint").read_text() == "whole" and (out / "DONE").exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("file", ["out.txt", "manifest.json.part"])
def test_full_disk(tmp_path, file):
    """In the step itself, and when its manifest is written."""

    def fn(work):
        (work / file).symlink_to("/dev/full")
        (work / "out.txt").write_text("x")

    with pytest.raises(RuntimeError, match=r"the disk is full in step .*train-.* MB free"):
        step(tmp_path, fn)
    assert not list(tmp_path.rglob("DONE"))
    (next(tmp_path.glob("*.work")) / file).unlink()
    assert (step(tmp_path, write("x")) / "out.txt").read_text() == "x"


rows = st.lists(st.dictionaries(st.text(), st.integers() | st.text() | st.none(), max_size=3), max_size=4)


@settings(deadline=None)
@given(rows, st.data())
def test_jsonl_loses_at_most_the_torn_line(tmp_path_factory, rows, data):
    path = tmp_path_factory.getbasetemp() / "torn.jsonl"
    path.write_bytes(b"")
    for row in rows:
        append_jsonl(path, row)
    assert read_jsonl(path) == rows
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    kept = rows[: whole[:cut].count(b"\n")]
    assert read_jsonl(path) == kept
    append_jsonl(path, {"new": 1})
    assert read_jsonl(path) == [*kept, {"new": 1}]


def test_jsonl_errors(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a":\n{"a": 3}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_jsonl(path)
    with pytest.raises(TypeError, match="takes a dict"):
        append_jsonl(path, [1])
