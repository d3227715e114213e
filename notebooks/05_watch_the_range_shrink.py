# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The range of similarity shrinks to the middle layers, then widens again

# %%
from IPython.display import Markdown

from attnlib import load_results, summary

Markdown(
    "**Published run.** " + summary(load_results("results/minilm/05_watch_the_range_shrink.json"))
)

# %% [markdown]
# ![Left: the mean distance of the most similar pairs of tokens, layer by layer, with dashed lines for chance, the untrained
# model and shuffled text. Right: a map of layers and distances, red where pairs at that distance are more frequent among
# the most similar ones than among all pairs.](figures/05_watch_the_range_shrink.png)
#
# *Left: how far apart the most similar tokens of a text are, compared with two tokens drawn at random. The shaded band is the
# 95 % interval; dashed lines are chance and the two controls. Right: the same pairs by their distance; a column is a layer,
# white is chance, red is more often than chance, blue is less often.*

# %% [markdown]
# **You'll do:** follow the distance between the most similar tokens from layer to layer; ask whether those tokens share a
# sentence more often than their nearness alone explains. **You'll learn:** why the first and the last layer alone do not
# tell how range changes with depth, and which part of it is there without any meaning. **You need:** notebook 02.

# %%
import time
from pathlib import Path

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
import xarray as xr
from matplotlib.colors import LogNorm

from attnlib import (
    head_outputs,
    interval,
    judge,
    layer_head_grid,
    load_corpus,
    load_model,
    relative_distance,
    same_sentence_lift,
    save_figure,
    save_results,
    set_style,
    similarity,
    similarity_map,
    survey,
    top_pairs,
    with_other_models,
)
from attnlib.inference import RESAMPLES, first_third, last_third
from attnlib.similarity import same_sentence_by_distance, same_sentence_chance

# %% tags=["parameters"]
MODEL = "minilm"  # minilm, mpnet, bert-base-uncased, a model hub id, or a folder
CORPUS = "lee"  # passages, lee, wikipedia, a file, a folder, or a glob
N_TEXTS = 300  # texts: the first so many of the corpus
MAX_TOKENS = 256  # tokens of each text that are read, special ones included
DEVICE = "auto"  # auto (cuda, then mps, then cpu), cuda, mps, cpu
DTYPE = "auto"  # auto (as stored), float32, bfloat16, float16
SEED = 0  # of the untrained model, the shuffling and the bootstrap
OUT = "../build"  # folder for the survey, the results and the picture

# %%
start = time.perf_counter()
set_style()
model = load_model(MODEL, device=DEVICE, dtype=DTYPE)
corpus = load_corpus(CORPUS, limit=N_TEXTS)
if len(corpus) < 4:
    raise ValueError(
        f"CORPUS={CORPUS!r} has {len(corpus)} texts: intervals are drawn over texts, so give at least 4."
    )
max_tokens = min(MAX_TOKENS, model.max_tokens)
settings = dict(
    MODEL=model.name, CORPUS=CORPUS, N_TEXTS=N_TEXTS, MAX_TOKENS=max_tokens,
    DEVICE=DEVICE, DTYPE=DTYPE, SEED=SEED,
)  # fmt: skip
print(f"{model.name}: {model.n_layers} layers x {model.n_heads} heads, on {model.device}")
print(f"{corpus.name}: {len(corpus)} texts, SHA-256 {corpus.provenance['sha256'][:12]}...")

# %% [markdown]
# ## The question, and the measures
#
# In each head, take the **high pairs** of a text: the most similar share of all its pairs of tokens. Are they far apart in
# early layers and near in late ones? And do they come to lie inside one sentence?
#
# | measure | formula | range | 1 means |
# |---|---|---|---|
# | **relative distance** | mean of $\lvert i - j\rvert$ over the high pairs, divided by $(n + 1)/3$ | above 0, below 3 | as far apart as two tokens drawn at random |
# | **same-sentence lift** | share of the high pairs inside one sentence, divided by that share of all pairs | 0 or more | no preference for the own sentence |
# | **expected lift** | the lift that pairs at *the same distances* have on average | 0 or more | these distances favour no sentence |
# | **lift beyond nearness** | lift divided by expected lift | 0 or more | nearness explains all of the lift |
#
# Here $i$ and $j$ are the places of two tokens, counted in tokens, and $n$ is the number of tokens of the text; special
# tokens do not count. Near tokens share a sentence more often, so a lift above 1 can follow from nearness alone: hence the
# third row.
#
# The definitions are **our choice**, because only the abstract and a summary of the paper (arXiv 2512.21956) were at hand:
# that distance is counted in tokens, that it is compared with random pairs, and which share of the pairs is high. The
# section *How fragile is it* varies what can be varied.

# %% [markdown]
# ## By hand, on five tokens
#
# The first three tokens are one sentence, the last two another. Say a head has two high pairs: tokens 1 and 2, and
# tokens 3 and 4.

# %%
sentence = torch.tensor([0, 0, 0, 1, 1])  # (token,)
pairs = torch.tensor([[0, 1], [2, 3]])  # (pair, 2), counted from 0
n = len(sentence)

# both pairs are 1 apart; two of five tokens drawn at random are (5 + 1) / 3 = 2 apart
distance_hand = relative_distance(pairs, n)
assert distance_hand == 1 / ((5 + 1) / 3) == 0.5

# one of the two pairs is inside a sentence; of all ten pairs 3 + 1 are
lift_hand = same_sentence_lift(pairs, sentence)
assert torch.isclose(lift_hand, torch.tensor((1 / 2) / (4 / 10)))  # 1.25

# of the four pairs at distance 1, three are inside a sentence
expected_hand = same_sentence_by_distance(sentence)[1] / same_sentence_chance(sentence)
assert torch.isclose(expected_hand, torch.tensor((3 / 4) / (4 / 10)))  # 1.875
pd.DataFrame(
    {
        "relative distance": [float(distance_hand)],
        "same-sentence lift": [float(lift_hand)],
        "expected from the distances": [float(expected_hand)],
        "lift beyond nearness": [float(lift_hand / expected_hand)],
    },
    index=["two high pairs"],
).round(3)

# %% [markdown]
# This head is above chance on sentences, and yet below what its nearness alone would give it. That is why the lift by
# itself decides nothing.

# %% [markdown]
# ## The data
#
# One pass over the corpus measures every head on every text, for the model and for two controls. **Untrained** is the same
# architecture with random weights. **Shuffled** has the tokens of each text in random order; places and sentence
# boundaries stay where they were, so it shows what a head does by place alone. Notebooks 02 to 06 share this pass: the first
# to run stores it, the others read it.

# %%
data = survey(
    model,
    corpus,
    max_tokens=max_tokens,
    controls=("untrained", "shuffled"),
    seed=SEED,
    out=Path(OUT) / model.name,
).load()
print(
    f"{data.tokens_read:,} tokens read; {data.tokens_cut:,} at the ends of long texts were cut off and are not read"
)
if len(data.texts_dropped):
    print(f"{len(data.texts_dropped)} texts have fewer than two tokens and are left out")

# %% [markdown]
# **What we expect.** If the claim holds, the relative distance falls from the first layer to the last, by about 30 % in the
# summary of the paper, and it does so neither in the untrained model nor in shuffled text. Each token starts out as a sum
# of its word and its place, and near places are similar. So some nearness should be there from the start, whatever the
# words. And last layers have to serve the task the model was trained for, so they may differ from all others.

# %%
s4, s5 = judge("S4", data, seed=SEED), judge("S5", data, seed=SEED)
change_s4, lift_s5 = ((each.estimate, each.low, each.high) for each in (s4, s5))
metric, share = s4.setting["metric"], s4.setting["share"]  # of the headline
METRICS, layers = data.metric.values.tolist(), data["layer"].values
CONTROLS = ("untrained", "shuffled")


def text(value: float, form: str = ".2f") -> str:
    """A number as people read it."""
    return format(value, form) if np.isfinite(value) else "n/a"


def span(found: tuple[float, float, float], form: str = ".2f") -> str:
    """An estimate with its 95 % interval."""
    estimate, low, high = (text(value, form) for value in found)
    return f"{estimate} [{low}, {high}]"


def of_texts(name: str, condition: str = "model", metric: str = metric) -> xr.DataArray:
    """One measure, averaged over the heads of a layer: (text, layer)."""
    return data[name].sel(condition=condition, metric=metric, share=share).mean("head")


def between(values: np.ndarray, form: str = ".2f") -> str:
    """The lowest and the highest of some numbers."""
    finite = values[np.isfinite(values)]
    return f"{text(finite.min(), form)} and {text(finite.max(), form)}" if len(finite) else "n/a"


def by_layer(values: xr.DataArray) -> np.ndarray:
    """Estimate, lower and upper end for each layer: (3, layer); values are (text, layer)."""
    return np.array([interval(column, seed=SEED) for column in values.values.T]).T


distance = {each: by_layer(of_texts("relative_distance", metric=each)) for each in METRICS}
distance_control = {each: by_layer(of_texts("relative_distance", each)) for each in CONTROLS}

# all pairs of all texts and heads, by distance: how many times as often as among all pairs
high = data.distance_histogram.sel(condition="model", metric=metric, share=share)
high = high.sum(("text", "head")).transpose("distance", "layer")
everywhere = data.all_distances.sel(condition="model").sum("text")
often = (high / high.sum("distance")) / (everywhere / everywhere.sum())
often = often.isel(distance=(everywhere > 0).values)  # bins longer than any text are left out

# %% [markdown]
# ## How far apart are the most similar tokens?

# %%
palette = sns.color_palette("colorblind")
colours = dict(zip(METRICS, palette)) | {
    "chance": "0.35",
    "untrained": palette[5],
    "shuffled": palette[4],
}


def label_ends(ax, ends: dict[str, tuple[float, str]]) -> None:
    """The names of lines, written beside their right ends and pushed apart where these are close."""
    ends = {name: end for name, end in ends.items() if np.isfinite(end[0])}
    names = sorted(ends, key=lambda name: ends[name][0])
    heights = np.array([ends[name][0] for name in names])
    gap, placed = 0.062 * np.ptp(ax.get_ylim()), heights.copy()
    for k in range(1, len(placed)):
        placed[k] = max(placed[k], placed[k - 1] + gap)
    placed -= (placed - heights).mean()
    for name, height, place in zip(names, heights, placed):
        ax.annotate(
            name, (layers[-1], height), (1.05, place), textcoords=("axes fraction", "data"),
            color=ends[name][1], fontsize=8.5, va="center", annotation_clip=False,
            arrowprops=dict(arrowstyle="-", color=ends[name][1], linewidth=0.6, shrinkA=1, shrinkB=4),
        )  # fmt: skip


def draw_lines(ax, bold: dict, thin: dict, dashed: dict, chance: str) -> None:
    """Lines over layers: bold with its band, thin ones, dashed ones and 1, each labelled; values are (3, layer)."""
    ends = {chance: (1.0, colours["chance"])}
    ax.axhline(1, linestyle="--", color=colours["chance"], linewidth=1.3)
    for name, (values, colour) in dashed.items():
        ax.plot(layers, values[0], "--", color=colour, linewidth=1.5)
        ends[name] = values[0, -1], colour
    for name, (values, colour) in thin.items():
        ax.plot(layers, values[0], color=colour, linewidth=1, marker=".")
        ends[name] = values[0, -1], colour
    for name, (values, colour) in bold.items():
        ax.fill_between(layers, values[1], values[2], color=colour, alpha=0.25, linewidth=0)
        ax.plot(layers, values[0], color=colour, linewidth=2.8, marker="o")
        ends[name] = values[0, -1], colour
    ax.set(xlabel="layer", xticks=layers)
    ax.margins(y=0.1)
    label_ends(ax, ends)


nearest = int(np.argmin(distance[metric][0]))  # the layer whose high pairs are nearest, from 0
figure, axes = plt.subplots(1, 2, figsize=(13, 4.6), width_ratios=(1.1, 1))
draw_lines(
    axes[0],
    bold={f"{metric}, with 95 % interval": (distance[metric], colours[metric])},
    thin={each: (distance[each], colours[each]) for each in METRICS if each != metric},
    dashed={f"{each} ({metric})": (distance_control[each], colours[each]) for each in CONTROLS},
    chance="chance: random pairs",
)
axes[0].annotate(
    f"nearest: layer {nearest + 1}",
    (layers[nearest], distance[metric][0, nearest]),
    (0, 36),
    textcoords="offset points",
    ha="center",
    arrowprops=dict(arrowstyle="-", color=colours[metric], linewidth=0.8, shrinkB=5),
    fontsize=9,
    fontweight="bold",
    color=colours[metric],
)
axes[0].set(
    title=f"Distance of the most similar {share:.0%} of pairs",
    ylabel="relative distance (1 = random pairs)",
)

largest = max(2.0, float(often.max()))
edges = data.distance.values.tolist()
names = [
    str(a) if b == a + 1 else f"{a}–{b - 1}" if b else f"{a} or more"
    for a, b in zip(edges, [*edges[1:], None])
][: often.sizes["distance"]]
shown = often.values[::-1]
sns.heatmap(
    np.clip(shown, 1 / largest, largest),
    ax=axes[1],
    cmap="vlag",
    norm=LogNorm(1 / largest, largest),
    annot=[[f"{value:.2g}" for value in row] for row in shown],
    fmt="",
    annot_kws={"fontsize": 8 if model.n_layers <= 8 else 6.5},
    xticklabels=[str(layer) for layer in layers],
    yticklabels=names[::-1],
    linewidths=0.5,
    cbar_kws={"label": "times as often as in all pairs"},
)
axes[1].set(
    title=f"Which distances they have, against chance = 1 ({metric})",
    xlabel="layer",
    ylabel="distance of the two tokens, in tokens",
)
axes[1].tick_params(rotation=0, length=0)
bar = axes[1].collections[0].colorbar
ticks = [tick for tick in (1 / 16, 1 / 4, 1, 4, 16) if 1 / largest <= tick <= largest]
bar.set_ticks(ticks, labels=[f"{tick:.2g}" for tick in ticks])
bar.minorticks_off()
sns.despine(ax=axes[0])
figure.tight_layout()
figure_path = save_figure(figure, OUT, model, "05_watch_the_range_shrink")

# %%
ours = of_texts("relative_distance").dropna("text").values  # (text, layer)
rng = np.random.default_rng(SEED)
drawn = rng.multinomial(len(ours), np.full(len(ours), 1 / len(ours)), RESAMPLES)  # (resample, text)
resampled = drawn @ ours / len(ours)  # (resample, layer)
sure = np.bincount(resampled.argmin(1), minlength=model.n_layers) / RESAMPLES  # (layer,)
in_texts = np.bincount(ours.argmin(1), minlength=model.n_layers) / len(ours)


def with_ends(of_means) -> tuple[float, float, float]:
    """A function of the curve over layers, with its 95 % interval from the same resamples."""
    low, high = np.quantile(of_means(resampled), (0.025, 0.975))
    return float(of_means(ours.mean(0))), float(low), float(high)


# of the nearest layer, which is found anew in each resample
fall = with_ends(lambda curve: curve.min(-1) / curve[..., 0] - 1)
rise = with_ends(lambda curve: curve[..., -1] / curve.min(-1) - 1)
of_layer = distance[metric][0]
nearness = 1 - of_layer.mean()
mixed, random = (distance_control[each][0] for each in ("shuffled", "untrained"))
by_place = (1 - mixed.mean()) / nearness if nearness > 0.05 else np.nan
elsewhere = {each: int(np.argmin(distance[each][0])) + 1 for each in METRICS if each != metric}
if nearest == 0:
    course = "So they are nearest in the very first layer."
elif nearest == model.n_layers - 1:
    course = f"So they are nearest in the last layer: {span(fall, '+.0%')} against the first."
else:
    course = (
        f"The change is {span(fall, '+.0%')} from the first layer to the nearest one, and "
        f"{span(rise, '+.0%')} from there to the last."
    )
flat = ": without training there is no such nearness" if np.abs(random - 1).max() < 0.05 else ""
if np.isfinite(by_place):
    enough = (
        "the places of the tokens alone are enough for most of the curve"
        if by_place > 0.5
        else "most of the curve needs the words in their order"
    )
    place = f"On average over layers, it has {by_place:.0%} of the nearness that real text has: {enough}."
else:
    place = (
        "Averaged over layers, this model is too close to chance to say where its curve comes from."
    )
Markdown(
    f"**How to read it.** Left: the high pairs are {text(of_layer[0])} times as far apart as random pairs in layer "
    f"1, {text(of_layer[nearest])} times in layer {nearest + 1}, and {text(of_layer[-1])} times in layer "
    f"{model.n_layers}. {course} That layer {nearest + 1} is the nearest holds in {sure[nearest]:.0%} of "
    f"{RESAMPLES:,} resamples of the texts; taken one by one, it is the nearest in {in_texts[nearest]:.0%} of the "
    "texts. With the other comparisons the nearest is "
    + " and ".join(f"layer {layer} ({each})" for each, layer in elsewhere.items())
    + f".\n\nThe untrained model lies between {between(random)}{flat}. "
    + f"Shuffled text lies between {between(mixed)}. {place}\n\nRight: adjacent tokens (distance 1) are "
    f"{text(float(often[0, 0]), '.2g')} times as frequent among the high pairs as among all pairs in layer 1, "
    f"{text(float(often[0, nearest]), '.2g')} times in layer {nearest + 1}, and "
    f"{text(float(often[0, -1]), '.2g')} times in layer {model.n_layers}."
)

# %% [markdown]
# ## First layer against last: the verdict on the claim
#
# The claim compares the first layer with the last. The summary of the paper (arXiv 2512.21956) gives a change of about
# −30 % for its model, BERT-base; ours differs. Left: each single head. Right: the change for each comparison and each
# share of pairs, with both controls.

# %%
PAPER_CHANGE = -0.30  # summary of arXiv 2512.21956: mean distance, layer 12 against layer 1

figure, axes = plt.subplots(1, 2, figsize=(13, 4.4), width_ratios=(1, 1.05))
per_head = data.relative_distance.sel(condition="model", metric=metric, share=share).mean("text")
layer_head_grid(
    per_head.transpose("layer", "head").values,
    label="relative distance (1 = random pairs)",
    centre=1,
    ax=axes[0],
    title=f"Every head: blue is nearer than chance ({metric})",
)
ax = axes[1]
for row, (setting, found) in enumerate(s4.sweep.items()):
    colour, place = colours[setting[0]], -row - 0.6 * (row // data.sizes["share"])
    ax.plot([found.low, found.high], [place, place], color=colour, linewidth=3, alpha=0.6)
    ax.plot(found.estimate, place, "o", color=colour, markersize=7)
    for each, marker in zip(CONTROLS, ("x", "d")):
        ax.plot(
            found.controls[each], place, marker, color=colours[each], markersize=6,
            label=each if row == 0 else None,
        )  # fmt: skip
    ax.annotate(
        f"{setting[0]}, {setting[1]:.1%}", (-0.02, place), xycoords=("axes fraction", "data"),
        ha="right", va="center", fontsize=9, color=colour,
        fontweight="bold" if setting == (metric, share) else None,
    )  # fmt: skip
ax.margins(y=0.12)
for level, name in ((0, "no change"), (PAPER_CHANGE, "the paper's summary")):
    ax.axvline(level, linestyle="--", color=colours["chance"], linewidth=1.2)
    ax.annotate(
        f" {name} ", (level, 1.01), xycoords=("data", "axes fraction"), fontsize=8.5, va="bottom",
        ha="center", color=colours["chance"],
    )  # fmt: skip
ax.xaxis.set_major_formatter(lambda value, _: f"{value:+.0%}" if abs(value) > 1e-9 else "0%")
ax.set(yticks=[], xlabel="change of the distance, last layer against first")
ax.set_title("Change with its 95 % interval", pad=20)
ax.legend(frameon=False, fontsize=8.5, loc="best")
sns.despine(ax=ax, left=True)
figure.tight_layout()

# %%
changes = [found.estimate for found in s4.sweep.values()]


def levels_table(verdict) -> pd.DataFrame:
    """What the estimate is held against, and by how much it differs."""
    return pd.DataFrame(
        [
            {
                "claim": verdict.claim,
                "held against": name,
                "ours": text(level.ours, ".3f"),
                "level": text(level.level, ".3f"),
                "ours minus level": span((level.difference, level.low, level.high), ".3f"),
                "decides": "yes" if level.decides else "no",
            }
            for name, level in verdict.levels.items()
        ]
    ).set_index(["claim", "held against"])


def other_settings(verdict) -> str:
    """The settings of the sweep that give another verdict."""
    other = [f"{name} ({v})" for name, v in verdict.verdicts.items() if v != verdict.verdict]
    return f"Another verdict comes from {'; '.join(other)}." if other else "No setting disagrees."


Markdown(
    f"**S4, *{s4.statement.lower()}*: {s4.verdict}.** From the first layer to the last the distance changes by "
    f"{span(change_s4, '+.1%')}; the summary of the paper has about {PAPER_CHANGE:+.0%}. The untrained model has "
    f"{text(s4.controls['untrained'], '+.1%')}, shuffled text {text(s4.controls['shuffled'], '+.1%')}. Over all "
    f"comparisons and shares the change runs from {text(min(changes), '+.0%')} to {text(max(changes), '+.0%')}.\n\n"
    f"In {int((per_head < 1).sum())} of {per_head.size} heads the high pairs are nearer than random pairs, and heads "
    f"of one layer differ: in layer {nearest + 1} from {text(float(per_head[nearest].min()))} to "
    f"{text(float(per_head[nearest].max()))}.\n\n"
    "To be *supported*, the interval in every row of the table below has to lie below 0; one row above 0 is enough "
    "for *contradicted*."
)

# %%
levels_table(s4)

# %% [markdown]
# ## Do they share a sentence, more than nearness explains?
#
# The second claim is that similar tokens come to share a sentence. **We expect** a lift above 1 wherever the high pairs are
# near. The question is what is left once the distances are accounted for. In shuffled text nothing should be left: its
# sentences hold random words.

# %%
lift = {each: by_layer(of_texts("same_sentence_lift", each)) for each in data.condition.values}
expected = by_layer(of_texts("same_sentence_expected"))


def beyond_nearness(condition: str = "model", metric: str = metric) -> xr.DataArray:
    """Lift divided by the expected lift, text by text, each averaged over heads first: (text, layer)."""
    predicted = of_texts("same_sentence_expected", condition, metric)
    return of_texts("same_sentence_lift", condition, metric) / predicted.where(predicted > 0)


beyond = {each: by_layer(beyond_nearness(metric=each)) for each in METRICS}
beyond_control = {each: by_layer(beyond_nearness(each)) for each in CONTROLS}

figure, axes = plt.subplots(1, 2, figsize=(14, 4.4))
draw_lines(
    axes[0],
    bold={f"{metric}, with 95 % interval": (lift["model"], colours[metric])},
    thin={},
    dashed={
        "expected: nearness alone": (expected, palette[3]),
        **{each: (lift[each], colours[each]) for each in CONTROLS},
    },
    chance="chance: random pairs",
)
axes[0].set(
    title="How much more often in one sentence than random pairs", ylabel="same-sentence lift"
)
draw_lines(
    axes[1],
    bold={f"{metric}, with 95 % interval": (beyond[metric], colours[metric])},
    thin={each: (beyond[each], colours[each]) for each in METRICS if each != metric},
    dashed={f"{each} ({metric})": (beyond_control[each], colours[each]) for each in CONTROLS},
    chance="nearness explains all",
)
axes[1].set(
    title="What nearness leaves to explain", ylabel="lift beyond nearness (lift / expected)"
)
sns.despine()
figure.tight_layout()

# %%
ratio = beyond_nearness()
thirds = {
    name: interval(part(ratio).mean("layer").values, seed=SEED)
    for name, part in (("first", first_third), ("last", last_third))
}
growth = interval(
    (last_third(ratio).mean("layer") - first_third(ratio).mean("layer")).values, seed=SEED
)
first = s5.levels["first third"]
strongest = int(np.nanargmax(beyond[metric][0])) if np.isfinite(beyond[metric][0]).any() else 0


def direction(low: float, high: float) -> str:
    """What an interval of a difference says about growth."""
    return "grows" if low > 0 else "falls" if high < 0 else "neither grows nor falls clearly"


if np.isfinite([first.low, first.high, *growth]).all():
    lift_way, beyond_way = direction(first.low, first.high), direction(*growth[1:])
    depth = (
        f"From the first third of the layers to the last the lift **{lift_way}**: {text(first.level)} to "
        f"{text(first.ours)}, a difference of {span((first.difference, first.low, first.high))}. The lift beyond "
        f"nearness **{beyond_way}**: {text(thirds['first'][0], '.3f')} to {text(thirds['last'][0], '.3f')}, a "
        f"difference of {span(growth, '.3f')}. "
    ) + {
        (True, True): "So the preference grows with depth, and not only because of nearness.",
        (True, False): "So the preference grows with depth, but nearness explains it.",
        (False, True): "So the preference does not grow; only its part beyond nearness does.",
        (False, False): "So the preference does not grow with depth.",
    }[lift_way == "grows", beyond_way == "grows"]
else:
    depth = "That cannot be said: the lift does not exist in too many of these texts."
near_s5 = s5.levels["nearness alone"]
Markdown(
    f"**S5, *{s5.statement.lower()}*: {s5.verdict}.** In the last third of the layers the high pairs share a "
    f"sentence {span(lift_s5)} times as often as random pairs. Their distances alone predict "
    f"{text(near_s5.level)}; the difference is {span((near_s5.difference, near_s5.low, near_s5.high))}. Shuffled "
    f"text, where only places are left, has {text(s5.controls['shuffled'])}, and the untrained model "
    f"{text(s5.controls['untrained'])}. (This is over the {s5.n_texts} texts "
    f"in which the lift exists: those with more than one sentence.)\n\n**Does it grow with depth?** {depth}\n\n"
    "**How to read it.** Left: what sentences can add is the step from *expected* up to the bold line. Right: that "
    f"step as a ratio. It is largest in layer {strongest + 1}: {span(beyond[metric][:, strongest], '.3f')}. "
    f"Shuffled text, held there against its own distances, lies between {between(beyond_control['shuffled'][0], '.3f')}."
)

# %%
levels_table(s5)

# %% [markdown]
# ## How fragile is it: each comparison, each share of pairs
#
# Does the verdict depend on how tokens are compared (dot product, cosine, centred cosine: notebook 02), or on which
# share of all pairs counts as high?

# %%
table = pd.DataFrame(
    [
        {
            "claim": claim,
            "similarity": each,
            "share": f"{part:.1%}",
            "cell": f"{found.verdict} ({text(found.estimate, '+.0%' if claim == 'S4' else '.2f')})",
        }
        for claim, verdict in (("S4", s4), ("S5", s5))
        for (each, part), found in verdict.sweep.items()
    ]
)
table.pivot(index=["claim", "similarity"], columns="share", values="cell").reindex(
    pd.MultiIndex.from_product([["S4", "S5"], METRICS], names=["claim", "similarity"])
)

# %%
Markdown(
    "**In brackets**: for S4 the change from the first layer to the last, for S5 the same-sentence lift in the last "
    f"third of the layers. S4 is *{s4.verdict}* in {s4.robustness:.0%} of the settings. {other_settings(s4)} S5 is "
    f"*{s5.verdict}* in {s5.robustness:.0%}. {other_settings(s5)}\n\nThe high pairs are nearest, at {share:.0%}: "
    + "; ".join(
        f"{each}, layer {int(np.argmin(distance[each][0])) + 1} ({text(distance[each][0].min())})"
        for each in METRICS
    )
    + "."
)

# %% [markdown]
# ## Move through the heads
#
# The opening of one of our `passages`. Squares mark the high pairs, grey lines the ends of sentences. Three questions before
# you touch the sliders. In which layers do the squares lie near the diagonal? Do they stay in the boxes that the grey lines
# make along it? And which head of the last layer reaches furthest? (Without a kernel the sliders show nothing. The maps
# below are some of their positions.)

# %%
passages = load_corpus("passages")
passage = next(each for each in passages if each.source == "comets")
opening = passage.text[passage.sentences[0][0] : passage.sentences[3][1]]
short = head_outputs(model, opening, what=("z",), max_tokens=max_tokens)
inside = short.is_body
words = [token for token, body in zip(short.tokens, inside.tolist()) if body]
borders = (short.sentence[inside].diff() != 0).nonzero().squeeze(-1) + 1  # before these tokens


def high_pairs(layer: int, head: int, metric: str = metric) -> tuple[torch.Tensor, torch.Tensor]:
    """Similarity of the tokens of the passage in one head (counted from 1), and its high pairs."""
    centre = data.mean_z.sel(condition="model", layer=layer, head=head).values
    centre = torch.tensor(centre, device=short.z.device) if metric == "centred" else None
    S = similarity(short.z[layer - 1, head - 1, inside], metric, centre)
    return S, top_pairs(S, share)


def draw_pairs(layer: int, head: int, metric: str = metric, ax=None):
    """Similarity map of one head on the passage, with high pairs and ends of sentences."""
    S, pairs = high_pairs(layer, head, metric)
    found = float(relative_distance(pairs, len(words)))
    ax = similarity_map(
        S,
        words,
        pairs=pairs,
        label=metric,
        limit=None if metric == "dot" else 1,
        ax=ax,
        title=f"layer {layer}, head {head}: relative distance {found:.2f}",
    )
    for border in borders.tolist():
        ax.axhline(border, color="0.35", linewidth=0.8)
        ax.axvline(border, color="0.35", linewidth=0.8)
    return ax


def move(layer: int, head: int, metric: str) -> None:
    draw_pairs(layer, head, metric)


sliders = widgets.interact(
    move,
    layer=widgets.IntSlider(nearest + 1, 1, model.n_layers, continuous_update=False),
    head=widgets.IntSlider(1, 1, model.n_heads, continuous_update=False),
    metric=METRICS,
)

# %%
chosen = list(dict.fromkeys((1, nearest + 1, model.n_layers)))  # first, nearest, last
figure, axes = plt.subplots(1, len(chosen), figsize=(5.2 * len(chosen), 5), squeeze=False)
for ax, layer in zip(axes[0], chosen):
    head = int(per_head.sel(layer=layer).values.argmin()) + 1  # the shortest range of this layer
    draw_pairs(layer, head, ax=ax).tick_params(labelsize=5)
figure.tight_layout()

# %%
Markdown(
    "**How to read it.** The head with the shortest range of layer "
    + ", of layer ".join(str(layer) for layer in chosen)
    + f", measured over the corpus; the number above a map is its distance on this passage. Squares are the most "
    f"similar {share:.0%} of the pairs: the nearer to the diagonal, the shorter the range. Grey lines make a box of "
    "each sentence along the diagonal; a square outside these boxes joins tokens of two sentences."
)

# %% [markdown]
# ## Takeaways
#
# - Look at every layer: a change from the first to the last can be near zero while the middle differs from both.
# - Nearness is the simplest reason for similarity. It brings shared sentences with it, so subtract it before you speak of
#   sentences.
# - Shuffling the words keeps the places. What survives it is not about the words.
#
# **What this does not show.** *Why* the last layers widen again. That a head knows where sentences end: the part that
# nearness does not explain may come from topic, names or grammar inside a sentence. Anything beyond the tokens that were read: in
# longer texts the longest distances are longer. And anything about BERT-base, which the paper studied: the model named at the
# top was fine-tuned; with a model hub in reach, `make run NB=05 MODEL=bert-base-uncased` measures it.

# %% [markdown]
# ## Exercises
#
# **1.** In how many heads of the last layer are the high pairs *further* apart than random pairs (headline comparison and
# share, mean over texts)? First guess from the grid of heads, then put the number into `answer`.

# %%
answer = None

if answer is None:
    print("not yet")
else:
    print(
        "right"
        if answer == int((per_head.isel(layer=-1) > 1).sum())
        else "no: count values above 1"
    )

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# answer = int((per_head.isel(layer=-1) > 1).sum())
# ```
# </details>
#
# **2.** A text has 200 tokens in 10 sentences of 20. All high pairs of a head are adjacent tokens, drawn evenly from the text.
# What is its same-sentence lift? Work it out, then put it into `lift_answer`.

# %%
lift_answer = None

twenty = torch.arange(200) // 20  # (token,) the sentence of each
if lift_answer is None:
    print("not yet")
else:
    right = float(same_sentence_by_distance(twenty)[1]) / same_sentence_chance(twenty)
    print("right" if abs(lift_answer - right) < 0.1 else "no: what is it for all pairs?")

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# adjacent = 10 * 19 / 199  # pairs at distance 1 inside a sentence, of all 199
# everywhere = 10 * (20 * 19 / 2) / (200 * 199 / 2)  # of all pairs
# lift_answer = adjacent / everywhere  # large, and this head knows nothing of sentences
# ```
# </details>

# %%


def rounded(values) -> list:
    """Plain numbers with four digits."""
    return [round(float(value), 4) for value in values]


shape = (
    f"they are nearest in layer {nearest + 1} of {model.n_layers}, {text(of_layer[nearest])} times as far apart as "
    f"random pairs ({text(of_layer[0])} in the first layer, {text(of_layer[-1])} in the last)"
)
draw_together = (
    "draw together with depth"
    if nearest == model.n_layers - 1
    else "do not simply draw together with depth"
)
results_path = save_results(
    OUT,
    "05_watch_the_range_shrink",
    model=model,
    corpus=corpus,
    settings=settings,
    tokens=(data.tokens_read, data.tokens_cut),
    seconds=time.perf_counter() - start,
    main={
        "label": "Relative change of the distance of high pairs, last layer against first",
        "value": round(s4.estimate, 4),
        "interval": rounded((s4.low, s4.high)),
        "verdict": s4.verdict,
    },
    finding=(
        f"The most similar tokens {draw_together}: {shape}. From the first layer to the last their distance changes by "
        f"{span(change_s4, '+.1%')}, in shuffled text by {text(s4.controls['shuffled'], '+.1%')}: that the range "
        f"shrinks is {s4.verdict}. In the last third of the layers they share a sentence {text(s5.estimate)} times as "
        f"often as random pairs, where nearness alone predicts {text(near_s5.level)} ({s5.verdict})."
    ),
    values={
        "verdicts": {"S4": s4.as_dict(), "S5": s5.as_dict()},
        "relative_distance_by_layer": {
            each: [rounded(column) for column in distance[each].T] for each in METRICS
        },
        "relative_distance_by_layer_controls": {
            each: rounded(distance_control[each][0]) for each in CONTROLS
        },
        "nearest_layer": {each: int(np.argmin(distance[each][0])) + 1 for each in METRICS},
        "nearest_layer_share_of_resamples": rounded(sure),
        "nearest_layer_share_of_texts": rounded(in_texts),
        "first_to_nearest": rounded(fall),
        "nearest_to_last": rounded(rise),
        "nearness_in_shuffled_text": round(float(by_place), 4),
        "times_as_often_by_distance_and_layer": {
            name: rounded(row) for name, row in zip(names, often.values)
        },
        "change_by_setting": {
            f"{each}, {part}": rounded((found.estimate, found.low, found.high))
            for (each, part), found in s4.sweep.items()
        },
        "same_sentence_lift_by_layer": [rounded(column) for column in lift["model"].T],
        "same_sentence_expected_by_layer": rounded(expected[0]),
        "same_sentence_lift_by_layer_controls": {each: rounded(lift[each][0]) for each in CONTROLS},
        "lift_beyond_nearness_by_layer": {
            each: [rounded(column) for column in beyond[each].T] for each in METRICS
        },
        "lift_beyond_nearness_by_layer_shuffled": rounded(beyond_control["shuffled"][0]),
        "lift_beyond_nearness_last_minus_first_third": rounded(growth),
    },
)

Markdown("**This run.** " + summary(load_results(results_path)))

# %% [markdown]
# ## Other models
#
# The same notebook with other models, beside this run: from the results that are stored with this repository
# (`make render MODEL=...` adds one).


# %%
def estimate_of(verdict: dict, form: str) -> str:
    numbers = [verdict[key] for key in ("estimate", "low", "high")]
    return span([np.nan if number is None else number for number in numbers], form)


pd.DataFrame(
    [
        {
            "model": each["model"]["name"],
            "nearest layer": f"{each['values']['nearest_layer'][metric]} of {each['model']['n_layers']}",
            "S4: change": estimate_of(each["values"]["verdicts"]["S4"], "+.1%"),
            "S4": each["values"]["verdicts"]["S4"]["verdict"],
            "S5: lift": estimate_of(each["values"]["verdicts"]["S5"], ".2f"),
            "S5": each["values"]["verdicts"]["S5"]["verdict"],
        }
        for each in with_other_models(results_path)
    ]
).set_index("model")

# %% [markdown]
# ## References
#
# Halevi et al. (2026), *Self-attention vector output similarities reveal how machines pay attention*, Physica A 686,
# 131363; [arXiv 2512.21956](https://arxiv.org/abs/2512.21956): the claims; the change of about −30 % is from a summary of it.
# Ethayarajh (2019), *How contextual are contextualized word representations?*;
# [arXiv 1909.00512](https://arxiv.org/abs/1909.00512): why similarity needs a baseline of random pairs. Versions of all
# packages are in the results file of this notebook.
