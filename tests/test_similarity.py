"""Similarity mathematics against hand-computed values and slow, obvious code."""

import inspect
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.metrics import roc_auc_score

from attnlib import (
    decompose,
    head_outputs,
    pair_auroc,
    relative_distance,
    repetition_auroc,
    same_sentence_lift,
    similarity,
    top_pairs,
)
from attnlib.similarity import (
    METRICS,
    RankedPairs,
    _sorted,
    is_finite,
    n_high_pairs,
    same_sentence_by_distance,
    same_sentence_chance,
)

numbers = st.floats(-8, 8, width=32)
vectors = arrays.arrays(
    np.float32,
    arrays.array_shapes(min_dims=2, max_dims=3, min_side=1, max_side=7),
    elements=numbers,
)
# few different values, so that ties are common
squares = st.integers(1, 9).flatmap(
    lambda n: arrays.arrays(np.float32, (n, n), elements=st.sampled_from([0, 1, 2]))
)


# --- similarity ---------------------------------------------------------------------------------


def test_similarity_by_hand():
    z = torch.tensor([[3.0, 4.0], [6.0, 8.0], [4.0, -3.0], [0.0, 0.0]])
    assert similarity(z)[0].tolist() == [25, 50, 0, 0]
    assert torch.allclose(similarity(z, "cosine")[0], torch.tensor([1.0, 1.0, 0.0, 0.0]))
    centred = similarity(
        z, "centred", mean=torch.tensor([3.0, 0.0])
    )  # (0, 4), (3, 8), (1, -3), (-3, 0)
    assert torch.allclose(centred[0, 2], torch.tensor(-12 / (4 * 10**0.5)))


@given(vectors)
def test_similarity_is_symmetric(z):
    z = torch.from_numpy(z)
    for metric in METRICS:
        S = similarity(z, metric, z.mean(-2) if metric == "centred" else None)
        assert S.shape == (*z.shape[:-1], z.shape[-2])
        assert torch.allclose(S, S.mT, atol=1e-4)


@given(vectors, st.floats(0.125, 8))
def test_cosine_does_not_change_with_scale(z, scale):
    z = torch.from_numpy(np.where(abs(z) < 1e-2, 0, z))
    assert torch.allclose(similarity(z, "cosine"), similarity(scale * z, "cosine"), atol=1e-5)


def test_similarity_accumulates_in_float32():
    z = torch.full((2, 4096), 0.1).to(
        torch.float16
    )  # the sum of squares overflows the precision of float16
    assert similarity(z).dtype == torch.float32
    assert torch.allclose(similarity(z), torch.tensor(4096 * z[0, 0].item() ** 2), rtol=1e-5)


def test_bad_calls_of_similarity_are_refused():
    z = torch.ones(2, 3)
    with pytest.raises(
        ValueError, match="metric='euclid' is unknown: choose one of dot, cosine, centred"
    ):
        similarity(z, "euclid")
    with pytest.raises(ValueError, match="'centred' needs mean="):
        similarity(z, "centred")
    with pytest.raises(ValueError, match="the other metrics take none"):
        similarity(z, "dot", mean=z[0])
    with pytest.raises(ValueError, match="NaN or infinite"):
        similarity(torch.tensor([[1.0, torch.nan]]))


def test_the_mean_must_be_finite_too():
    with pytest.raises(ValueError, match="z, or its mean, holds NaN"):
        similarity(torch.ones(2, 2), "centred", mean=torch.tensor([0.0, torch.nan]))


@pytest.mark.parametrize(
    "measure", [top_pairs, lambda S: repetition_auroc(S, torch.zeros(3).long())]
)
def test_measures_refuse_what_is_not_finite(measure):
    S = torch.tensor([[1.0, 2.0, torch.nan], [2.0, 1.0, 0.0], [torch.nan, 0.0, 1.0]])
    with pytest.raises(ValueError, match="S holds NaN or infinite values"):
        measure(S)


def test_lengths_that_do_not_fit_are_refused():
    S, V, five = torch.eye(3), torch.ones(3, 2), torch.ones(5).bool()
    for measure, arguments in (
        (repetition_auroc, (S, five.long())),
        (pair_auroc, (S, five.expand(5, 5))),
        (top_pairs, (S, 0.5, five)),
        (decompose, (S, V, five)),
    ):
        with pytest.raises(ValueError, match="has 5 entries for the 3 tokens of"):
            inspect.unwrap(measure)(*arguments)  # without the shape check that only tests have


def test_half_precision_similarity_can_be_measured():
    S = torch.tensor([[0.0, 3.0, 1.0], [3.0, 0.0, 2.0], [1.0, 2.0, 0.0]], dtype=torch.bfloat16)
    assert repetition_auroc(S, torch.tensor([1, 1, 2])) == 1
    assert top_pairs(S, 0.3).tolist() == [[0, 1]]


# --- top pairs ----------------------------------------------------------------------------------


@given(squares, st.sampled_from([0.001, 0.05, 0.3, 0.5, 1.0]), st.data())
def test_top_pairs_against_a_sort_of_all_pairs(S, share, data):
    n = len(S)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=bool)
    for kept in (None, mask):
        tokens = range(n) if kept is None else np.flatnonzero(kept)
        pairs = sorted(
            itertools.combinations(tokens, 2), key=lambda pair: -S[pair]
        )  # stable: ties in pair order
        n_top = max(1, int(share * len(pairs) + 0.5)) if pairs else 0
        found = top_pairs(
            torch.from_numpy(S), share, None if kept is None else torch.from_numpy(kept)
        )
        assert [tuple(pair) for pair in found.tolist()] == [
            tuple(map(int, pair)) for pair in pairs[:n_top]
        ]


def test_top_pairs_of_many_heads_are_those_of_each():
    S = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    together = top_pairs(S, 0.2)
    assert together.shape == (2, 3, 7, 2)
    assert all(
        torch.equal(together[i, j], top_pairs(S[i, j], 0.2)) for i in range(2) for j in range(3)
    )


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01])
def test_an_impossible_share_is_refused(share):
    with pytest.raises(ValueError, match=rf"share={share} must be above 0 and at most 1"):
        top_pairs(torch.eye(3), share)


# --- distance and sentences ---------------------------------------------------------------------


def test_relative_distance_by_hand():
    pairs = torch.tensor([[[0, 1], [0, 3]], [[0, 4], [4, 0]]])
    assert relative_distance(pairs, 5).tolist() == [1.0, 2.0]  # chance is 2 tokens
    assert relative_distance(torch.zeros(2, 0, 2, dtype=torch.long), 1).isnan().all()


@pytest.mark.parametrize("n", [2, 5, 40])
def test_all_pairs_together_are_at_chance(n):
    every = top_pairs(torch.rand(n, n, generator=torch.Generator().manual_seed(n)), share=1.0)
    assert torch.allclose(relative_distance(every, n), torch.tensor(1.0))
    if n > 2:
        assert torch.allclose(same_sentence_lift(every, torch.arange(n) // 2), torch.tensor(1.0))


def test_same_sentence_lift_by_hand():
    sentence = torch.tensor([-1, 0, 0, 0, 1, 1, -1])  # 3 + 1 of 10 pairs lie inside a sentence
    pairs = torch.tensor([[1, 2], [1, 4]])
    assert torch.allclose(same_sentence_lift(pairs, sentence), torch.tensor(0.5 / 0.4))
    assert same_sentence_lift(
        torch.tensor([[0, 1]]), torch.tensor([0, 1])
    ).isnan()  # no two tokens share one
    with pytest.raises(ValueError, match="outside all sentences"):
        same_sentence_lift(torch.tensor([[0, 1]]), sentence)


# --- AUROC --------------------------------------------------------------------------------------


@given(squares, st.data())
def test_auroc_against_scikit_learn(S, data):
    n = len(S)
    ids = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    i, j = np.triu_indices(n, 1)
    same = ids[i] == ids[j]
    ours = repetition_auroc(torch.from_numpy(S), torch.from_numpy(ids))
    if same.all() or not same.any():
        assert ours.isnan()
    else:
        assert abs(float(ours) - roc_auc_score(same, S[i, j])) < 1e-5


def test_auroc_by_hand_with_a_mask_and_many_heads():
    S = torch.tensor([[0.0, 3.0, 1.0, 9.0], [0, 0, 2.0, 9.0], [0, 0, 0, 9.0], [0, 0, 0, 0]])
    positive = torch.zeros(4, 4, dtype=torch.bool)
    positive[1, 2] = True  # its value, 2, beats one of the two others among the first three tokens
    mask = torch.tensor([True, True, True, False])
    assert pair_auroc(torch.stack([S, -S]), positive, mask).tolist() == [0.5, 0.5]
    assert pair_auroc(S, positive).item() == pytest.approx(0.2)


def test_sorting_gives_the_same_without_numpy():
    values = torch.randn(3, 50)
    other = torch.empty(3, 50, device="meta")  # any device but the CPU takes the other way
    assert torch.equal(_sorted(values), values.sort(-1).values)
    assert _sorted(other).shape == (3, 50)


# --- decomposition ------------------------------------------------------------------------------


def slow_decomposition(A, V, is_separator):
    """The same five sums, term by term."""
    n_queries, n_keys = A.shape
    parts = torch.zeros(5, n_queries, n_queries, dtype=torch.double)
    queries, keys = range(n_queries), range(n_keys)
    for i, j, first, second in itertools.product(queries, queries, keys, keys):
        if is_separator[first] != is_separator[second]:
            part = 2
        else:
            part = (0 if is_separator[first] else 3) + int(first != second)
        product = float(V[first].double() @ V[second].double())
        parts[part, i, j] += float(A[i, first]) * float(A[j, second]) * product
    return parts


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_decomposition_against_a_sum_over_all_terms(n_queries, n_keys, seed):
    generator = torch.Generator().manual_seed(seed)
    A = torch.rand(n_queries, n_keys, generator=generator).softmax(-1)
    V = torch.randn(n_keys, 3, generator=generator)
    separators = torch.rand(n_keys, generator=generator) < 0.4
    parts = decompose(A, V, separators)
    assert torch.allclose(
        torch.stack(parts).double(), slow_decomposition(A, V, separators), atol=1e-5
    )


def test_decomposition_sums_to_s_on_the_real_model(minilm, passages):
    out = head_outputs(minilm, passages[0], what=("z", "attention", "v"))
    S = similarity(out.z)
    for separators in (None, out.is_sep, out.is_sep | out.is_sentence_end):
        parts = decompose(out.attention, out.v, separators)
        assert (sum(parts) - S).abs().max() <= 1e-4
    assert decompose(out.attention, out.v).same_separator.abs().max() == 0


# --- what the measures are made of ----------------------------------------------------------------

sentences = st.lists(st.integers(-1, 3), min_size=1, max_size=12)


@given(st.integers(1, 40_000), st.floats(1e-6, 1))
def test_the_number_of_high_pairs_is_the_nearest_and_at_least_one(n_pairs, share):
    n = n_high_pairs(n_pairs, share)
    assert 1 <= n <= n_pairs
    assert n == 1 or abs(n - share * n_pairs) <= 0.5


def test_the_number_of_high_pairs_by_hand():
    assert [n_high_pairs(n, 0.25) for n in (0, 1, 2, 4, 6, 10)] == [0, 1, 1, 1, 2, 3]
    assert n_high_pairs(10, 1.0) == 10
    for share in (0.0, -0.5, 1.01, math.nan):
        with pytest.raises(ValueError, match=f"share={share} must be above 0 and at most 1"):
            n_high_pairs(10, share)


@given(sentences)
def test_the_chance_of_one_sentence_is_a_count_of_pairs(sentence):
    pairs = list(itertools.combinations([s for s in sentence if s >= 0], 2))
    same = sum(first == second for first, second in pairs)
    chance = same_sentence_chance(torch.tensor(sentence))
    if 0 < same < len(pairs):
        assert chance == pytest.approx(same / len(pairs))
    else:
        assert math.isnan(chance)


@given(sentences)
def test_the_chance_at_each_distance_is_a_count_of_pairs(sentence):
    found = same_sentence_by_distance(torch.tensor(sentence))
    n = len(sentence)
    assert len(found) == n
    for distance in range(n):
        same = [sentence[i] == sentence[i + distance] for i in range(n - distance)]
        assert found[distance] == pytest.approx(sum(same) / len(same))


@given(
    st.integers(2, 7).flatmap(
        lambda n: arrays.arrays(np.float32, (2, n, n), elements=st.sampled_from([0, 1, 2]))
    ),
    st.data(),
)
def test_auroc_among_some_pairs_against_scikit_learn(S, data):
    ranked = RankedPairs(torch.from_numpy(S))
    n_pairs = ranked.pairs.shape[1]
    kinds = data.draw(st.lists(st.sampled_from("+-."), min_size=n_pairs, max_size=n_pairs))
    positive = torch.tensor([k for k, kind in enumerate(kinds) if kind == "+"], dtype=torch.long)
    among = torch.tensor([k for k, kind in enumerate(kinds) if kind != "."], dtype=torch.long)
    found = ranked.auroc(positive, among=among)
    assert found.shape == (2,)
    if 0 < len(positive) < len(among):
        label = [kinds[k] == "+" for k in among]
        values = ranked.values[:, among]
        assert found.tolist() == pytest.approx([roc_auc_score(label, row) for row in values])
    else:
        assert found.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_finite_means_neither_nan_nor_infinite(dtype):
    ok = torch.tensor([[0.0, -3.0], [1e-3, 60000.0]], dtype=dtype)
    assert is_finite(ok) and is_finite(torch.zeros(0, 3, dtype=dtype))
    for bad in (math.nan, math.inf, -math.inf):
        values = ok.clone()
        values[1, 0] = bad
        assert not is_finite(values)
