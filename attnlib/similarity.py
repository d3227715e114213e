"""Similarity of head output vectors, and what to read off it: tensor in, tensor out, no model and no text.

Every function takes any number of leading axes (text, layer, head, ...), works on any device and in any
floating-point type, and computes in float32.  Statistics are over the tokens they are given: pass the rows
of body tokens (``z[..., out.is_body, :]``) unless separators are what you want to compare.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

METRICS = ("dot", "cosine", "centred")


def similarity(
    z: Float[Tensor, "*batch token d_head"],
    metric: str = "dot",
    mean: Float[Tensor, "*mean d_head"] | None = None,
) -> Float[Tensor, "*batch token token"]:
    """Context similarity matrix of head output vectors, per layer and head.

    ``dot``: S_ij = <z_i, z_j>, unbounded, in squared units of z (arXiv 2512.21956).
    ``cosine``: rows scaled to length 1 first; range -1 to 1; a zero vector gives 0.
    ``centred``: ``mean`` is subtracted first, then as cosine.  It removes the direction that all vectors of a
    head share (anisotropy: Ethayarajh 2019, arXiv 1909.00512).

    Parameters
    ----------
    z : (..., token, d_head), for instance (layer, head, token, d_head)
    metric : "dot", "cosine" or "centred"
    mean : (..., d_head), only with "centred": the head's mean vector over the corpus, not over one text

    Raises ValueError for an unknown metric, "centred" without ``mean``, or values that are not finite.

    >>> similarity(torch.tensor([[1.0, 0.0], [3.0, 4.0]]))
    tensor([[ 1.,  3.],
            [ 3., 25.]])
    """
    if metric not in METRICS:
        raise ValueError(f"metric={metric!r} is unknown: choose one of {', '.join(METRICS)}.")
    if (metric == "centred") != (mean is not None):
        raise ValueError(
            f"metric={metric!r} with mean={'None' if mean is None else 'given'}: 'centred' needs mean=, the head's "
            "mean vector over the corpus with shape (..., d_head); the other metrics take none."
        )
    z = z.float()
    if mean is not None:
        z = z - mean.float().unsqueeze(-2)
    _check_finite(z, "z, or its mean,")
    if metric != "dot":
        z = torch.nn.functional.normalize(z, dim=-1)
    return z @ z.mT


def is_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite; reads the values once and writes nothing."""
    return not values.numel() or all(map(math.isfinite, torch.stack(values.aminmax()).tolist()))


def _check_finite(values: Tensor, name: str) -> None:
    if not is_finite(values):
        raise ValueError(
            f"{name} holds NaN or infinite values: check the weights, or load the model with dtype='float32'."
        )


def _check_length(name: str, given: Tensor, n_tokens: int, of: str) -> None:
    if given.shape[-1] != n_tokens:
        raise ValueError(
            f"{name} has {given.shape[-1]} entries for the {n_tokens} tokens of {of}: select the same tokens in "
            "both, for instance with [out.is_body]."
        )


def _pair_indices(
    n_tokens: int, mask: Tensor | None, device: torch.device
) -> Int[Tensor, "2 pair"]:
    """Positions (i, j) of all pairs i < j of the tokens that ``mask`` keeps, in pair order: 01 02 ... 12 13 ..."""
    if mask is None:
        return torch.triu_indices(n_tokens, n_tokens, offset=1, device=device)
    _check_length("mask", mask, n_tokens, "S")
    kept = mask.to(device).nonzero().squeeze(-1)  # (kept token,)
    return kept[torch.triu_indices(len(kept), len(kept), offset=1, device=device)]


class RankedPairs:
    """The pairs i < j of S and their values, sorted once: high pairs and AUROCs are read off the same order.

    Parameters
    ----------
    S : (..., token, token); only the upper triangle is read
    mask : (token,), True for the tokens that may form a pair; None for all

    Raises ValueError for values that are not finite.

    >>> ranked = RankedPairs(torch.tensor([[9.0, 1.0, 5.0], [1.0, 9.0, 2.0], [5.0, 2.0, 9.0]]))
    >>> ranked.values, ranked.top(0.6).tolist()
    (tensor([1., 5., 2.]), [[0, 2], [1, 2]])
    """

    def __init__(
        self, S: Float[Tensor, "*batch token token"], mask: Bool[Tensor, " maskable"] | None = None
    ):
        n_tokens = S.shape[-1]
        self.pairs = _pair_indices(n_tokens, mask, S.device)  # (2, pair), in pair order
        flat = self.pairs[0] * n_tokens + self.pairs[1]
        self.values = S.flatten(-2).float().index_select(-1, flat)  # (..., pair)
        _check_finite(self.values, "S")
        self._sorted = _sorted(self.values)

    def top(self, share: float = 0.01) -> Int[Tensor, "*batch high 2"]:
        """The top ``share`` of the pairs, strongest first; see ``top_pairs``.  Those of a smaller share come first."""
        n_top = n_high_pairs(self.values.shape[-1], share)
        if n_top == 0:
            return self.pairs.new_empty(*self.values.shape[:-1], 0, 2)
        weakest = self._sorted[..., -n_top, None]
        chosen = self.values >= weakest
        # ties at the edge: take them in pair order
        if chosen.sum() > n_top * chosen[..., 0].numel():
            above, tied = self.values > weakest, self.values == weakest
            room = n_top - above.sum(-1, keepdim=True)
            chosen = above | (tied & (tied.cumsum(-1) <= room))
        index = chosen.nonzero()[:, -1].reshape(*self.values.shape[:-1], n_top)  # in pair order
        order = self.values.gather(-1, index).argsort(dim=-1, descending=True, stable=True)
        return self.pairs.T[index.gather(-1, order)]

    def auroc(
        self, positive: Int[Tensor, " positive"], among: Int[Tensor, " chosen"] | None = None
    ) -> Float[Tensor, "*batch"]:
        """How well S tells the positive pairs from all others, or from the others ``among`` some; see ``pair_auroc``.

        Both are places in ``pairs``; those of ``positive`` have to be in ``among`` too.
        """
        values = self.values.index_select(-1, positive)  # (..., positive pair)
        ranked = self._sorted
        if among is not None:
            ranked = _sorted(self.values.index_select(-1, among))
        n, n_others = values.shape[-1], ranked.shape[-1] - values.shape[-1]
        # twice the number of pairs of pairs that are in the right order, ties counting half
        below = torch.searchsorted(ranked, values) + torch.searchsorted(ranked, values, right=True)
        won = below.sum(-1) - n * n  # positive pairs against each other: half of them, always
        return won / (2 * n * n_others) if n * n_others else won * math.nan


def n_high_pairs(n_pairs: int, share: float) -> int:
    """How many pairs are the top ``share`` of ``n_pairs``: rounded to the nearest whole number, at least 1.

    >>> n_high_pairs(n_pairs=32131, share=0.01), n_high_pairs(3, 0.01), n_high_pairs(0, 0.01)
    (321, 1, 0)
    """
    if not 0 < share <= 1:
        raise ValueError(
            f"share={share} must be above 0 and at most 1 (0.01 means the top 1 % of pairs)."
        )
    return max(1, math.floor(share * n_pairs + 0.5)) if n_pairs else 0


def top_pairs(
    S: Float[Tensor, "*batch token token"],
    share: float = 0.01,
    mask: Bool[Tensor, " token"] | None = None,
) -> Int[Tensor, "*batch pair 2"]:
    """The high-similarity pairs: the top ``share`` of the n(n-1)/2 pairs i < j, strongest first.

    The number of pairs is ``share`` x n(n-1)/2 rounded to the nearest whole number, at least 1 (0 if there is only
    one token).  Equal values are taken in pair order (smaller i, then smaller j), so a run can be repeated.

    Parameters
    ----------
    S : (..., token, token); only the upper triangle is read
    share : fraction of all pairs, above 0 and at most 1
    mask : (token,), True for the tokens that may form a pair; None for all

    Returns (..., pair, 2): token positions i < j in S.

    >>> top_pairs(torch.tensor([[9.0, 1.0, 5.0], [1.0, 9.0, 2.0], [5.0, 2.0, 9.0]]), share=0.6)
    tensor([[0, 2],
            [1, 2]])
    """
    return RankedPairs(S, mask).top(share)


def relative_distance(
    pairs: Int[Tensor, "*batch pair 2"], n_tokens: int
) -> Float[Tensor, "*batch"]:
    """Mean distance |i - j| of the pairs, relative to a pair drawn at random: 1 is chance, below 1 is nearer.

    Two of n tokens drawn at random are (n + 1) / 3 tokens apart on average; the mean distance is divided by that.

    Parameters
    ----------
    pairs : (..., pair, 2), as from ``top_pairs``
    n_tokens : how many tokens the pairs were drawn from

    Returns (...,): above 0 and at most 3(n - 1)/(n + 1); NaN where there are no pairs.

    >>> relative_distance(torch.tensor([[0, 1], [0, 3]]), n_tokens=5)  # distances 1 and 3, chance 2
    tensor(1.)
    """
    return (pairs[..., 1] - pairs[..., 0]).abs().float().mean(-1) / ((n_tokens + 1) / 3)


def same_sentence_lift(
    pairs: Int[Tensor, "*batch pair 2"], sentence: Int[Tensor, " token"]
) -> Float[Tensor, "*batch"]:
    """How many times more often the pairs lie inside one sentence than all pairs do: 1 is chance.

    Parameters
    ----------
    pairs : (..., pair, 2), as from ``top_pairs`` over the same tokens
    sentence : (token,), the index of each token's sentence; -1 for a token outside all sentences, which is in no pair

    Returns (...,): 0 or more; NaN where there are no pairs, where no two tokens share a sentence, or all do.

    >>> same_sentence_lift(torch.tensor([[0, 1]]), torch.tensor([0, 0, 1, 1]))  # all of the pairs, 2 of 6 by chance
    tensor(3.)
    """
    sentence = sentence.to(pairs.device)
    ends = sentence[pairs]  # (..., pair, 2)
    if (ends < 0).any():
        raise ValueError(
            "pairs contain a token outside all sentences (sentence -1): draw them from body tokens only."
        )
    chance = same_sentence_chance(sentence)
    return (ends[..., 0] == ends[..., 1]).float().mean(-1) / chance


def same_sentence_chance(sentence: Int[Tensor, " token"]) -> float:
    """The share of all pairs of tokens that lie inside one sentence; NaN where it is 0 or 1: nothing to prefer.

    ``sentence`` is (token,), -1 for a token outside all sentences, which is in no pair.

    >>> same_sentence_chance(torch.tensor([0, 0, 1, 1])), same_sentence_chance(torch.tensor([0, 0]))
    (0.3333333333333333, nan)
    """
    counts = torch.bincount(sentence[sentence >= 0]).double()  # (sentence,) tokens in each
    n_tokens = counts.sum()
    chance = float((counts * (counts - 1)).sum() / (n_tokens * (n_tokens - 1)))
    return chance if 0 < chance < 1 else math.nan


def same_sentence_by_distance(sentence: Int[Tensor, " token"]) -> Float[Tensor, " distance"]:
    """The share of all pairs at each distance 0, 1, 2, ... that lie inside one sentence: what nearness alone predicts.

    ``sentence`` is (token,), the index of each token's sentence; every token has one.

    >>> same_sentence_by_distance(torch.tensor([0, 0, 1, 1]))  # at distance 1: two of the three pairs
    tensor([1.0000, 0.6667, 0.0000, 0.0000])
    """
    n = len(sentence)
    i, j = torch.triu_indices(n, n, device=sentence.device)
    same = (sentence[i] == sentence[j]).float()
    return torch.bincount(j - i, same) / torch.bincount(j - i)


def pair_auroc(
    S: Float[Tensor, "*batch token token"],
    positive: Bool[Tensor, "token token"],
    mask: Bool[Tensor, " token"] | None = None,
) -> Float[Tensor, "*batch"]:
    """How well S tells one kind of pair from all others: area under the receiver operating characteristic curve.

    It is the probability that S is higher for a pair drawn from the positive ones than for one drawn from the
    rest, ties counting half: 0.5 is chance, 1 is perfect, 0 is perfectly wrong.

    Parameters
    ----------
    S : (..., token, token)
    positive : (token, token), True for the pairs to be recognised; only pairs i < j are read
    mask : (token,), True for the tokens that take part; None for all

    Returns (...,): 0 to 1; NaN where there is no positive or no other pair.

    >>> S = torch.tensor([[0.0, 3.0, 1.0], [3.0, 0.0, 2.0], [1.0, 2.0, 0.0]])
    >>> positive = torch.tensor([[False, True, False], [False, False, False], [False, False, False]])
    >>> pair_auroc(S, positive)  # the pair (0, 1) has the highest value of all
    tensor(1.)
    """
    _check_length("positive", positive, S.shape[-1], "S")
    ranked = RankedPairs(S, mask)
    i, j = ranked.pairs
    return ranked.auroc(positive.to(S.device)[i, j].nonzero().squeeze(-1))


def _sorted(values: Tensor) -> Tensor:
    """Sorted along the last axis; on the CPU numpy does it about ten times as fast, since it keeps no indices."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.detach().numpy(), axis=-1))
    return values.sort(-1).values


def repetition_auroc(
    S: Float[Tensor, "*batch token token"],
    token_ids: Int[Tensor, " token"],
    mask: Bool[Tensor, " token"] | None = None,
) -> Float[Tensor, "*batch"]:
    """Repetition score of a head: ``pair_auroc`` for pairs of the same token type against all other pairs.

    Parameters
    ----------
    S : (..., token, token)
    token_ids : (token,), the vocabulary index of each token
    mask : (token,), True for the tokens that take part; None for all

    Returns (...,): 0 to 1, 0.5 is chance; NaN for a text in which no token, or only one, is repeated throughout.

    >>> repetition_auroc(torch.tensor([[1.0, 0.2, 0.9], [0.2, 1.0, 0.1], [0.9, 0.1, 1.0]]), torch.tensor([7, 4, 7]))
    tensor(1.)
    """
    _check_length("token_ids", token_ids, S.shape[-1], "S")
    return pair_auroc(S, token_ids[:, None] == token_ids[None, :], mask)


class Decomposition(NamedTuple):
    """S split by what the two tokens read; each part is (..., query, query) and their sum is S."""

    same_separator: Tensor
    two_separators: Tensor
    separator_and_other: Tensor
    same_token: Tensor
    two_tokens: Tensor


def decompose(
    A: Float[Tensor, "*batch query key"],
    V: Float[Tensor, "*batch key d_head"],
    separators: Bool[Tensor, " key"] | None = None,
) -> Decomposition:
    """Split S = A (V V^T) A^T by the pair of keys (k, l) through which tokens i and j are similar.

    S_ij = sum over k, l of A_ik A_jl <v_k, v_l>.  The terms are grouped by whether k and l are the same token and
    whether they are separators:

    * ``same_separator``: i and j read the same separator (k = l)
    * ``two_separators``: they read two different separators
    * ``separator_and_other``: one reads a separator, the other an ordinary token
    * ``same_token``: they read the same ordinary token (attention overlap)
    * ``two_tokens``: they read two ordinary tokens whose values are alike, or unlike: then it is negative

    Parameters
    ----------
    A : (..., query, key), attention weights; rows for some of the queries are enough
    V : (..., key, d_head), value vectors
    separators : (key,), True for separators; None if nothing counts as one

    >>> parts = decompose(torch.eye(2), torch.tensor([[2.0], [3.0]]))  # each token reads itself: S = V V^T
    >>> parts.same_token, parts.two_tokens
    (tensor([[4., 0.],
            [0., 9.]]), tensor([[0., 6.],
            [6., 0.]]))
    """
    A, V = A.float(), V.float()
    if separators is None:
        separators = torch.zeros(V.shape[-2], dtype=torch.bool)
    _check_length("separators", separators, V.shape[-2], "V")
    is_separator = separators.to(V.device).float()
    A_separator, A_other = A * is_separator, A * (1 - is_separator)  # (..., query, key)
    length = (V * V).sum(-1).unsqueeze(-2)  # (..., 1, key): squared length of each value vector
    same_separator = (A_separator * length) @ A_separator.mT
    same_token = (A_other * length) @ A_other.mT
    z_separator, z_other = A_separator @ V, A_other @ V  # (..., query, d_head), their sum is z
    mixed = z_separator @ z_other.mT
    return Decomposition(
        same_separator=same_separator,
        two_separators=z_separator @ z_separator.mT - same_separator,
        separator_and_other=mixed + mixed.mT,
        same_token=same_token,
        two_tokens=z_other @ z_other.mT - same_token,
    )
