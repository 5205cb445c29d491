"""Sweeps: points are worked off once, on every engine; a failed one is named and stops no other."""

import importlib.util
import json
import signal
import subprocess
import sys
import time

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from lib import sweep as driver
from lib.config import ROOT
from lib.sweep_engines import ENGINES
from lib.sweep_file import read_sweep
from lib.sweep_points import ConfigPoint, read_todo, write_todo

# What the engines are tried with: a notebook that saves a table, and fails for one value of its grid.
NOTEBOOK = [
    "import pandas as pd\nfrom lib.tables import save_table",
    "size = 1\nscale = 1.0",
    "assert size != 3, 'three is too many'",
    "save_table(pd.DataFrame({'T': [1, 2], 'lead': [size * scale, 2 * size * scale]}), 'leads', 'tiny');",
]


@pytest.fixture
def notebook_sweep(tmp_path, monkeypatch):
    """A sweep over a small notebook, 2 x 2 points, and its output folder."""
    monkeypatch.setattr(driver, "SWEEPS", tmp_path / "sweeps")
    cells = [new_code_cell(s, metadata={"tags": ["parameters"]} if i == 1 else {}) for i, s in enumerate(NOTEBOOK)]
    nbformat.write(new_notebook(cells=cells), tmp_path / "leads.ipynb")
    file = tmp_path / "small.toml"
    file.write_text(
        f"notebook = '{tmp_path}/leads.ipynb'\ntable = 'leads'\nvalue = 'lead'\n"
        "[grid]\nsize = [1, 3]\nscale = [1.0, 0.5]\n[figure]\nx = 'T'\n[slurm]\ncluster = 'local'\n"
    )
    return file, tmp_path / "sweeps" / "small"


def check_notebook_sweep(file, out, capfd, *argv):
    """Two points of four fail and are named with notebook and cell; the others are in the table, by hand."""
    assert driver.main([str(file), *argv]) == 1
    err = capfd.readouterr().err
    assert "4 points, 0 of them are finished" in err and "2 of 4 points are in results.csv" in err
    assert "3/4" in err and "left" in err
    for scale in (1.0, 0.5):
        where = "leads.ipynb, code cell 3: assert size != 3, 'three is too many'\n  AssertionError: three is too many"
        assert f"  size-3,scale-{scale}: NotebookFailed: " in err and where in err
    expected = [(s, c, t, t * s * c) for s in (1,) for c in (1.0, 0.5) for t in (1, 2)]
    df = pd.read_csv(out / "results.csv")
    assert list(df) == ["size", "scale", "T", "lead"] and [tuple(r) for r in df.to_numpy()] == expected
    assert (out / "figure.png").stat().st_size > 1000 and (out / "figure.pdf").exists()
    assert set(json.loads((out / "manifest.json").read_text())["failed"]) == {"size-3,scale-1.0", "size-3,scale-0.5"}


def test_local_processes_resume_and_failed_points(notebook_sweep, capfd):
    file, out = notebook_sweep
    before = {p: p.stat().st_mtime_ns for p in (ROOT / "results" / "tables").iterdir()}
    check_notebook_sweep(file, out, capfd, "--workers", "2")
    assert {p: p.stat().st_mtime_ns for p in (ROOT / "results" / "tables").iterdir()} == before
    made = {p: p.stat().st_mtime_ns for p in out.glob("points/*.result.json") if "size-3" not in p.name}
    assert len(made) == 2
    notebook = file.parent / "leads.ipynb"
    text = file.read_text()
    # Another order and fewer points: nothing is left to do.
    file.write_text(text.replace("[1, 3]", "[1]").replace("[1.0, 0.5]", "[0.5, 1.0]"))
    assert driver.main([str(file)]) == 0
    assert "2 points, 2 of them are finished" in capfd.readouterr().err
    assert {p: p.stat().st_mtime_ns for p in made} == made
    assert pd.read_csv(out / "results.csv")["scale"].tolist() == [0.5, 0.5, 1.0, 1.0]
    file.write_text(text.replace("[1, 3]", "[3]"))  # failed ones are tried again
    notebook.write_text(notebook.read_text().replace("size != 3", "size < 4"))  # and are keyed by the notebook
    assert driver.main([str(file)]) == 0
    assert pd.read_csv(out / "results.csv").lead.tolist() == [3.0, 6.0, 1.5, 3.0]


def missing(package):
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None, reason=f"{package} is not installed (an extra of pyproject.toml)"
    )


@missing("submitit")
def test_slurm_path_with_the_local_executor_of_submitit(notebook_sweep, capfd):
    check_notebook_sweep(*notebook_sweep, capfd, "--engine", "slurm", "--workers", "2")
    assert list((notebook_sweep[1] / "submitit").glob("*_submitted.pkl"))
    notebook_sweep[0].write_text(notebook_sweep[0].read_text() + "tea = 1\n")
    assert driver.main([str(notebook_sweep[0]), "--engine", "slurm"]) == 1
    assert "[slurm]: " in capfd.readouterr().err


@missing("distributed")
def test_dask_cluster_of_this_machine(notebook_sweep, capfd):
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        check_notebook_sweep(*notebook_sweep, capfd, "--engine", "dask", "--scheduler", cluster.scheduler_address)
    assert driver.main([str(notebook_sweep[0]), "--engine", "dask"]) == 1
    assert "--scheduler tcp://host:8786" in capfd.readouterr().err


def test_a_killed_point_is_named_and_stops_no_other(notebook_sweep, capfd):
    file, out = notebook_sweep
    sweep = read_sweep(file)
    with ENGINES["local"](out, {}, None) as start:

        def kill_the_first(args):
            job = start(args)
            if "size-1,scale-1.0" in args[-1]:
                job.send_signal(signal.SIGKILL)
            return job

        results, failed = driver.run_sweep(sweep, kill_the_first, 2, out)
    assert len(results) == 1 and len(failed) == 3
    assert failed["size-1,scale-1.0"].startswith("its process ended with status -9 and left no result")


def test_a_config_point_has_a_process_and_an_error_of_its_own(tmp_path):
    values = {"env_config.size": 2, "train_tasks": 900}  # there are not so many maps of 2 x 2
    write_todo(ConfigPoint("smoke", "frozenlake", "budgetmix", values, 0), tmp_path / "p.json")
    assert subprocess.run([sys.executable, "-m", "lib.sweep_points", tmp_path / "p.json"], cwd=ROOT).returncode == 0
    found = json.loads((tmp_path / "p.result.json").read_text())
    assert "rows" not in found and found["error"].startswith("ValueError: 900 train maps asked for, only ")
    assert "Traceback" in (tmp_path / "p.log").read_text()
    assert found["key"] == read_todo(tmp_path / "p.json").key()


def test_two_sweeps_of_one_name_are_refused(notebook_sweep, capfd):
    from filelock import FileLock

    file, out = notebook_sweep
    out.mkdir(parents=True)
    start = time.monotonic()
    with FileLock(out / ".lock"):
        assert driver.main([str(file)]) == 1
    assert "another sweep called small is running" in capfd.readouterr().err and time.monotonic() - start < 30
