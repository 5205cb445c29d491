"""Reading an answer: from the text a model wrote to the program that is meant. Nothing is run here."""

from __future__ import annotations

import ast
import re
import warnings

LONGEST = 200  # characters of lines that are read as a procedural answer
_THINK = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
_DEFINES_F = re.compile(r"^def f\(", re.MULTILINE)


def read_answer(text: str, kind: str) -> tuple[str, str]:
    """An answer as ("program", code), ("submit", "") or ("invalid", "").

    Outside `<think>` the last ``` block counts. For kind "lines" (procedural tasks) the block, or where there is none
    the whole answer, may be at most 200 characters of assignments to x, one a line, or an expression of x; a block
    may also define the function f. For every other kind a block is needed.
    """
    text = _THINK.sub(" ", text).strip()
    if text.strip(" .`").lower() == "submit":
        return "submit", ""
    blocks = _FENCE.findall(text)
    if kind != "lines":
        return ("program", blocks[-1]) if blocks and blocks[-1].strip() else ("invalid", "")
    answer = (blocks or [text])[-1].strip()
    if len(answer) <= LONGEST and (code := _function(answer)):
        return "program", code
    return ("program", answer) if blocks and _DEFINES_F.search(answer) else ("invalid", "")


def _function(lines: str) -> str:
    """Assignments to x, or an expression of x, as a program that defines f; "" for anything else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a model writes need not be tidy
        try:
            nodes = ast.parse(lines).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ""
    if len(nodes) == 1 and isinstance(nodes[0], ast.Expr):
        body = [f"x = {ast.unparse(nodes[0])}"]
    elif nodes and all(isinstance(n, ast.Assign) and ast.unparse(n.targets) == "x" for n in nodes):
        body = [ast.unparse(n) for n in nodes]
    else:
        return ""
    return "\n    ".join(["def f(x):", *body, "return x"])
