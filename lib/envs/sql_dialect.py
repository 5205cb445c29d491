"""The text side of InterCode-SQL: a model's answer → statement, MySQL text → SQLite text, MySQL functions.

Double quotes hold a string and backslashes escape, as in MySQL.
"""

from __future__ import annotations

import math
import re

_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*` | --[^\n]* | \#[^\n]* | /\*.*?\*/ | [^\W\d][\w$]* |
    \s+ | .""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "0": "\0", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_THINK = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL)
_FENCE = re.compile(r"```(?:\w+\n)?(.*?)(?:```|\Z)", re.DOTALL)
_SUBMIT = re.compile(r"submit(?:\(\))?", re.IGNORECASE)
_STATEMENT = re.compile(
    r"(?:select|with|show|desc|describe|use|explain|insert|update|delete|replace|drop|create|alter|truncate|rename|grant|"
    r"revoke|set|call|load|attach|detach|pragma|vacuum|reindex|analyze|begin|commit|rollback|savepoint|release)\b",
    re.IGNORECASE,
)


def parse(text: str) -> str | None:
    """The statement in a model's answer, "submit", or None where there is neither.

    `<think>` parts are dropped; then `<answer>` and the last code fence are looked into, where they are.
    """
    text = _THINK.sub("", text)
    for pattern in (_ANSWER, _FENCE):
        if found := pattern.findall(text):
            text = found[-1]
    text = text.strip().rstrip("; \n")
    if _SUBMIT.fullmatch(text):
        return "submit"
    return text if _STATEMENT.match(re.sub(r"\A(?:--[^\n]*\n\s*)+", "", text)) else None


def _text(token: str) -> str:
    """A quoted MySQL string as an SQLite literal."""
    pattern = r"\\(.)|" + token[0] * 2
    body = re.sub(pattern, lambda m: _ESCAPE.get(m[1], m[1]) if m[1] else token[0], token[1:-1], flags=re.S)
    return "'" + body.replace("'", "''") + "'"


def tokens(sql: str) -> list[str]:
    """Lexical tokens of MySQL text, white space and comments included; strings already as SQLite literals."""
    return [_text(t) if len(t) > 1 and t[0] in "'\"" else t for t in _TOKEN.findall(sql)]


def translate(sql: str) -> str:
    """MySQL text → SQLite text: strings, comments, and LEFT( and RIGHT(, which SQLite reserves for joins."""
    words = [" " if t.startswith(("--", "#", "/*")) else t for t in tokens(sql)]
    for i, word in enumerate(words[:-1]):
        if word.lower() in ("left", "right") and words[i + 1] == "(":
            words[i] = f"mysql_{word}"
    return "".join(words).strip()


def is_ordered(sql: str) -> bool:
    """Whether the statement itself orders its rows: ORDER BY outside of all brackets."""
    depth, words = 0, []
    for t in tokens(sql):
        depth += (t == "(") - (t == ")")
        if depth == 0 and not t.isspace():
            words.append(t.lower())
    return ("order", "by") in zip(words, words[1:], strict=False)


def _null(f):
    """SQL's rule: a NULL argument gives NULL."""
    return lambda *a: None if None in a else f(*a)


def _part(start: int, stop: int):
    return _null(lambda d: int(str(d)[start:stop]) if str(d)[start:stop].isdigit() else None)


def _real(f):
    return _null(lambda *a: f(*map(float, a)))


FUNCTIONS = {  # (name, number of arguments): what SQLite lacks
    ("concat", -1): _null(lambda *a: "".join(map(str, a))),
    ("concat_ws", -1): lambda sep, *a: None if sep is None else str(sep).join(str(x) for x in a if x is not None),
    ("if", 3): lambda c, a, b: a if c else b,
    ("mysql_left", 2): _null(lambda s, n: str(s)[: max(0, n)]),
    ("mysql_right", 2): _null(lambda s, n: str(s)[-n:] if n > 0 else ""),
    ("year", 1): _part(0, 4), ("month", 1): _part(5, 7), ("day", 1): _part(8, 10),
    ("lcase", 1): _null(lambda s: str(s).lower()), ("ucase", 1): _null(lambda s: str(s).upper()),
    ("char_length", 1): _null(lambda s: len(str(s))),
    ("locate", 2): _null(lambda t, s: str(s).lower().find(str(t).lower()) + 1),
    ("mod", 2): _null(lambda a, b: type(a)(math.fmod(a, b)) if b else None),
    ("floor", 1): _real(math.floor), ("ceil", 1): _real(math.ceil), ("ceiling", 1): _real(math.ceil),
    ("sqrt", 1): _real(math.sqrt), ("pow", 2): _real(math.pow), ("power", 2): _real(math.pow),
}  # fmt: skip
