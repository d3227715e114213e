"""One pass over a corpus: every statistic of every head in every text, in one labelled dataset."""

import hashlib
import json
import math
import os
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from gensim.models.phrases import Phrases
from jaxtyping import Int
from torch import Tensor
from tqdm import tqdm

from attnlib.capture import HeadOutputs, iter_head_outputs, text_rng
from attnlib.corpus import Corpus
from attnlib.models import Model, untrained_copy
from attnlib.results import versions
from attnlib.similarity import (
    METRICS,
    RankedPairs,
    n_high_pairs,
    same_sentence_by_distance,
    same_sentence_chance,
    similarity,
)

CONTROLS = ("untrained", "shuffled")
SEPARATORS = ("sep_token", "sentence_end", "between")
# lower edges of the bins of the distance histogram, in tokens: 1, 2, 3-4, 5-8, ...
DISTANCES = (1, 2, 3, 5, 9, 17, 33, 65, 129, 257, 513)
COLLOCATION_NPMI = (
    0.5  # normalised pointwise mutual information above which two words belong together
)
COLLOCATION_COUNT = 5  # times that they have to stand together in the corpus to be counted at all
SHARD_TEXTS = 64  # texts between two writes

TEXT, HEAD = ("condition", "text"), ("condition", "text", "layer", "head")
PAIRS = (*HEAD, "metric", "share")
PAIR_ENDS = ("condition", *PAIRS[2:], "token_type")
# name: dimensions, unit, definition.  Everything is over the tokens of the text itself, unless said otherwise.
STATISTICS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "separator_attention": (
        (*HEAD, "separator"),
        "share of attention",
        "mean attention to the separators; n/a in a text that has none. sep_token: the model's separator token at the "
        "end; sentence_end: the punctuation that ends a sentence; between: every separator token, in a pass of its own "
        "with one more between any two sentences",
    ),
    "separator_weighted": (
        (*HEAD, "separator"),
        "share of attention x length",
        "the same with each weight times the length of the value vector that is read, as a share of that sum "
        "(Kobayashi et al. 2020, arXiv 2004.10102)",
    ),
    "separator_keys": (
        (*TEXT, "separator"),
        "share of tokens",
        "share of all tokens, special ones included, that are such separators: what even attention would give them",
    ),
    "special_attention": (
        HEAD,
        "share of attention",
        "mean attention to special tokens that separate nothing, such as [CLS]; n/a where there are none",
    ),
    "special_weighted": (
        HEAD,
        "share of attention x length",
        "the same with each weight times the length of the value vector that is read",
    ),
    "attention_entropy": (
        HEAD,
        "nat",
        "mean entropy of the attention of a token: 0 if it reads one token only, ln n if it reads all n evenly",
    ),
    "attention_previous": (HEAD, "share of attention", "mean attention to the token before"),
    "attention_next": (HEAD, "share of attention", "mean attention to the token after"),
    "attention_self": (HEAD, "share of attention", "mean attention of a token to itself"),
    "mean_similarity": (
        (*HEAD, "metric"),
        "similarity",
        "mean similarity of all pairs of tokens of the text: the baseline of Ethayarajh 2019 (arXiv 1909.00512)",
    ),
    "repetition_auroc": (
        (*HEAD, "metric"),
        "AUROC",
        "how well similarity tells pairs of the same token type from all others; chance 0.5",
    ),
    "adjacent_auroc": (
        (*HEAD, "metric"),
        "AUROC",
        "how well similarity tells pairs of adjacent tokens from all others; chance 0.5",
    ),
    "collocation_auroc": (
        (*HEAD, "metric"),
        "AUROC",
        "among pairs of adjacent whole words: how well similarity tells those that belong together (normalised "
        f"pointwise mutual information above {COLLOCATION_NPMI}, together at least {COLLOCATION_COUNT} times in this "
        "corpus) from the others; all are at distance 1, so nearness plays no part; chance 0.5; n/a in shuffled text",
    ),
    "input_repetition_auroc": (
        (*TEXT, "layer", "metric"),
        "AUROC",
        "repetition_auroc of the vectors that the heads of the layer read; in layer 1 no head has touched them (for "
        "centred, their mean over the text is subtracted)",
    ),
    "input_adjacent_auroc": ((*TEXT, "layer", "metric"), "AUROC", "adjacent_auroc of the same"),
    "input_collocation_auroc": (
        (*TEXT, "layer", "metric"),
        "AUROC",
        "collocation_auroc of the same",
    ),
    "relative_distance": (
        PAIRS,
        "ratio to chance",
        "mean distance |i - j| of the high pairs / ((n + 1) / 3), the mean of all pairs of n tokens",
    ),
    "distance_histogram": ((*PAIRS, "distance"), "pairs", "high pairs by their distance"),
    "all_distances": (
        (*TEXT, "distance"),
        "pairs",
        "all pairs by their distance: the chance level",
    ),
    "same_sentence_lift": (
        PAIRS,
        "ratio to chance",
        "share of the high pairs inside one sentence / share of all pairs; n/a in a text of one sentence or without "
        "punctuation that ends one",
    ),
    "same_sentence_expected": (
        PAIRS,
        "ratio to chance",
        "the lift that the distances of the high pairs alone predict: what pairs at these distances have on average",
    ),
    "through_separators": (
        (*HEAD, "share"),
        "share of similarity",
        "how much of the summed scalar product of the high pairs (dot) comes through separator tokens or punctuation "
        "that ends a sentence, on one side or both; negative if they make the two tokens less alike",
    ),
    "same_separator": (
        (*HEAD, "share"),
        "share of similarity",
        "the part of it in which both tokens read the same separator",
    ),
    "anchor": (
        PAIRS,
        "vocabulary index",
        "the token type with the most ends of high pairs (the lowest index among equals); -1: n/a",
    ),
    "anchor_share": (PAIRS, "share of pair ends", "what part of the ends of high pairs it has"),
    "corrected_anchor": (
        PAIRS,
        "vocabulary index",
        "the token type with the highest ratio of its share of pair ends to its share of tokens; -1: n/a",
    ),
    "corrected_anchor_lift": (PAIRS, "ratio to chance", "that ratio"),
    "anchor_by_chance": (
        (*HEAD, "share"),
        "vocabulary index",
        "the anchor of as many pairs drawn at random from the same text, anew for each head: what the frequencies of "
        "the words alone would give",
    ),
    "corrected_anchor_by_chance": (
        (*HEAD, "share"),
        "vocabulary index",
        "the corrected anchor of the same random pairs",
    ),
    "token_by_chance": (
        HEAD,
        "vocabulary index",
        "the type of one token drawn at random from the text, anew for each head",
    ),
}
# whole numbers, -1 where there is none
COUNTS = tuple(
    name for name, (_, unit, _) in STATISTICS.items() if unit in ("vocabulary index", "pairs")
)


def survey(
    model: Model,
    corpus: Corpus,
    *,
    max_tokens: int = 256,
    batch_tokens: int = 2048,
    share: float | Sequence[float] = (0.001, 0.01, 0.05),
    metrics: str | Sequence[str] = METRICS,
    controls: str | Sequence[str] = (),
    seed: int = 0,
    progress: bool = True,
    out: str | Path | None = None,
) -> xr.Dataset:
    """Measure every head on every text of a corpus.

    Parameters
    ----------
    max_tokens : each text is cut to this many tokens, special ones included
    batch_tokens : how many tokens, padding included, go through the model at a time; changes only time and memory
    share : the shares of all pairs that count as high-similarity pairs, in rising order
    metrics : some of "dot", "cosine", "centred"
    controls : some of "untrained" (the same architecture with random weights drawn from ``seed``) and "shuffled" (the
        tokens of each text in an order drawn from ``seed``), measured in the same call
    progress : show a progress bar with texts per second
    out : where to keep the result: a path that ends in ".zarr", or a folder, in which the file is named after all that
        the numbers depend on.  If it is there already it is read instead of measured again; if it was interrupted, the
        missing texts are added.  None keeps it in memory only

    Returns a dataset with the dimensions condition ("model" and the controls), text, layer, head (counted from 1) and,
    where they apply, metric, share, separator, distance (lower edge of the bin, in tokens) and token_type (vocabulary
    index).  Each variable carries its unit and definition; ``STATISTICS`` lists those per text, and per corpus there
    are ``pair_ends`` (ends of high pairs by token type), ``token_count`` and ``mean_z`` (the mean subtracted by
    "centred").  What a text or a model does not have is NaN.  Texts with fewer than two tokens are dropped; how many
    tokens were read and cut and which texts were dropped stands in the attributes, with model, corpus and versions.

    Raises ValueError for settings that are not possible, a corpus in which no text has two tokens, and an ``out`` that
    holds something else.  Ctrl-C keeps the texts that are done in ``out``.

    >>> from attnlib import load_corpus, load_model
    >>> data = survey(load_model("minilm"), load_corpus("passages", limit=2), max_tokens=32, progress=False)
    >>> dict(data.relative_distance.sizes)
    {'condition': 1, 'text': 2, 'layer': 6, 'head': 12, 'metric': 3, 'share': 3}
    """
    settings = _settings(model, max_tokens, share, metrics, controls, seed)
    provenance = _provenance(model, corpus, settings)
    store = None if out is None else _Store(_place(Path(out), provenance), provenance)
    if store and store.complete:
        return store.read()
    store = store or _Memory()
    plan = None
    try:
        plan = _scan(model, corpus, settings, batch_tokens, progress)
        shards = [plan.kept[i : i + SHARD_TEXTS] for i in range(0, len(plan.kept), SHARD_TEXTS)]
        with tqdm(
            total=len(plan.kept) * len(plan.models),
            desc=f"survey: {', '.join(plan.models)}",
            unit="text",
            disable=not progress,
            leave=False,
        ) as bar:
            for number, chosen in enumerate(shards):
                if store.has(number):
                    bar.update(len(chosen) * len(plan.models))
                else:
                    store.keep(number, *_shard(corpus, chosen, plan, settings, batch_tokens, bar))
    except KeyboardInterrupt:
        message = store.interrupted(plan, settings, provenance)
        raise KeyboardInterrupt(message) from None
    store.finish(plan, settings, provenance)
    return store.read()


# --- what is to be measured ---------------------------------------------------------------------


def _settings(model, max_tokens, share, metrics, controls, seed) -> dict:
    """The settings that the numbers depend on, checked."""
    share = [share] if isinstance(share, int | float) else list(share)
    metrics = [metrics] if isinstance(metrics, str) else list(metrics)
    controls = [controls] if isinstance(controls, str) else list(controls)
    for name, given, known in (("metrics", metrics, METRICS), ("controls", controls, CONTROLS)):
        if (
            set(given) - set(known)
            or len(set(given)) < len(given)
            or (name == "metrics" and not given)
        ):
            raise ValueError(f"{name}={given}: choose among {', '.join(known)}, each at most once.")
    for each in share:
        n_high_pairs(1, each)
    if not share or sorted(set(share)) != share:
        raise ValueError(f"share={share}: give at least one, in rising order, each once.")
    return dict(
        max_tokens=min(max_tokens, model.max_tokens),
        share=share,
        metrics=metrics,
        controls=[control for control in CONTROLS if control in controls],
        seed=seed,
    )


def _provenance(model: Model, corpus: Corpus, settings: dict) -> dict:
    """All that the numbers depend on; ``code`` changes with what attnlib computes."""
    here = Path(__file__).parent
    code = b"".join(
        (here / f"{name}.py").read_bytes() for name in ("capture", "similarity", "survey")
    )
    sizes = {"n_layers": model.n_layers, "n_heads": model.n_heads, "d_head": model.d_head}
    return {
        "model": model.provenance | sizes,
        "corpus": corpus.provenance,
        "settings": settings,
        "versions": versions(),
        "code": hashlib.sha256(code).hexdigest()[:16],
    }


def _place(out: Path, provenance: dict) -> Path:
    if out.suffix == ".zarr":
        return out
    digest = hashlib.sha256(json.dumps(provenance, sort_keys=True).encode()).hexdigest()[:12]
    return out / f"survey-{digest}.zarr"


@dataclass
class _Plan:
    """What a first look at the corpus gave: the texts to measure, the vocabulary, the means, the collocations."""

    models: dict[str, tuple[Model, int | None]]  # condition: model, seed of the shuffling
    kept: list[int] = field(default_factory=list)  # indices of the texts that can be measured
    dropped: list = field(default_factory=list)  # what the others are called
    n_tokens: dict[int, int] = field(default_factory=dict)
    n_cut: dict[int, int] = field(default_factory=dict)
    counts: Counter = field(default_factory=Counter)  # of token types, over the texts kept
    token_types: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    labels: list[str] = field(default_factory=list)
    collocations: set[tuple[int, int]] = field(default_factory=set)
    means: dict[str, Tensor] = field(default_factory=dict)  # condition: (layer, head, d_head)


def _scan(model: Model, corpus: Corpus, settings: dict, batch_tokens: int, progress: bool) -> _Plan:
    """The first pass: token types, collocations and, for the centred metric, the mean of z in each condition."""
    models = {"model": (model, None)}
    if "untrained" in settings["controls"]:
        models["untrained"] = (untrained_copy(model, settings["seed"]), None)
    if "shuffled" in settings["controls"]:
        models["shuffled"] = (model, settings["seed"])
    plan = _Plan(models)
    for index, text in enumerate(corpus):
        n = len(model.tokenizer(text.text, add_special_tokens=False, verbose=False)["input_ids"])
        room = settings["max_tokens"] - model.tokenizer.num_special_tokens_to_add()
        (plan.kept if min(n, room) >= 2 else plan.dropped).append(index)
    if not plan.kept:
        raise ValueError(
            f"corpus={corpus.name!r}: none of its {len(corpus)} texts has two tokens within "
            f"max_tokens={settings['max_tokens']}, so there are no pairs to compare; give longer texts."
        )
    plan.dropped = [corpus[index].source for index in plan.dropped]
    if plan.dropped:
        warnings.warn(
            f"{len(plan.dropped)} of {len(corpus)} texts have fewer than two tokens and were dropped: "
            f"{', '.join(plan.dropped[:5])}{' ...' * (len(plan.dropped) > 5)}.",
            stacklevel=3,
        )
    texts = [corpus[index] for index in plan.kept]
    centred = "centred" in settings["metrics"]
    phrases = Phrases(
        min_count=COLLOCATION_COUNT, threshold=COLLOCATION_NPMI, scoring="npmi", delimiter=" "
    )
    for condition, (each, shuffle) in models.items():
        if condition != "model" and not centred:
            continue
        total, n = 0.0, 0
        for row, output in iter_head_outputs(
            each,
            texts,
            layers=None if centred else [0],  # one is enough to learn the tokens
            max_tokens=settings["max_tokens"],
            shuffle=shuffle,
            batch_tokens=batch_tokens,
            progress=f"survey: first look, {condition}" if progress else None,
        ):
            index = plan.kept[row]
            if condition == "model":
                ids = output.token_ids[output.is_body].tolist()
                plan.n_tokens[index], plan.n_cut[index] = len(ids), output.n_cut
                plan.counts.update(ids)
                phrases.add_vocab([[str(token_id) for token_id in ids]])
            if centred:
                total = total + output.z[:, :, output.is_body].float().sum(2).cpu().double()
                n += plan.n_tokens[index]
        if centred:
            plan.means[condition] = (total / n).float().to(each.device)
    plan.token_types = np.array(sorted(plan.counts))
    plan.labels = [model.tokenizer.decode([int(i)]).strip() or "␣" for i in plan.token_types]
    plan.collocations = {tuple(map(int, phrase.split(" "))) for phrase in phrases.export_phrases()}
    return plan


# --- one text -----------------------------------------------------------------------------------


def _bins(distance: Tensor) -> Tensor:
    edges = torch.tensor(DISTANCES, device=distance.device)
    return torch.bucketize(distance, edges, right=True) - 1


def _counted(index: Int[Tensor, "head end"], n: int) -> Int[Tensor, "head kind"]:
    """How often each of the numbers 0 to n - 1 stands in each row."""
    counts = torch.zeros(index.shape[0], n, dtype=torch.long, device=index.device)
    return counts.scatter_add_(1, index, torch.ones_like(index))


def _first_largest(values: Tensor) -> tuple[Tensor, Tensor]:
    """The largest value of each row and the lowest index that has it."""
    largest = values.amax(-1, keepdim=True)
    n = values.shape[-1]
    places = torch.arange(n, device=values.device)
    return largest.squeeze(-1), torch.where(values == largest, places, n).amin(-1)


def _word_pairs(
    output: HeadOutputs, collocations: set[tuple[int, int]]
) -> tuple[list[int], list[int]]:
    """Places of the adjacent tokens that are two whole words, and of those among them that belong together."""
    source = output.text.text
    tokens = [
        (token_id, label, span)
        for token_id, label, span, inside in zip(
            output.token_ids.tolist(), output.tokens, output.offsets, output.is_body.tolist()
        )
        if inside
    ]

    def is_word(label: str, span: tuple[int, int]) -> bool:
        end = span[1]
        start = end - len(label)  # some tokenizers count the space before a word to it
        around = source[max(0, start - 1) : start] + source[end : end + 1]
        return label.isalnum() and not any(character.isalnum() for character in around)

    whole = [is_word(label, span) for _, label, span in tokens]
    words = [
        k
        for k, ((_, _, left), (_, label, right)) in enumerate(pairwise(tokens))
        if whole[k] and whole[k + 1] and source[left[1] : right[1] - len(label)].isspace()
    ]
    return words, [k for k in words if (tokens[k][0], tokens[k + 1][0]) in collocations]


class _TextFrame:
    """What all heads of one text share: its pairs by distance, sentence, token type and collocation."""

    def __init__(self, output: HeadOutputs, plan: _Plan, condition: str):
        body = output.is_body
        device = output.token_ids.device
        self.n = n = int(body.sum())
        ids = output.token_ids[body]
        self.types, self.local = ids.unique(return_inverse=True)  # (type,), (token,)
        self.type_counts = torch.bincount(self.local)
        i, j = torch.triu_indices(n, n, offset=1, device=device)  # the order of RankedPairs.pairs
        self.same_type = (ids[i] == ids[j]).nonzero().squeeze(-1)  # (pair,)
        self.adjacent = (j - i == 1).nonzero().squeeze(-1)  # (token - 1,)
        words, together = [], []
        if condition != "shuffled":
            words, together = _word_pairs(output, plan.collocations)
        self.words = self.adjacent[words]  # (pair of words,)
        self.together = self.adjacent[together]
        self.sentence = output.sentence[body]
        self.sentence = self.sentence - self.sentence.min()
        has_ends = bool(output.is_sentence_end.any())
        self.chance = same_sentence_chance(self.sentence) if has_ends else math.nan
        self.by_distance = same_sentence_by_distance(self.sentence)
        lengths = n - torch.arange(1, n, device=device)  # pairs at each distance
        self.all_distances = torch.zeros(
            len(DISTANCES), dtype=torch.long, device=device
        ).scatter_add_(0, _bins(torch.arange(1, n, device=device)), lengths)

    def aurocs(self, ranked: RankedPairs) -> list[Tensor]:
        return [
            ranked.auroc(self.same_type),
            ranked.auroc(self.adjacent),
            ranked.auroc(self.together, among=self.words),
        ]

    def ends(
        self, pairs: Int[Tensor, "head pair 2"], sizes: Sequence[int]
    ) -> Int[Tensor, "head share type"]:
        """How often each token type of the text is an end of the strongest so many pairs."""
        types = self.local[pairs]  # (head, pair, 2)
        n = len(self.types)
        return torch.stack([_counted(types[:, :size].flatten(1), n) for size in sizes], 1)

    def anchors(self, counts: Tensor, n_ends: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Ends of the anchor, the anchor, ratio to chance of the corrected anchor, the corrected anchor."""
        most, anchor = _first_largest(counts)
        lift, corrected = _first_largest(counts * self.n / (self.type_counts * n_ends[:, None]))
        return most, self.types[anchor], lift, self.types[corrected]

    def by_chance(
        self, n_heads: int, sizes: Sequence[int], rng: np.random.Generator
    ) -> dict[str, Tensor]:
        """The anchors of pairs drawn at random, and a random token, for so many heads: (head, share) and (head,)."""
        i, j = np.triu_indices(self.n, 1)
        drawn = rng.integers(len(i), size=(n_heads, sizes[-1]))  # (head, pair)
        pairs = torch.from_numpy(np.stack([i[drawn], j[drawn]], -1)).to(self.local.device)
        n_ends = 2 * torch.tensor(sizes, device=pairs.device)
        _, anchor, _, corrected = self.anchors(self.ends(pairs, sizes), n_ends)
        token = torch.from_numpy(rng.integers(self.n, size=n_heads)).to(pairs.device)
        return {
            "anchor_by_chance": anchor,
            "corrected_anchor_by_chance": corrected,
            "token_by_chance": self.types[self.local[token]],
        }

    def of_pairs(
        self, pairs: Int[Tensor, "head pair 2"], sizes: Sequence[int]
    ) -> dict[str, Tensor]:
        """Statistics of the strongest so many pairs, for each of the sizes: (head, share, ...)."""
        distance = (pairs[..., 1] - pairs[..., 0]).abs()  # (head, pair)
        ends = self.sentence[pairs]
        same = (ends[..., 0] == ends[..., 1]).float()
        columns = torch.stack([distance.float(), same, self.by_distance[distance]])
        last = torch.tensor([size - 1 for size in sizes], device=pairs.device)
        means = columns.cumsum(-1)[..., last] / (last + 1)  # (3, head, share)
        bins = _bins(distance)  # (head, pair)
        counts = self.ends(pairs, sizes)  # (head, share, type)
        n_ends = 2 * (last + 1)
        most, anchor, lift, corrected = self.anchors(counts, n_ends)
        return {
            "relative_distance": means[0] / ((self.n + 1) / 3),
            "same_sentence_lift": means[1] / self.chance,
            "same_sentence_expected": means[2] / self.chance,
            "distance_histogram": torch.stack(
                [_counted(bins[:, :size], len(DISTANCES)) for size in sizes], 1
            ),
            "anchor": anchor,
            "anchor_share": most / n_ends,
            "corrected_anchor": corrected,
            "corrected_anchor_lift": lift,
            "pair_ends": counts,
        }


def _attention_statistics(
    A: Tensor, V: Tensor, kinds: dict[str, Tensor]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Attention of the body tokens to each kind of key, plain and weighted by the length of what is read.

    A is (head, query, key), V (head, key, d_head); (head,) each."""
    weighted = A * V.norm(dim=-1).unsqueeze(-2)
    total = weighted.sum(-1)
    found = {}
    for name, kind in kinds.items():
        exists = bool(kind.any())
        plain = A[..., kind].sum(-1).mean(-1)
        share = (weighted[..., kind].sum(-1) / total).mean(-1)
        found[name] = (plain, share) if exists else (plain * math.nan, share * math.nan)
    return found


def _through_separators(
    z: Tensor,
    S: Tensor,
    A: Tensor,
    V: Tensor,
    separators: Tensor,
    pairs: Tensor,
    sizes: Sequence[int],
) -> dict[str, Tensor]:
    """How much of the scalar product of the strongest pairs comes through separators: (head, share) each.

    The sums of ``decompose``, for these pairs only; z is (head, query, d_head), S (head, query, query), A (head, query,
    key), V (head, key, d_head).
    """
    read, values = A[..., separators], V[:, separators]  # (head, query, sep), (head, sep, d_head)
    z_other = z - read @ values  # (head, query, d_head)
    length = (values**2).sum(-1)  # (head, sep), squared
    flat = pairs[..., 0] * A.shape[1] + pairs[..., 1]  # (head, pair)
    last = torch.tensor([size - 1 for size in sizes], device=A.device)

    def summed(products: Tensor) -> Tensor:
        return products.flatten(-2).gather(-1, flat).cumsum(-1)[:, last]

    total = summed(S)
    other = summed(z_other @ z_other.mT)
    same = summed((read * length[:, None]) @ read.mT)
    missing = torch.where(total > 0, 0.0, math.nan)  # a share of nothing, or of less, means nothing
    return {
        "through_separators": (total - other) / total + missing,
        "same_separator": same / total + missing,
    }


def _measured(
    output: HeadOutputs, frame: _TextFrame, mean: Tensor | None, settings: dict
) -> dict[str, np.ndarray]:
    """Every statistic of one text; the axes are those of ``STATISTICS`` without condition and text."""
    body = output.is_body
    metrics, n_pairs = settings["metrics"], frame.n * (frame.n - 1) // 2
    sizes = [n_high_pairs(n_pairs, share) for share in settings["share"]]
    separators = output.is_sep | output.is_sentence_end
    kinds = {
        "sep_token": output.is_sep,
        "sentence_end": output.is_sentence_end,
        "special": ~body & ~output.is_sep,
    }
    aurocs = ("repetition_auroc", "adjacent_auroc", "collocation_auroc")
    places = body.nonzero().squeeze(-1)
    # the text itself stands together: a slice copies nothing
    inside = slice(int(places[0]), int(places[-1]) + 1)
    layers = []
    for layer in range(len(output.z)):
        z, A = output.z[layer][:, inside].float(), output.attention[layer][:, inside].float()
        V = output.v[layer].float()
        means = {metric: mean[layer] if metric == "centred" else None for metric in metrics}
        attention = _attention_statistics(A, V, kinds)
        among_body = A[..., inside]  # (head, query, key)
        row = {
            "attention_entropy": -(A * A.clamp_min(1e-30).log()).sum(-1).mean(-1),
            "attention_previous": among_body.diagonal(-1, 1, 2).mean(-1),
            "attention_next": among_body.diagonal(1, 1, 2).mean(-1),
            "attention_self": among_body.diagonal(0, 1, 2).mean(-1),
            "special_attention": attention["special"][0],
            "special_weighted": attention["special"][1],
        }
        for number, name in enumerate(("separator_attention", "separator_weighted")):
            ours = [attention[kind][number] for kind in SEPARATORS[:2]]
            row[name] = torch.stack([*ours, torch.full_like(ours[0], math.nan)], 1)
        by_metric = []
        for metric in metrics:
            S = similarity(z, metric, means[metric])
            ranked = RankedPairs(S)
            pairs = ranked.top(max(settings["share"]))
            found = frame.of_pairs(pairs, sizes)
            found |= dict(zip(aurocs, frame.aurocs(ranked)))
            found["mean_similarity"] = ranked.values.mean(-1)
            if metric == "dot":
                row |= _through_separators(z, S, A, V, separators, pairs, sizes)
            by_metric.append(found)
        row |= {name: torch.stack([f[name] for f in by_metric], 1) for name in by_metric[0]}
        x = output.input[layer, inside].float()
        entering = [
            frame.aurocs(RankedPairs(similarity(x, m, x.mean(0) if m == "centred" else None)))
            for m in metrics
        ]
        row |= {
            f"input_{name}": torch.stack([found[number] for found in entering])
            for number, name in enumerate(aurocs)
        }
        layers.append(row)
    everything = {
        name: torch.stack([row[name] for row in layers]).cpu().numpy() for name in layers[0]
    }
    n_heads = output.z.shape[1]
    chance = frame.by_chance(
        len(layers) * n_heads, sizes, text_rng(output.text, settings["seed"], "pairs")
    )
    everything |= {
        name: values.unflatten(0, (len(layers), n_heads)).cpu().numpy()
        for name, values in chance.items()
    }
    everything["all_distances"] = frame.all_distances.cpu().numpy()
    share_of_keys = [float(kinds[kind].float().mean()) or math.nan for kind in SEPARATORS[:2]]
    everything["separator_keys"] = np.array([*share_of_keys, math.nan])
    return everything


def _between(output: HeadOutputs) -> dict[str, np.ndarray]:
    """What separators between all sentences get: (layer, head), and the share of tokens that are such separators."""
    layers = []
    for A, V in zip(output.attention, output.v):
        A, V = A[:, output.is_body].float(), V.float()
        attention = _attention_statistics(A, V, {"between": output.is_sep})
        layers.append(torch.stack(attention["between"]))
    plain, weighted = torch.stack(layers, 1).cpu().numpy()
    share_of_keys = output.is_sep.float().mean().cpu().numpy()
    return {
        "separator_attention": plain,
        "separator_weighted": weighted,
        "separator_keys": share_of_keys,
    }


def _in_threads(
    function: Callable, items: Iterable[tuple[int, HeadOutputs]], device: torch.device
) -> Iterator[tuple[int, Any]]:
    """The function of each item, in order; on a CPU as many side by side as torch has threads, with one thread each.

    The operations of one text are too small to be shared by threads; a GPU is kept busy by one.
    """
    n_threads = torch.get_num_threads() if device.type == "cpu" else 1
    items = iter(items)  # runs the model, with all threads
    with ThreadPoolExecutor(n_threads) as pool:
        while group := list(islice(items, n_threads)):
            if device.type == "cpu":
                torch.set_num_threads(1)
            try:
                results = list(pool.map(function, [output for _, output in group]))
            finally:
                if device.type == "cpu":
                    torch.set_num_threads(n_threads)
            yield from zip([row for row, _ in group], results)


# --- many texts ---------------------------------------------------------------------------------


def _shard(
    corpus: Corpus, chosen: list[int], plan: _Plan, settings: dict, batch_tokens: int, bar: tqdm
) -> tuple[xr.Dataset, np.ndarray]:
    """Some texts under every condition: the statistics per text, and ends of high pairs by token type."""
    model = plan.models["model"][0]
    sizes = {
        "condition": len(plan.models),
        "text": len(chosen),
        "layer": model.n_layers,
        "head": model.n_heads,
        "metric": len(settings["metrics"]),
        "share": len(settings["share"]),
        "separator": len(SEPARATORS),
        "distance": len(DISTANCES),
    }
    arrays = {
        name: np.full(
            [sizes[d] for d in dims],
            -1 if name in COUNTS else np.nan,
            "int32" if name in COUNTS else "float32",
        )
        for name, (dims, _, _) in STATISTICS.items()
    }
    n_by_layer = [sizes[d] for d in PAIRS[2:]]
    pair_ends = np.zeros((len(plan.models), *n_by_layer, len(plan.token_types)), "int32")
    texts = [corpus[index] for index in chosen]
    options = dict(max_tokens=settings["max_tokens"], batch_tokens=batch_tokens)
    n_sentences = [0] * len(chosen)
    for c, (condition, (each, shuffle)) in enumerate(plan.models.items()):

        def read(each=each, shuffle=shuffle, **how):
            return iter_head_outputs(each, texts, shuffle=shuffle, **how, **options)

        def measured(output, condition=condition):
            frame = _TextFrame(output, plan, condition)
            return frame, _measured(output, frame, plan.means.get(condition), settings)

        if each.tokenizer.sep_token_id is not None:
            outputs = read(what=("attention", "v"), separators="between")
            for row, found in _in_threads(_between, outputs, each.device):
                for name, values in found.items():
                    arrays[name][c, row, ..., SEPARATORS.index("between")] = values
        outputs = read(what=("z", "attention", "v", "input"))
        for row, (frame, found) in _in_threads(measured, outputs, each.device):
            types = np.searchsorted(plan.token_types, frame.types.cpu().numpy())
            pair_ends[c, ..., types] += np.moveaxis(found.pop("pair_ends"), -1, 0).astype("int32")
            for name, values in found.items():
                target = arrays[name][c, row]
                np.copyto(target, values, where=np.isfinite(values), casting="same_kind")
            n_sentences[row] = len(frame.sentence.unique())
            bar.update()
    coordinates = {
        "text": ("text", chosen, {"long_name": "place in the corpus, counted from 0"}),
        "source": ("text", np.array([text.source for text in texts], dtype=object)),
        "n_tokens": (
            "text",
            [plan.n_tokens[index] for index in chosen],
            {"long_name": "tokens read, special ones not counted"},
        ),
        "n_cut": ("text", [plan.n_cut[index] for index in chosen], {"long_name": "tokens cut off"}),
        "n_sentences": ("text", n_sentences, {"long_name": "sentences read, wholly or in part"}),
    }
    variables = {
        name: (dims, arrays[name], {"units": unit, "long_name": definition})
        for name, (dims, unit, definition) in STATISTICS.items()
    }
    return xr.Dataset(variables, coordinates), pair_ends


def _per_corpus(plan: _Plan, settings: dict, pair_ends: np.ndarray) -> xr.Dataset:
    """What belongs to the corpus as a whole, and the labels of all axes but text."""
    model = plan.models["model"][0]
    data = xr.Dataset(
        {
            "token_count": (
                "token_type",
                [plan.counts[i] for i in plan.token_types.tolist()],
                {"units": "tokens", "long_name": "how often the token type stands in the corpus"},
            ),
            "pair_ends": (
                PAIR_ENDS,
                pair_ends,
                {
                    "units": "pair ends",
                    "long_name": "ends of high pairs of this token type, over all texts",
                },
            ),
        },
        {
            "condition": list(plan.models),
            "layer": (
                "layer",
                np.arange(1, model.n_layers + 1),
                {"long_name": "layer, counted from 1"},
            ),
            "head": (
                "head",
                np.arange(1, model.n_heads + 1),
                {"long_name": "head, counted from 1"},
            ),
            "metric": settings["metrics"],
            "share": (
                "share",
                settings["share"],
                {"long_name": "share of all pairs that counts as high"},
            ),
            "separator": list(SEPARATORS),
            "distance": (
                "distance",
                list(DISTANCES),
                {"units": "tokens", "long_name": "lower edge of the bin"},
            ),
            "token_type": ("token_type", plan.token_types, {"long_name": "vocabulary index"}),
            "token": ("token_type", np.array(plan.labels, dtype=object)),
        },
    )
    if plan.means:
        means = torch.stack([plan.means[condition] for condition in plan.models]).cpu().numpy()
        data["mean_z"] = (
            ("condition", "layer", "head", "d_head"),
            means,
            {"units": "as z", "long_name": "mean head output vector over all tokens of the corpus"},
        )
    return data


def _attributes(plan: _Plan, provenance: dict, done: list[int]) -> dict:
    """What is true of all variables; ``done`` are the texts measured, all of them unless it was interrupted."""
    complete = len(done) == len(plan.kept)
    note = {} if complete else {"note": "token_count and mean_z are those of the whole corpus"}
    return {
        "title": "Statistics of attention heads, text by text",
        "complete": complete,
        "provenance": json.dumps(provenance, sort_keys=True),
        "tokens_read": sum(plan.n_tokens[index] for index in done),
        "tokens_cut": sum(plan.n_cut[index] for index in done),
        "texts_given": len(plan.kept) + len(plan.dropped),
        "texts_dropped": plan.dropped,
        "n_collocations": len(plan.collocations),
    } | note


class _Memory:
    """Keeps finished shards in memory, when no place to keep them is given."""

    def __init__(self) -> None:
        self.shards: list[xr.Dataset] = []
        self.pair_ends: np.ndarray | int = 0

    def has(self, number: int) -> bool:
        return False

    def keep(self, number: int, shard: xr.Dataset, pair_ends: np.ndarray) -> None:
        self.shards.append(shard)
        self.pair_ends = self.pair_ends + pair_ends

    def interrupted(self, plan: _Plan | None, settings: dict, provenance: dict) -> str:
        return "The survey was interrupted and nothing is kept: with out='NAME.zarr' it could go on where it stopped."

    def finish(self, plan: _Plan, settings: dict, provenance: dict) -> None:
        data = xr.concat(
            self.shards,
            "text",
            data_vars="minimal",
            coords="minimal",
            compat="override",
            join="override",
        )
        per_corpus = _per_corpus(plan, settings, self.pair_ends)
        attributes = _attributes(plan, provenance, plan.kept)
        self.data = data.merge(per_corpus).assign_attrs(attributes)

    def read(self) -> xr.Dataset:
        return self.data


class _Store:
    """A survey on disk: finished shards next to it while it runs, one Zarr store when it is done or interrupted."""

    def __init__(self, path: Path, provenance: dict):
        self.path, self.parts = path, path.with_suffix(".parts")
        self.complete = False
        note = self.parts / "provenance.json"
        held = None
        if path.exists():
            try:
                with xr.open_zarr(path, chunks=None) as data:
                    held, self.complete = (
                        json.loads(data.attrs["provenance"]),
                        data.attrs["complete"],
                    )
            except (OSError, KeyError, ValueError) as error:
                raise ValueError(
                    f"out={str(path)!r} is there and holds no survey: give another out=, or delete it."
                ) from error
        elif self._shards():
            held = json.loads(note.read_text("utf-8"))
        if held not in (None, json.loads(json.dumps(provenance))):
            differs = ", ".join(key for key in provenance if held.get(key) != provenance[key])
            raise ValueError(
                f"out={str(path)!r} holds a survey with another {differs}: give another out=, or delete that one "
                f"(and {self.parts.name} next to it, if it is there)."
            )
        if self.complete:
            return
        try:
            self.parts.mkdir(parents=True, exist_ok=True)
            note.write_text(json.dumps(provenance), "utf-8")
        except OSError as error:
            raise ValueError(
                f"out={str(path)!r} cannot be written ({error.strerror}): give a place where you may write."
            ) from error

    def _shards(self) -> list[Path]:
        return sorted(self.parts.glob("[0-9]*.zarr"))

    def has(self, number: int) -> bool:
        return (self.parts / f"{number:06d}.zarr").exists()

    def keep(self, number: int, shard: xr.Dataset, pair_ends: np.ndarray) -> None:
        unfinished = self.parts / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        shard["pair_ends"] = (PAIR_ENDS, pair_ends)
        shard.to_zarr(unfinished, **_FORMAT)
        os.replace(unfinished, self.parts / f"{number:06d}.zarr")

    def _assemble(self, plan: _Plan, settings: dict, provenance: dict) -> int:
        """One store of all shards, one shard in memory at a time; returns how many texts are in it."""
        unfinished = self.parts / "assembled"
        shutil.rmtree(unfinished, ignore_errors=True)
        pair_ends, done = 0, []
        for number, path in enumerate(self._shards()):
            with xr.open_zarr(path, chunks=None) as shard:
                pair_ends = pair_ends + shard.pair_ends.values
                shard = shard.drop_vars("pair_ends").load()
            done += shard.text.values.tolist()
            shard["source"] = shard.source.astype(object)  # as it was first written
            for name in shard.variables:
                shard[name].encoding.clear()
            shard.to_zarr(unfinished, **(_FORMAT if number == 0 else {"append_dim": "text"}))
        per_corpus = _per_corpus(plan, settings, pair_ends)
        attributes = _attributes(plan, provenance, done)
        per_corpus.assign_attrs(attributes).to_zarr(unfinished, mode="a")
        shutil.rmtree(self.path, ignore_errors=True)
        os.replace(unfinished, self.path)
        return len(done)

    def interrupted(self, plan: _Plan | None, settings: dict, provenance: dict) -> str:
        if plan is None or not self._shards():
            return (
                f"The survey was interrupted before {SHARD_TEXTS} texts were done: nothing is kept."
            )
        done = self._assemble(plan, settings, provenance)
        return (
            f"The survey was interrupted; {done} of {len(plan.kept)} texts are done and kept in {self.path}: the same "
            "call with the same out= goes on from there."
        )

    def finish(self, plan: _Plan, settings: dict, provenance: dict) -> None:
        self._assemble(plan, settings, provenance)
        shutil.rmtree(self.parts)

    def read(self) -> xr.Dataset:
        return xr.open_zarr(self.path, chunks=None)


_FORMAT = {"mode": "w", "zarr_format": 2}  # version 3 has no settled way to store strings
