"""A strict notebook runner over papermill: what papermill only warns about or gets wrong is an error here.

python -m lib.notebook notebooks/01_pass_kt.ipynb --out results/executed -p profile smoke -p seeds '[1, 2]'
python -m lib.notebook --strip notebooks/*.ipynb
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import nbformat
import papermill
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager

from lib.parameters import check_parameter, find_parameter, parse_parameter, read_parameters

ROOT = Path(__file__).resolve().parent.parent
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
TIMEOUT_S = 86400


class NotebookFailed(RuntimeError):
    """A cell failed or ran out of time. The message names notebook, cell, its first source line and the error."""


class _Kernel(AsyncKernelManager):
    """This interpreter's own ipykernel, whatever kernelspecs are installed, in the repository root."""

    def _kernel_spec_manager_default(self) -> KernelSpecManager:
        return KernelSpecManager(parent=self, kernel_dirs=[])

    async def start_kernel(self, **kwargs: Any) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        kwargs |= {"cwd": str(ROOT), "env": os.environ | {"PYTHONPATH": path}, "transport_encryption": "auto"}
        await super().start_kernel(**kwargs)


def run_notebook(
    path: str | Path, out_dir: str | Path, parameters: dict[str, Any] | None = None, timeout_s: float = TIMEOUT_S
) -> Path:
    """Execute a notebook in the repository root and return the executed copy, `out_dir/<name>.ipynb`.

    timeout_s: limit in seconds for all cells together. While it runs the copy is called `.ipynb.part`; after a failure
    it is kept as `<name>.failed.ipynb` and no `<name>.ipynb` is left. Raises ValueError for a parameter that the
    notebook does not have or of another type (before anything starts), NotebookFailed when it does not run through.
    """
    path, out = Path(path), Path(out_dir, Path(path).name)
    if path.suffix != ".ipynb" or timeout_s <= 0:
        raise ValueError(f"expected an .ipynb file and a positive time limit, got {path} and {timeout_s}")
    specs = read_parameters(nbformat.read(path, as_version=4))
    values = {n: check_parameter(n, v, find_parameter(specs, n)) for n, v in (parameters or {}).items()}
    part, failed = out.with_name(f"{out.name}.part"), out.with_name(f"{out.stem}.failed.ipynb")
    out.parent.mkdir(parents=True, exist_ok=True)
    part.unlink(missing_ok=True)
    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # it takes `name: str | None` for an unknown parameter
    deadline, error = time.monotonic() + timeout_s, None
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not end in one of")  # .part
            papermill.execute_notebook(
                path, part, values, kernel_name=KERNEL["name"], language=KERNEL["language"],
                progress_bar=sys.stderr.isatty(), kernel_manager_class=_Kernel, extra_arguments=["--log-level=50"],
                timeout_func=lambda cell: max(0.1, deadline - time.monotonic()),  # seconds left for this cell
            )  # fmt: skip
    except papermill.PapermillExecutionError as e:
        error = f"{e.ename}: {e.evalue}"
    except TimeoutError:
        error = f"over the time limit of {timeout_s:g} s"
    except Exception as e:  # the kernel died or did not start
        error = f"{type(e).__name__}: {e}"
    error = _finish(part, error) if part.exists() else f"before the first cell: {error}"
    if error:
        out.unlink(missing_ok=True)
        if part.exists():
            os.replace(part, failed)
        raise NotebookFailed(f"{path}, {error} (kept as {failed})")
    failed.unlink(missing_ok=True)
    os.replace(part, out)
    return out


def _finish(part: Path, error: str | None) -> str | None:
    """Put the metadata of the executed copy right. Returns where it failed and why, or None."""
    nb = nbformat.read(part, as_version=4)
    nb.metadata.kernelspec = KERNEL
    for key in ("input_path", "output_path"):  # of this machine, and ending in .part
        nb.metadata.papermill.pop(key, None)
    nbformat.write(nb, part)
    cells = [c for c in nb.cells if c.cell_type == "code" and "injected-parameters" not in c.metadata.get("tags", [])]
    if error is None and any(c.source.strip() and c.execution_count is None for c in cells):
        error = "SystemExit: the cells after it did not run"  # papermill takes sys.exit(0) for success
    started = [i for i, c in enumerate(cells) if c.metadata.get("papermill", {}).get("start_time")]
    last = started[-1] if started else 0
    return error and f"code cell {last + 1}: {cells[last].source.strip().partition(chr(10))[0]}\n  {error}"


def strip_outputs(path: str | Path) -> bool:
    """Take outputs, execution counts and run metadata out of a notebook file. True when that changed it."""
    before = Path(path).read_text("utf-8")
    nb = nbformat.reads(before, as_version=4)
    nb.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    for cell in nb.cells:
        for key in ("papermill", "execution", "collapsed", "scrolled"):
            cell.metadata.pop(key, None)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    after = nbformat.writes(nb) + "\n"
    if after != before:
        part = Path(f"{path}.part")
        part.write_text(after, "utf-8")
        os.replace(part, path)
    return after != before


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lib.notebook", description="Run or strip notebooks.")
    parser.add_argument("notebooks", nargs="+", metavar="NOTEBOOK")
    parser.add_argument("--strip", action="store_true", help="take the outputs out of the files instead of running")
    parser.add_argument("--out", default="results/executed", help="folder for the executed copy (%(default)s)")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds for the notebook (%(default)s)")
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help="a parameter")
    args = parser.parse_args(argv)
    if not args.strip and (len(args.notebooks) > 1 or len(dict(args.p)) < len(args.p)):
        parser.error("give one notebook to run, and each parameter once")
    try:
        for path in args.notebooks:
            if args.strip:
                print(f"{path}: {'stripped' if strip_outputs(path) else 'was clean'}")
                continue
            specs, started = read_parameters(nbformat.read(path, as_version=4)), time.monotonic()
            values = {n: parse_parameter(n, text, find_parameter(specs, n)) for n, text in args.p}
            out = run_notebook(path, args.out, values, args.timeout)
            print(f"{path}: ok in {time.monotonic() - started:.1f} s, {out}")
    except (NotebookFailed, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
