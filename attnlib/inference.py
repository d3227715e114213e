"""From a survey to verdicts: intervals over texts, tests over heads, and what a claim needs to hold."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from operator import itemgetter

import numpy as np
import xarray as xr
from scipy.stats import DegenerateDataWarning, bootstrap, false_discovery_control, norm, ttest_1samp
from scipy.stats import t as student

ALPHA = 0.05  # 95 % intervals; false discovery rate over layers x heads
RESAMPLES = 2000
# the settings that a claim is swept over, and the one that its headline uses
HEADLINE = {
    "metric": "dot",
    "share": 0.01,
    "separator": "between",
    "weight": "attention",
    "anchor": "raw",
}


@dataclass(frozen=True)
class Claim:
    """A claim, and what it is measured by; ``sweep`` names the settings that could have been chosen otherwise."""

    statement: str
    estimate: str
    sweep: tuple[str, ...]
    notebook: str


CLAIMS: dict[str, Claim] = {
    "S1": Claim(
        "The attention of the final layers focuses on separators",
        "attention to separators, last third of the layers minus first third",
        ("separator", "weight"),
        "03_follow_the_separators",
    ),
    "S2": Claim(
        "Some heads detect repetitions",
        "AUROC for pairs of the same token, best head",
        ("metric",),
        "04_name_the_heads",
    ),
    "S3": Claim(
        "Some heads bind a token to its context",
        "AUROC for words that belong together among adjacent words, best head",
        ("metric",),
        "04_name_the_heads",
    ),
    "S4": Claim(
        "High similarity goes from long range to short range with depth",
        "mean distance of high pairs, last layer against first, change",
        ("metric", "share"),
        "05_watch_the_range_shrink",
    ),
    "S5": Claim(
        "High similarity comes to prefer the same sentence",
        "same-sentence lift in the last third of the layers",
        ("metric", "share"),
        "05_watch_the_range_shrink",
    ),
    "S6": Claim(
        "Each head has an anchor token of its own",
        "distinct anchors in a text / heads",
        ("metric", "share", "anchor"),
        "06_find_each_heads_anchor",
    ),
}


@dataclass(frozen=True)
class Level:
    """One level that an estimate is held against: both sides, and their difference with its interval.

    The intervals of the levels that decide hold together with 95 % (Bonferroni), so that one of many does not fall on
    the wrong side by chance.
    ``decides`` says whether the verdict needs it; a level that does not is shown beside it.
    """

    ours: float
    level: float
    difference: float
    low: float
    high: float
    decides: bool = True


@dataclass(frozen=True)
class Verdict:
    """What the texts say about a claim; see ``judge``."""

    claim: str
    statement: str
    estimate_label: str
    verdict: str  # supported, contradicted, undecided, n/a
    estimate: float
    low: float
    high: float
    levels: dict[str, Level]
    caveats: tuple[str, ...]  # levels that do not decide and that the estimate does not exceed
    controls: dict[str, float]  # the same estimate in each control of the survey
    setting: dict
    n_texts: int
    heads: dict  # of a claim about some heads: the best one, and how many pass; else empty
    # the same for every setting, by the values of ``setting``; empty in those
    sweep: dict[tuple, "Verdict"] = field(default_factory=dict)

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdict of each setting."""
        return {", ".join(map(str, values)): each.verdict for values, each in self.sweep.items()}

    @property
    def robustness(self) -> float:
        """The share of the settings with the same verdict; NaN in a verdict of the sweep itself."""
        same = [each.verdict == self.verdict for each in self.sweep.values()]
        return sum(same) / len(same) if same else math.nan

    def as_dict(self) -> dict:
        """Plain Python types, for a results file; of the other settings only the verdicts."""
        fields = asdict(replace(self, sweep={}))
        del fields["sweep"]
        return fields | {"robustness": self.robustness, "verdicts": self.verdicts}


def interval(values: np.ndarray, *, seed: int = 0) -> tuple[float, float, float]:
    """Mean over texts, and its 95 % interval by the percentile bootstrap (2,000 resamples, fixed seed).

    The percentiles are moved outwards as the t distribution is wider than the normal one, since plain ones cover too
    little with few texts (expanded percentile interval: Hesterberg 2015, arXiv 1411.5279).
    ``values`` is (text,); texts in which the measure does not exist (NaN) are left out.  NaN with fewer than two.

    >>> interval(np.array([1.0, 1.0, 1.0]))
    (1.0, 1.0, 1.0)
    """
    found = _bootstrapped(
        {"value": np.asarray(values, float)}, {"mean": lambda m: m["value"]}, seed
    )
    return found["mean"]


def _bootstrapped(
    columns: dict[str, np.ndarray],
    functions: dict[str, Callable],
    seed: int,
    n_together: dict[str, int] | None = None,
) -> dict[str, tuple[float, float, float]]:
    """Functions of the means of columns (text,), each with its interval; texts are drawn whole, the same for all.

    ``n_together`` says of how many intervals one is that have to hold all at once.
    """
    table = np.array([*columns.values()], float)  # (column, text)
    table = table[:, np.isfinite(table).all(0)]
    n_texts = table.shape[1]
    if n_texts < 2:
        return dict.fromkeys(functions, (math.nan, math.nan, math.nan))

    def of_means(*means) -> np.ndarray:
        named = dict(zip(columns, means))
        return np.stack([function(named) + 0.0 * means[0] for function in functions.values()])

    with np.errstate(invalid="ignore", divide="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateDataWarning)  # a measure that never varies
        drawn = bootstrap(
            tuple(table),
            lambda *drawn, axis: of_means(*(each.mean(axis) for each in drawn)),
            paired=True,
            vectorized=True,
            n_resamples=RESAMPLES,
            method="percentile",
            rng=np.random.default_rng(seed),
        ).bootstrap_distribution  # (function, resample)
        values = of_means(*table.mean(1))
    found = {}
    for name, value, distribution in zip(functions, values, drawn):
        tail = _tail(n_texts, (n_together or {}).get(name, 1))
        low, high = np.quantile(distribution, [tail, 1 - tail])
        found[name] = float(value), float(low), float(high)
    return found


def _tail(n_texts: int, n_together: int = 1) -> float:
    """The share of resamples to leave out on each side, so that intervals cover 95 %, with few texts too.

    Of several intervals that have to hold together each leaves out so many times less (Bonferroni).

    >>> round(_tail(300), 4), round(_tail(300, 2), 4), round(_tail(5), 4)
    (0.0243, 0.012, 0.001)
    """
    t = student.isf(ALPHA / n_together / 2, n_texts - 1)
    return float(norm.sf(math.sqrt(n_texts / (n_texts - 1)) * t))


# --- claims about layers ------------------------------------------------------------------------


def first_third(data: xr.DataArray) -> xr.DataArray:
    """The first third of the layers, at least one: of 6 layers the first 2.

    >>> first_third(xr.DataArray(np.arange(1, 7), dims="layer")).values.tolist()
    [1, 2]
    """
    return data.isel(layer=slice(0, max(1, round(data.sizes["layer"] / 3))))


def last_third(data: xr.DataArray) -> xr.DataArray:
    """The last third of the layers, at least one.

    >>> last_third(xr.DataArray(np.arange(1, 7), dims="layer")).values.tolist()
    [5, 6]
    """
    return data.isel(layer=slice(-max(1, round(data.sizes["layer"] / 3)), None))


@dataclass
class _Quantity:
    """An estimate and its levels as functions of the means of some columns, each (text,)."""

    columns: dict[str, np.ndarray]
    estimates: dict[str, Callable]  # of the named means, for the model and for each control
    levels: dict[str, tuple[Callable, Callable]]  # name: ours, level
    above: bool  # the side of the levels that the claim is on
    shown: tuple[str, ...] = ()  # levels that do not decide


def _conditions(data: xr.Dataset) -> list[str]:
    """The model and the controls."""
    return data.condition.values.tolist()


def _by_text(values: xr.DataArray) -> np.ndarray:
    """Mean over layers and heads, text by text."""
    return values.mean([d for d in values.dims if d != "text"], skipna=True).values


def _separators(data: xr.Dataset, setting: dict) -> _Quantity:
    name = "separator_attention" if setting["weight"] == "attention" else "separator_weighted"
    chosen = data.sel(separator=setting["separator"])
    columns = {"keys": chosen.separator_keys.sel(condition="model").values}
    for each in _conditions(data):
        attention = chosen[name].sel(condition=each)
        columns[f"first {each}"] = _by_text(first_third(attention))
        columns[f"last {each}"] = _by_text(last_third(attention))

    def change(condition: str) -> Callable:
        return lambda m: m[f"last {condition}"] - m[f"first {condition}"]

    estimates = {each: change(each) for each in _conditions(data)}
    levels = {
        "no change": (estimates["model"], lambda m: 0.0),
        "share of such tokens (last third)": (lambda m: m["last model"], lambda m: m["keys"]),
    }
    if "untrained" in estimates:
        levels["untrained"] = (estimates["model"], estimates["untrained"])
    return _Quantity(columns, estimates, levels, above=True)


def _distance(data: xr.Dataset, setting: dict) -> _Quantity:
    chosen = data.relative_distance.sel(metric=setting["metric"], share=setting["share"])
    columns = {}
    for each in _conditions(data):
        columns[f"first {each}"] = _by_text(chosen.sel(condition=each).isel(layer=0))
        columns[f"last {each}"] = _by_text(chosen.sel(condition=each).isel(layer=-1))

    def change(condition: str) -> Callable:
        return lambda m: m[f"last {condition}"] / m[f"first {condition}"] - 1

    estimates = {each: change(each) for each in _conditions(data)}
    levels = {
        "no change": (estimates["model"], lambda m: 0.0),
        "pairs at random (last layer)": (lambda m: m["last model"], lambda m: 1.0),
    }
    levels |= {each: (estimates["model"], estimates[each]) for each in estimates if each != "model"}
    return _Quantity(columns, estimates, levels, above=False)


def _same_sentence(data: xr.Dataset, setting: dict) -> _Quantity:
    chosen = data.sel(metric=setting["metric"], share=setting["share"])
    ours = chosen.sel(condition="model")
    columns = {
        "first": _by_text(first_third(ours.same_sentence_lift)),
        "expected": _by_text(last_third(ours.same_sentence_expected)),
    }
    for each in _conditions(data):
        columns[each] = _by_text(last_third(chosen.same_sentence_lift.sel(condition=each)))
    estimates = {each: itemgetter(each) for each in _conditions(data)}
    levels = {
        "pairs at random": (estimates["model"], lambda m: 1.0),
        "nearness alone": (estimates["model"], itemgetter("expected")),
        "first third": (estimates["model"], itemgetter("first")),
    }
    return _Quantity(columns, estimates, levels, above=True, shown=("first third",))


def distinct_share(anchors: xr.DataArray) -> xr.DataArray:
    """How many different anchors the heads of a text have, per head: 1 if each has its own.

    ``anchors`` has the dimension head, and layer if it is to be counted over all layers; vocabulary indices.

    >>> float(distinct_share(xr.DataArray([[5, 5, 7, 9]], dims=("layer", "head"))))
    0.75
    """
    dims = [dim for dim in ("layer", "head") if dim in anchors.dims]
    stacked = np.sort(anchors.stack(all_heads=dims).transpose(..., "all_heads").values, axis=-1)
    counted = 1 + (np.diff(stacked, axis=-1) != 0).sum(-1)
    left = [dim for dim in anchors.dims if dim not in dims]
    coords = {dim: anchors[dim] for dim in left if dim in anchors.coords}
    return xr.DataArray(counted / stacked.shape[-1], coords, left)


def usual_anchor(anchors: xr.DataArray) -> xr.DataArray:
    """The anchor that each head has in the most texts (the lowest vocabulary index among equals).

    >>> usual_anchor(xr.DataArray([[5], [7], [7]], dims=("text", "head"))).values.tolist()
    [7]
    """
    values, index = np.unique(anchors.values, return_inverse=True)
    axis = anchors.get_axis_num("text")
    index = np.moveaxis(index.reshape(anchors.shape), axis, -1)  # (..., text)
    counts = np.zeros((*index.shape[:-1], len(values)), int)
    where = np.indices(index.shape)[:-1]
    np.add.at(counts, (*where, index), 1)
    return anchors.isel(text=0, drop=True).copy(data=values[counts.argmax(-1)])


def kept_anchor(anchors: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Whether a head has, in each text, the anchor it usually has in the *other* half of the texts; every other text
    is in one half.

    Returns two shares of heads per text, 0 to 1: with the head's own usual anchor, and, for comparison, with the usual
    anchor of each other head.

    >>> anchors = xr.DataArray([[[5, 7]], [[5, 7]]], dims=("text", "layer", "head"))
    >>> [share.values.tolist() for share in kept_anchor(anchors)]
    [[1.0, 1.0], [0.0, 0.0]]
    """
    flat = anchors.stack(all_heads=("layer", "head")).transpose("text", "all_heads")
    values = flat.values
    n_texts, n_heads = values.shape
    own, other = np.full((2, n_texts), np.nan)
    for half in range(min(2, n_texts)):
        usual = usual_anchor(flat.isel(text=slice(1 - half, None, 2))).values  # (head,)
        here = values[half::2]
        own[half::2] = (here == usual).mean(-1)
        kinds, n_usual = np.unique(usual, return_counts=True)
        n_alike = np.append(n_usual, 0)[np.searchsorted(kinds, here)] * np.isin(here, kinds)
        # of all usual anchors that a head's anchor is like, its own left out
        other[half::2] = (n_alike.mean(-1) - own[half::2]) / max(1, n_heads - 1)
    coords = {"text": anchors.text} if "text" in anchors.coords else {}
    return tuple(xr.DataArray(each, coords, ["text"]) for each in (own, other))


def _anchors(data: xr.Dataset, setting: dict) -> _Quantity:
    prefix = "" if setting["anchor"] == "raw" else "corrected_"
    chosen = data.sel(share=setting["share"])
    groups = {
        each: chosen[f"{prefix}anchor"].sel(metric=setting["metric"], condition=each)
        for each in _conditions(data)
    }
    estimates = {each: itemgetter(f"distinct {each}") for each in groups}
    groups["chance"] = chosen[f"{prefix}anchor_by_chance"].sel(condition="model")
    columns = {f"distinct {each}": distinct_share(group).values for each, group in groups.items()}
    for each in [name for name in ("model", "untrained") if name in groups]:
        own, other = kept_anchor(groups[each])
        columns[f"kept {each}"], columns[f"other {each}"] = own.values, other.values

    def excess(condition: str) -> Callable:
        return lambda m: m[f"kept {condition}"] - m[f"other {condition}"]

    levels = {
        "pairs at random": (estimates["model"], itemgetter("distinct chance")),
        "kept: another head's anchor": (itemgetter("kept model"), itemgetter("other model")),
    }
    if "untrained" in groups:
        levels["untrained"] = (estimates["model"], estimates["untrained"])
        levels["kept: excess over another head's, untrained"] = (
            excess("model"),
            excess("untrained"),
        )
    return _Quantity(columns, estimates, levels, above=True)


_LAYER_CLAIMS = {"S1": _separators, "S4": _distance, "S5": _same_sentence, "S6": _anchors}


def _judge_layers(claim: str, data: xr.Dataset, setting: dict, seed: int) -> dict:
    quantity = _LAYER_CLAIMS[claim](data, setting)
    functions = {f"estimate {name}": each for name, each in quantity.estimates.items()}
    for name, (ours, level) in quantity.levels.items():
        functions |= {
            f"ours {name}": ours,
            f"level {name}": level,
            name: lambda m, a=ours, b=level: a(m) - b(m),
        }
    together = sum(name not in quantity.shown for name in quantity.levels)
    found = _bootstrapped(
        quantity.columns, functions, seed, {name: together for name in quantity.levels}
    )
    levels = {
        name: Level(
            found[f"ours {name}"][0],
            found[f"level {name}"][0],
            *found[name],
            decides=name not in quantity.shown,
        )
        for name in quantity.levels
    }
    estimate, low, high = found["estimate model"]
    finite = np.isfinite(np.array([*quantity.columns.values()], float)).all(0)
    return dict(
        verdict=_side(levels, quantity.above),
        caveats=_caveats(levels, quantity.above),
        estimate=estimate,
        low=low,
        high=high,
        levels=levels,
        controls={name: found[f"estimate {name}"][0] for name in _conditions(data)[1:]},
        n_texts=int(finite.sum()),
        heads={},
    )


def _edges(level: Level, above: bool) -> tuple[float, float]:
    """The interval of the difference, turned so that the claimed side is above 0."""
    return (level.low, level.high) if above else (-level.high, -level.low)


def _side(levels: dict[str, Level], above: bool) -> str:
    """On which side of the levels that decide an estimate lies."""
    edges = [_edges(level, above) for level in levels.values() if level.decides]
    if not np.isfinite(edges).all():
        return "n/a"
    if all(low > 0 for low, _ in edges):
        return "supported"
    return "contradicted" if any(high < 0 for _, high in edges) else "undecided"


def _caveats(levels: dict[str, Level], above: bool) -> tuple[str, ...]:
    """The other levels, if the estimate does not exceed them as the claim would have it."""
    return tuple(
        name
        for name, level in levels.items()
        if not level.decides and not _edges(level, above)[0] > 0
    )


# --- claims that some heads do a thing ----------------------------------------------------------


@dataclass(frozen=True)
class Role:
    """A thing that a head can do: its score, and the levels that it has to exceed to have the role."""

    meaning: str
    score: str
    unit: str


ROLES: dict[str, Role] = {
    "repetition": Role("treats repeated tokens alike", "repetition_auroc", "AUROC"),
    "collocation": Role("treats words that belong together alike", "collocation_auroc", "AUROC"),
    "neighbour": Role("treats adjacent tokens alike", "adjacent_auroc", "AUROC"),
    "separator": Role("reads separators", "separator_attention", "share of attention"),
    "same sentence": Role(
        "treats tokens of one sentence alike, more than their nearness explains",
        "same_sentence_lift",
        "ratio to chance",
    ),
    "broad": Role("reads most of the text about evenly", "attention_entropy", "nat"),
}
FALLBACK = "broad"  # says the least, so any other role that a head has comes first


def role_scores(
    data: xr.Dataset, role: str, *, metric: str = "dot", share: float = 0.01
) -> tuple[xr.DataArray, dict[str, xr.DataArray]]:
    """Score of every head for a role, text by text, and the levels it is held against.

    Returns (condition, text, layer, head), and for each level an array that broadcasts with (text, layer, head):

    * repetition: the token embeddings alone (what enters layer 1), the untrained model's best head, shuffled text
    * collocation: the other adjacent words (0.5), the token embeddings alone, the untrained model's best head
    * neighbour: all pairs (0.5), the token embeddings alone, the untrained model's best head
    * separator: their share of all tokens, the untrained model's best head; separators are the separator token at the
      end and the punctuation that ends sentences, together
    * same sentence: pairs at random (1), what nearness alone predicts, the untrained model's best head
    * broad: ln(n / 2), the entropy of reading half of the n tokens evenly

    The untrained model's best head is the one with the highest mean on the first half of the texts.

    >>> from attnlib import load_corpus, load_model, survey
    >>> data = survey(load_model("minilm"), load_corpus("passages", limit=2), max_tokens=32, progress=False)
    >>> scores, levels = role_scores(data, "neighbour")
    >>> scores.dims, list(levels)
    (('condition', 'text', 'layer', 'head'), ['all pairs', 'token embeddings'])
    """
    name = ROLES[role].score
    scores = data[name]
    if role == "separator":
        scores = scores.sel(separator=["sep_token", "sentence_end"]).sum("separator", min_count=1)
    scores = scores.sel({"metric": metric} if "metric" in scores.dims else {})
    scores = scores.sel({"share": share} if "share" in scores.dims else {})
    model = data.sel(condition="model")
    levels: dict[str, xr.DataArray | float] = {}
    if role in ("repetition", "collocation", "neighbour"):
        if role != "repetition":
            levels["all pairs" if role == "neighbour" else "other adjacent words"] = 0.5
        levels["token embeddings"] = model[f"input_{name}"].sel(metric=metric).isel(layer=0)
    elif role == "separator":
        keys = model.separator_keys.sel(separator=["sep_token", "sentence_end"])
        levels["share of such tokens"] = keys.sum("separator", min_count=1)
    elif role == "same sentence":
        levels["pairs at random"] = 1.0
        expected = model.same_sentence_expected
        levels["nearness alone"] = expected.sel(metric=metric, share=share)
    else:
        levels["half of the text"] = np.log(data.n_tokens / 2)
    if role == "repetition" and "shuffled" in data.condition:
        levels["shuffled text"] = scores.sel(condition="shuffled")
    if role != "broad" and "untrained" in data.condition:
        there = scores.sel(condition="untrained")
        layer, head = _largest(there.isel(text=slice(0, None, 2)).mean("text").values)
        levels["untrained, best head"] = there.isel(layer=layer, head=head)
    template = scores.sel(condition="model", drop=True)
    return scores, {name: _like(level, template) for name, level in levels.items()}


def _like(level: xr.DataArray | float, template: xr.DataArray) -> xr.DataArray:
    """A level spread over the axes of the template: the same for every head unless it has those axes itself."""
    if isinstance(level, xr.DataArray):
        level = level.drop_vars(set(level.coords) - set(level.dims))
    return (level + xr.zeros_like(template)).transpose(*template.dims)


def _largest(values: np.ndarray) -> tuple[int, int]:
    """Place of the largest (layer, head), counted from 0; what does not exist is never the largest."""
    return divmod(int(np.nan_to_num(values, nan=-np.inf).argmax()), values.shape[1])


def _exceed(differences: list[np.ndarray]) -> np.ndarray:
    """Which heads exceed every level, corrected over layers x heads; each difference is (text, layer, head)."""
    p_values = []
    for difference in differences:
        with np.errstate(invalid="ignore", divide="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a measure that does not exist
            p = ttest_1samp(difference, 0, alternative="greater", nan_policy="omit").pvalue
        p = np.ma.filled(np.ma.asarray(p, float), np.nan)
        # without any spread there is no t: a difference that is above 0 in every text is
        missing = np.isnan(difference)
        always = np.where(missing, 1, difference).min(0) > 0
        p_values.append(np.where(np.isfinite(p), p, np.where(always & ~missing.all(0), 0.0, 1.0)))
    # a head has to exceed the level that is hardest for it
    hardest = np.max(p_values, axis=0)
    return (false_discovery_control(hardest.ravel()) <= ALPHA).reshape(hardest.shape)


def passing_heads(scores: xr.DataArray, levels: dict[str, xr.DataArray]) -> xr.DataArray:
    """Which heads exceed every level on one half of the texts and again on the other half: (layer, head), bool.

    In each half a one-sided paired t test over texts against each level; the largest p value of a head counts,
    corrected over layers x heads (Benjamini-Hochberg, false discovery rate 5 %).

    >>> rng = np.random.default_rng(0)
    >>> scores = xr.DataArray(rng.normal([[0.0, 3.0]], 1, (40, 1, 2)), dims=("text", "layer", "head"))
    >>> passing_heads(scores, {"chance": 0 * scores}).values.tolist()
    [[False, True]]
    """
    differences = [
        (scores - level).transpose("text", "layer", "head").values for level in levels.values()
    ]
    halves = [_exceed([d[half::2] for d in differences]) for half in (0, 1)]
    return scores.isel(text=0, drop=True).copy(data=halves[0] & halves[1])


def head_roles(data: xr.Dataset, *, metric: str = "dot", share: float = 0.01) -> xr.Dataset:
    """Which head has which role.

    Returns ``score`` (role, layer, head), the mean over texts; ``margin``, by how much it exceeds the hardest of its
    levels; ``passes``, whether it exceeds all of them by the corrected test in both halves of the texts; and
    ``role_of_head`` (layer, head), the passed role with the largest margin in standard errors ("broad"
    only if there is no other), "" for none.

    >>> from attnlib import load_corpus, load_model, survey
    >>> data = survey(load_model("minilm"), load_corpus("passages", limit=4), max_tokens=32, progress=False)
    >>> dict(head_roles(data).passes.sizes)
    {'role': 6, 'layer': 6, 'head': 12}
    """
    score, margin, passes, clear = [], [], [], []
    for role in ROLES:
        scores, levels = role_scores(data, role, metric=metric, share=share)
        scores = scores.sel(condition="model", drop=True)
        differences = xr.concat([scores - level for level in levels.values()], "level")
        means = differences.mean("text")
        errors = differences.std("text") / np.sqrt(differences.count("text"))
        score.append(scores.mean("text"))
        margin.append(means.min("level"))
        passes.append(passing_heads(scores, levels))
        clear.append((means / errors.where(errors > 0)).min("level"))
    axes = ("role", "layer", "head")
    score, margin, passes, clear = (
        np.stack([each.transpose("layer", "head").values for each in found])
        for found in (score, margin, passes, clear)
    )
    names = np.array([*ROLES])
    clear = np.where((names == FALLBACK)[:, None, None], 0, np.nan_to_num(clear, nan=np.inf))
    ranked = np.where(passes, clear, -np.inf)
    best = np.where(passes.any(0), names[ranked.argmax(0)], "")
    return xr.Dataset(
        {
            "score": (axes, score),
            "margin": (axes, margin),
            "passes": (axes, passes),
            "role_of_head": (("layer", "head"), best),
        },
        {"role": names, "layer": data["layer"], "head": data["head"]},
    )


# claim: role, and the levels that decide
_HEAD_CLAIMS = {
    "S2": ("repetition", ("token embeddings", "untrained, best head", "shuffled text")),
    "S3": ("collocation", ("other adjacent words",)),
}


def best_head(
    scores: xr.DataArray,
    levels: dict[str, xr.DataArray],
    *,
    exceeding: Sequence[str] = (),
    among: xr.DataArray | None = None,
) -> tuple[xr.DataArray, dict[str, xr.DataArray]]:
    """The best head, chosen on every other text and measured on the texts in between: best partly by luck there.

    Parameters
    ----------
    scores : (text, layer, head), as from ``role_scores``
    levels : arrays of the same shape
    exceeding : levels; best is the head that is furthest above the hardest of them; without any it is the one with the
        highest mean score
    among : (layer, head), bool, the heads to choose from, as from ``passing_heads``; None, or none of them: all

    Returns its scores and levels, (text,) each; the coordinates layer and head say which it is.

    >>> scores = xr.DataArray([[[1.0, 4.0]], [[2.0, 3.0]]], {"layer": [1], "head": [1, 2]}, ("text", "layer", "head"))
    >>> best, _ = best_head(scores, {})
    >>> int(best["head"]), best.values.tolist()
    (2, [3.0])
    """
    choosing, measuring = dict(text=slice(0, None, 2)), dict(text=slice(1, None, 2))
    chosen_by = scores.isel(choosing).mean("text")
    if exceeding:
        margins = [(scores - levels[name]).isel(choosing).mean("text") for name in exceeding]
        chosen_by = xr.concat(margins, "level").min("level", skipna=False)
    if among is not None and among.any():
        chosen_by = chosen_by.where(among)
    layer, head = _largest(chosen_by.transpose("layer", "head").values)
    place = dict(layer=layer, head=head) | measuring
    return scores.isel(place), {name: level.isel(place) for name, level in levels.items()}


def _judge_heads(claim: str, data: xr.Dataset, setting: dict, seed: int) -> dict:
    role, deciding = _HEAD_CLAIMS[claim]
    every, levels = role_scores(data, role, metric=setting["metric"])
    scores = every.sel(condition="model", drop=True)
    deciding = [name for name in levels if name in deciding]
    passing = passing_heads(scores, {name: levels[name] for name in deciding})
    best, its_levels = best_head(scores, levels, exceeding=deciding, among=passing)
    estimate, low, high = interval(best.values, seed=seed)
    held = {}
    for name, level in its_levels.items():
        both = np.isfinite(best.values - level.values)
        means = [float(x.values[both].mean()) if both.any() else math.nan for x in (best, level)]
        difference = _bootstrapped(
            {"": best.values - level.values}, {"": lambda m: m[""]}, seed, {"": len(deciding)}
        )[""]
        held[name] = Level(*means, *difference, decides=name in deciding)
    side = _side(held, above=True)
    if side != "n/a":  # one head is enough, but it has to pass the corrected test
        side = "supported" if passing.any() else "undecided" if side == "supported" else side
    return dict(
        verdict=side,
        caveats=_caveats(held, above=True),
        estimate=estimate,
        low=low,
        high=high,
        levels=held,
        controls={name: _highest(every.sel(condition=name)) for name in _conditions(data)[1:]},
        n_texts=int(np.isfinite(best.values).sum()),
        heads={
            "best": [int(best["layer"]), int(best["head"])],
            "passing": int(passing.sum()),
            "of": int(passing.size),
            "above": {
                name: int(passing_heads(scores, {name: level}).sum())
                for name, level in levels.items()
            },
        },
    )


def _highest(scores: xr.DataArray) -> float:
    """The highest mean over texts of any head."""
    means = scores.mean("text").values
    return float(np.nanmax(means)) if np.isfinite(means).any() else math.nan


# --- verdicts -----------------------------------------------------------------------------------


def judge(claim: str, data: xr.Dataset, *, seed: int = 0, **setting) -> Verdict:
    """What a survey says about a claim.

    Parameters
    ----------
    claim : one of ``CLAIMS``
    data : from ``survey``, best with both controls; a level whose control is missing is left out
    seed : of the bootstrap
    setting : a different ``metric``, ``share``, ``separator``, ``weight`` ("attention" or "length") or ``anchor``
        ("raw" or "corrected") than the headline

    The verdict is *supported* if the interval (bootstrap over texts, 95 % for all levels together) of the difference
    to every level lies on the claimed side, *contradicted* if it lies on the other side for one of them, else
    *undecided*; *n/a* if the measure does not exist.  A claim that some heads do a thing is supported if at least one
    head passes ``passing_heads``, and contradicted if the best head, chosen on one half of the texts, lies below one
    level on the other half.  ``sweep`` has the same for every setting, robustness is the share of it with the same
    verdict.

    Raises ValueError for an unknown claim or setting.

    >>> from attnlib import load_corpus, load_model, survey
    >>> data = survey(load_model("minilm"), load_corpus("passages", limit=4), max_tokens=32, progress=False)
    >>> verdict = judge("S4", data)
    >>> verdict.setting, len(verdict.verdicts)
    ({'metric': 'dot', 'share': 0.01}, 9)
    """
    if claim not in CLAIMS:
        raise ValueError(f"claim={claim!r} is unknown: choose one of {', '.join(CLAIMS)}.")
    choices = {
        "metric": data.metric.values.tolist(),
        "share": data.share.values.tolist(),
        "separator": data.separator.values.tolist(),
        "weight": ["attention", "length"],
        "anchor": ["raw", "corrected"],
    }
    chosen = {
        name: value if value in choices[name] else choices[name][0]
        for name, value in HEADLINE.items()
    }
    for name, value in setting.items():
        if name not in choices or value not in choices[name]:
            options = choices.get(name, list(choices))
            raise ValueError(
                f"{name}={value!r} is no setting of this survey: choose among {options}."
            )
    chosen |= setting
    axes = CLAIMS[claim].sweep
    once = _judge_heads if claim in _HEAD_CLAIMS else _judge_layers
    sweep = {}
    for values in product(*(choices[name] for name in axes)):
        each = dict(zip(axes, values))
        sweep[values] = Verdict(
            claim=claim,
            statement=CLAIMS[claim].statement,
            estimate_label=CLAIMS[claim].estimate,
            setting=each,
            **once(claim, data, each, seed),
        )
    return replace(sweep[tuple(chosen[name] for name in axes)], sweep=sweep)
