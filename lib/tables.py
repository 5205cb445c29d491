"""Tables on disk: CSV to compute with, Markdown to read, TeX to print."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd

from lib.config import results_dir


def save_table(df: pd.DataFrame, name: str, profile: str, digits: int = 3) -> Path:
    """Write `tables/<name>.csv`, `.md` and `.tex` of the profile and return the CSV's path.

    The CSV has full precision; the others are rounded to `digits`. Raises ValueError for an empty table.
    """
    if df.empty:
        raise ValueError(f"table {name} is empty")
    folder = results_dir(profile) / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    short = df.copy()
    for column in short.select_dtypes("float"):
        short[column] = short[column].map(lambda v: "" if pd.isna(v) else f"{v:.{digits}f}")
    for suffix, text in (
        ("csv", df.to_csv(index=False, lineterminator="\n")),
        ("md", short.to_markdown(index=False, disable_numparse=True) + "\n"),
        ("tex", short.to_latex(index=False, escape=True)),
    ):
        write_whole(folder / f"{name}.{suffix}", text)
    return folder / f"{name}.csv"


def write_whole(path: Path, text: str) -> None:
    """Write a text file, complete or not at all."""
    part = path.with_name(f"{path.name}.part{os.getpid()}")
    part.write_text(text, "utf-8")
    os.replace(part, path)
