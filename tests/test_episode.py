"""Episodes: invariants, layout of the trained tokens, parquet, success turns."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.episode import End, Episode, Turn, load_episodes, save_episodes, success_turns

A = Turn([5, 6, 7], [1, 2], [-0.5, -1.0], "ab", 0.0, False)
B = Turn([8], [3], [-2.0], "c", 1.0, True)
TWO = Episode("lake", "t1", 0, 11, 3, [A, B], End.SOLVED, 1.0)


def test_completion_by_hand():
    assert TWO.prompt_ids() == [5, 6, 7]
    ids, mask, logps, turn = TWO.completion()
    assert ids == [1, 2, 8, 3]
    assert mask == [1, 1, 0, 1]
    assert logps == [-0.5, -1.0, 0.0, -2.0]
    assert turn == [0, 0, 1, 1]
    assert A.context == [5, 6, 7] and A.action == [1, 2]  # not changed by it
    error = Episode("lake", "t1", 0, 11, 3, [], End.ERROR, math.nan, "OSError: x")
    assert error.prompt_ids() == [] and error.completion() == ([], [], [], [])


def test_invariants():
    with pytest.raises(ValueError, match="t1/0 ended as failed without a turn"):
        replace(TWO, turns=[], end=End.FAILED)
    with pytest.raises(ValueError, match="2 turns, budget 1"):
        replace(TWO, budget=1)
    with pytest.raises(ValueError, match="2 action tokens with 1 log-prob"):
        replace(TWO, turns=[replace(A, logprobs=[-1.0])])
    with pytest.raises(ValueError, match="0 action tokens"):
        replace(TWO, turns=[replace(A, action=[], logprobs=[])])


ids = st.lists(st.integers(0, 2**31 - 1), max_size=6)
numbers = st.floats(allow_infinity=False)


@st.composite
def turns(draw):
    action = draw(ids.filter(bool))
    logps = draw(st.lists(numbers, min_size=len(action), max_size=len(action)))
    texts = st.text(max_size=8)
    return Turn(draw(ids), action, logps, draw(texts), draw(numbers), draw(st.booleans()), draw(numbers), draw(texts),
                draw(st.binary(max_size=8)), draw(numbers))  # fmt: skip


@st.composite
def episodes(draw):
    played = draw(st.lists(turns(), max_size=3))
    end = draw(st.sampled_from(list(End) if played else [End.ERROR]))
    task, error, sample = draw(st.text(max_size=8)), draw(st.text(max_size=8)), draw(st.integers(0, 999))
    seed, budget = draw(st.integers(0, 2**63 - 1)), draw(st.integers(max(1, len(played)), 99))
    return Episode("lake", task, sample, seed, budget, played, end, draw(numbers), error)


@settings(max_examples=40, deadline=None)
@given(stored=st.lists(episodes(), max_size=4))
def test_parquet_gives_back_what_was_stored(stored, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "episodes.parquet"
    save_episodes(stored, path)
    found = load_episodes(path)
    assert repr(found) == repr(stored)  # repr: exact floats, and NaN equals NaN
    assert all(isinstance(e.end, End) for e in found)


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "episodes.parquet"
    save_episodes([TWO], path)
    with pytest.raises((OverflowError, ValueError)):
        save_episodes([TWO, replace(TWO, seed=-1)], path)
    assert repr(load_episodes(path)) == repr([TWO])
    assert [p.name for p in tmp_path.iterdir()] == ["episodes.parquet"]


def test_success_turns_by_hand():
    def episode(task, sample, end, n):
        return Episode("lake", task, sample, 0, 5, [B] * n, end, 0.0)

    found = [
        episode("b", 1, End.BUDGET, 5),
        episode("a", 1, End.SOLVED, 2),
        episode("b", 0, End.SOLVED, 4),
        episode("a", 0, End.INVALID, 3),
    ]
    names, turns = success_turns(found)
    assert names == ["a", "b"]
    np.testing.assert_array_equal(turns, [[np.inf, 2], [4, np.inf]])
    with pytest.raises(ValueError, match="different numbers of samples"):
        success_turns(found[:3])
    with pytest.raises(ValueError, match="different numbers of samples"):
        success_turns([])
    with pytest.raises(ValueError, match="b/1 is there twice"):  # episodes must never vanish
        success_turns([*found, found[0]])
