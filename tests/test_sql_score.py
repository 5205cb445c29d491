"""The official and the strict score of InterCode-SQL."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from lib.envs.sql_score import official_score, strict_score

A, B, C = (1, "a"), (2, "b"), (3, "c")


def test_scores_by_hand():
    cases = [  # rows, gold, official, strict without order, strict with order
        ([A, B, C], [A, B, C], 1.0, 1.0, 1.0),
        ([C, B, A], [A, B, C], -1.0, 1.0, 0.0),  # reversed: tau = -1
        ([B, A, C], [A, B, C], 0.33, 1.0, 1 / 3),  # 2 of 3 pairs agree: tau = (2 - 1) / 3
        ([A, A, B], [A, B], 0.67, 2 / 3, 2 / 3),  # a duplicate too many: 2 / 3, tau of (A, B) = 1
        ([A], [A, A], 0.5, 0.5, 0.5),  # a duplicate too few; one common row has no tau, so nothing is rounded
        ([A], [A, B, C], 1 / 3, 1 / 3, 1 / 3),
        ([A, B], [A, C], 1 / 3, 1 / 3, 1 / 3),
        ([C, A, B], [A, B], 0.67, 2 / 3, 2 / 3),
        ([A], [B], 0.0, 0.0, 0.0),
        ([], [], 1.0, 1.0, 1.0),
        ([], [A], 0.0, 0.0, 0.0),
        ([A], [], 0.0, 0.0, 0.0),
        (None, [], 0.0, 0.0, 0.0),  # an error is not an empty result
        ([(1,)], [(1.0,)], 0.0, 0.0, 0.0),  # rows are compared as text
        ([A, A], [A, A], 1.0, 1.0, 1.0),  # all rows equal: tau is undefined
        (
            [(i,) for i in range(200)],
            [(i,) for i in range(201)],
            1.0,
            200 / 201,
            200 / 201,
        ),  # rounding makes it a success
    ]
    for rows, gold, official, loose, ordered in cases:
        assert official_score(rows, gold) == pytest.approx(official, abs=1e-12), (rows, gold)
        assert strict_score(rows, gold, False) == pytest.approx(loose, abs=1e-12), (rows, gold)
        assert strict_score(rows, gold, True) == pytest.approx(ordered, abs=1e-12), (rows, gold)


@given(st.lists(st.sampled_from("abcd"), max_size=8), st.lists(st.sampled_from("abcd"), max_size=8))
@settings(max_examples=150, deadline=None)
def test_official_score_is_the_published_formula(left, right):
    a, e = [str((x,)) for x in left], [str((x,)) for x in right]
    both, either = Counter(a) & Counter(e), Counter(a) | Counter(e)
    expected = sum(both.values()) / sum(either.values()) if either else 1
    x, y = [], []
    for source, out in ((a, x), (e, y)):
        left_over = both.copy()
        for row in source:
            if left_over[row] > 0:
                left_over[row] -= 1
                out.append(row)
    if len(set(x)) > 1:
        expected = round(kendalltau(x, y).statistic * expected, 2)  # NumPy's rounding, as there
    assert official_score([(r,) for r in left], [(r,) for r in right]) == pytest.approx(expected, abs=1e-9)
