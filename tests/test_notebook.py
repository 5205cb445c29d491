"""The notebook runner: every trap of papermill that it closes."""

import json
import os
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from lib.notebook import NotebookFailed, main, run_notebook, strip_outputs
from lib.parameters import check_parameter, parse_parameter, read_parameters

ROOT = Path(__file__).resolve().parent.parent
PARAMETERS = """
# the profile
profile = "tiny"
rate: float = 0.1
seeds: list[int] = [0, 1]
model: str | None = None
steps = 5
shown = False
"""


def notebook(path, *sources, parameters=PARAMETERS):
    first = new_code_cell(parameters, metadata={"tags": ["parameters"]})
    foreign = {"kernelspec": {"name": "foreign", "display_name": "Foreign", "language": "julia"}}
    cells = [new_markdown_cell("# Title"), first, *map(new_code_cell, sources)]
    nbformat.write(new_notebook(cells=cells, metadata=foreign), path)
    return path


def specs(parameters=PARAMETERS):
    return read_parameters(new_notebook(cells=[new_code_cell(parameters, metadata={"tags": ["parameters"]})]))


def test_declared_parameters():
    assert {name: (p.default, p.types) for name, p in specs().items()} == {
        "profile": ("tiny", ("str",)), "rate": (0.1, ("float",)), "seeds": ([0, 1], ("list",)),
        "model": (None, ("str", "None")), "steps": (5, ("int",)), "shown": (False, ("bool",)),
    }  # fmt: skip
    assert specs("x = None")["x"].types == ("None", "str")
    for bad in ("x = f()", "x = 1 + 1", "import os", "x = (1, 2)", "x: Path = 'a'", "x: int = 'a'", "x = y = 1",
                "x: int", "a.b = 1", "%time"):  # fmt: skip
        with pytest.raises(ValueError, match="parameters cell"):
            specs(bad)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("profile", "007", "007"), ("model", "None", "None"), ("rate", "1", 1.0), ("rate", "1e-4", 1e-4),
        ("steps", "7", 7), ("seeds", "[1,2]", [1, 2]), ("shown", "True", True), ("shown", "false", False),
    ],
)  # fmt: skip
def test_command_line_values(name, text, value):
    spec = specs()[name]
    got = check_parameter(name, parse_parameter(name, text, spec), spec)
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [("rate", "fast"), ("rate", "true"), ("steps", "007"), ("steps", "1.0"), ("steps", "True"), ("seeds", "1,2"),
     ("seeds", "3"), ("seeds", "[1, 2.5]"), ("shown", "1")],
)  # fmt: skip
def test_wrong_types_on_the_command_line(name, text):
    spec = specs()[name]
    with pytest.raises(ValueError, match=f"parameter {name}"):
        check_parameter(name, parse_parameter(name, text, spec), spec)


def test_refused_before_anything_starts(tmp_path, capsys):
    path = notebook(tmp_path / "01.ipynb", "raise SystemError")
    for given, message in [
        ({"profle": "x"}, "no parameter 'profle'.*did you mean 'profile'.*there are: profile, rate, seeds, model"),
        ({"profile": 3}, "profile: 3 is int, expected str"),
        ({"seeds": (1, 2)}, "tuple, expected list"),
    ]:
        with pytest.raises(ValueError, match=message):
            run_notebook(path, tmp_path / "out", given)
    assert main([str(path), "--out", str(tmp_path / "out"), "-p", "profle", "x"]) == 1
    assert "did you mean 'profile'" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_runs_in_the_root_with_this_interpreter(tmp_path, monkeypatch):
    """A foreign kernelspec called python3 and another working directory make no difference."""
    spec = tmp_path / "jupyter" / "kernels" / "python3"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(json.dumps({"argv": ["/bin/false"], "display_name": "x", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    source = (
        "import json, os, sys, lib\nprint(json.dumps([profile, rate, seeds, model, steps, sys.executable, os.getcwd(), "
    )
    source += "lib.__file__, os.environ['OMP_NUM_THREADS']]))"
    path = notebook(tmp_path / "01.ipynb", source)
    before = path.read_text()
    out = run_notebook(path, tmp_path / "out", {"profile": 'a"\\', "rate": 2, "model": "007"})
    assert (
        out == tmp_path / "out" / "01.ipynb" and os.listdir(out.parent) == ["01.ipynb"] and path.read_text() == before
    )
    nb = nbformat.read(out, as_version=4)
    got = json.loads(nb.cells[-1].outputs[0].text)
    assert got[:5] == ['a"\\', 2.0, [0, 1], "007", 5]
    assert got[5:] == [sys.executable, str(ROOT), str(ROOT / "lib" / "__init__.py"), "1"]
    assert nb.metadata.kernelspec.name == "python3" and nb.metadata.kernelspec.language == "python"


def test_failing_cell(tmp_path, capsys):
    path = notebook(tmp_path / "02.ipynb", "x = 1", "# divide\nx / 0", "print('never')")
    out = tmp_path / "out"
    out.mkdir()
    (out / "02.ipynb").write_text("stale")
    assert main([str(path), "--out", str(out), "-p", "steps", "3"]) == 1
    error = capsys.readouterr().err
    assert "02.ipynb, code cell 3: # divide\n  ZeroDivisionError: division by zero" in error
    assert os.listdir(out) == ["02.failed.ipynb"] and "ZeroDivisionError" in (out / "02.failed.ipynb").read_text()


def test_time_limit_covers_all_cells_together(tmp_path):
    path = notebook(tmp_path / "03.ipynb", *["import time; time.sleep(1.5)"] * 3)  # each is well under the limit
    with pytest.raises(NotebookFailed, match=r"03.ipynb, code cell \d: .*\n.*time limit of 3.5 s"):
        run_notebook(path, tmp_path / "out", timeout_s=3.5)
    assert os.listdir(tmp_path / "out") == ["03.failed.ipynb"]


def test_an_early_exit_is_no_success(tmp_path):
    path = notebook(tmp_path / "04.ipynb", "import sys; sys.exit(0)", "print('never')")
    with pytest.raises(NotebookFailed, match="code cell 2: import sys.*\n.*cells after it did not run"):
        run_notebook(path, tmp_path / "out")


def test_strip_outputs(tmp_path):
    path = notebook(tmp_path / "a.ipynb", "x")
    nb = nbformat.read(path, as_version=4)
    sources = [c.source for c in nb.cells]
    nb.cells[2].update(execution_count=3, outputs=[nbformat.v4.new_output("stream", text="secret")])
    nb.cells[2].metadata.update(execution={"t": 1})
    nbformat.write(nb, path)
    shutil.copy(path, tmp_path / "b.ipynb")
    assert strip_outputs(path) and not strip_outputs(path)
    after = nbformat.read(path, as_version=4)
    assert [c.source for c in after.cells] == sources and after.cells[1].metadata.tags == ["parameters"]
    assert not after.cells[2].outputs and after.cells[2].execution_count is None and not after.cells[2].metadata
    assert main(["--strip", str(tmp_path / "b.ipynb")]) == 0
    assert (tmp_path / "b.ipynb").read_text() == path.read_text()
