# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Heads share their anchors, and share them more than in an untrained model

# %%
from IPython.display import Markdown, display

from attnlib import load_results, summary

Markdown(
    "**Published run.** " + summary(load_results("results/minilm/06_find_each_heads_anchor.json"))
)

# %% [markdown]
# ![Left: a bar for the number of different anchors that all heads have in one text, for the model, shuffled text, the
# untrained model and two kinds of chance, with a dashed line at one anchor for each head. Right: the same layer by layer,
# as lines.](figures/06_find_each_heads_anchor.png)
#
# *How many different anchors do the heads of a model have in one text? If each head had its own, the top bar would reach
# the dashed line. Right: the same count inside each layer.*

# %% [markdown]
# **You'll do:** find the token that each head's similar pairs gather around, count how many heads share one, see whether
# a head keeps it from text to text, and look at its neighbourhood. **You'll learn:** why a count of different anchors
# says little without an untrained model beside it. **You need:** notebook 02.

# %%
import time
from collections import Counter
from pathlib import Path

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
import xarray as xr
from matplotlib.colors import LogNorm, Normalize, TwoSlopeNorm
from matplotlib.patches import Arc, Rectangle

from attnlib import (
    head_outputs,
    interval,
    judge,
    load_corpus,
    load_model,
    save_figure,
    save_results,
    set_style,
    similarity,
    survey,
    top_pairs,
    with_other_models,
)
from attnlib.inference import distinct_share, kept_anchor, usual_anchor

# %% tags=["parameters"]
MODEL = "minilm"  # minilm, mpnet, bert-base-uncased, a model hub id, or a folder
CORPUS = "lee"  # passages, lee, wikipedia, a file, a folder, or a glob
N_TEXTS = 300  # texts: the first so many of the corpus
MAX_TOKENS = 256  # tokens of each text that are read, special ones included
MIN_COUNT = 20  # times a word has to stand in the corpus to be a corrected anchor of the corpus
DEVICE = "auto"  # auto (cuda, then mps, then cpu), cuda, mps, cpu
DTYPE = "auto"  # auto (as stored), float32, bfloat16, float16
SEED = 0  # of the untrained model, the shuffling, the random pairs and the bootstrap
OUT = "../build"  # folder for the results

# %%
start = time.perf_counter()
set_style()
plt.rcParams["figure.dpi"] = 85  # large figures: keeps the page small
model = load_model(MODEL, device=DEVICE, dtype=DTYPE)
corpus = load_corpus(CORPUS, limit=N_TEXTS)
if len(corpus) < 4:
    raise ValueError(
        f"CORPUS={CORPUS!r} has {len(corpus)} texts: whether a head keeps its anchor is tested from one "
        "half of them to the other, so give at least 4."
    )
max_tokens = min(MAX_TOKENS, model.max_tokens)
settings = dict(
    MODEL=model.name, CORPUS=CORPUS, N_TEXTS=N_TEXTS, MAX_TOKENS=max_tokens, MIN_COUNT=MIN_COUNT,
    DEVICE=DEVICE, DTYPE=DTYPE, SEED=SEED,
)  # fmt: skip
print(f"{model.name}: {model.n_layers} layers x {model.n_heads} heads, on {model.device}")
print(f"{corpus.name}: {len(corpus)} texts, SHA-256 {corpus.provenance['sha256'][:12]}...")

# %% [markdown]
# ## The question, and what an anchor is
#
# Take the pairs of tokens that a head makes most alike. Do many of them share one token? The paper (arXiv 2512.21956)
# says that each head has such a token, its **anchor**: another one for each head, and the same over many texts.
#
# | symbol | what | unit, range | source |
# |---|---|---|---|
# | $S_{ij} = \langle z_i, z_j\rangle$ | similarity of the head output vectors of tokens i and j | any number | the paper |
# | high pairs | the 1 % of all pairs of a text with the highest $S_{ij}$ | pairs | our choice, varied below |
# | $e_w$ | share of the ends of high pairs that are of token type w; a pair has two ends | 0 to 1 | |
# | $t_w$ | share of the text's tokens that are of type w | 0 to 1 | |
# | raw anchor | the type with the largest $e_w$ | a token type | our reading of the paper |
# | corrected anchor | the type with the largest $e_w / t_w$ | a token type; the ratio is 1 by chance | our choice |
# | distinct anchors | different anchors of all heads in one text / heads | above 0 to 1: each has its own | our choice |
# | kept | share of texts in which a head has the anchor that it has most often in the *other* half of the texts | 0 to 1 | our choice |
#
# A token **type** is an entry of the vocabulary: a word, a piece of a word, a punctuation mark. Frequent types are
# likely to be at the end of *any* pair, which is why the corrected anchor stands beside the raw one. The paper's full
# text was not at hand, so where the source is "our choice" the paper may have meant something else.

# %% [markdown]
# ## By hand, on three tokens

# %%
types_hand = np.array(["the", "cat", "the"])
z_hand = torch.tensor([[2.0, 0.0], [1.0, 1.0], [3.0, 0.5]])  # (token, d_head)
S_hand = similarity(z_hand, "dot")  # 2 for tokens 1 and 2, 6 for 1 and 3, 3.5 for 2 and 3
pairs_hand = top_pairs(S_hand, share=0.67)  # two of the three pairs
assert pairs_hand.tolist() == [[0, 2], [1, 2]]
ends_hand = Counter(types_hand[pairs_hand].ravel().tolist())
assert ends_hand == {"the": 3, "cat": 1}  # the raw anchor is "the", with 3 of 4 ends
ratio_hand = {word: (ends_hand[word] / 4) / np.mean(types_hand == word) for word in ends_hand}
assert np.isclose(ratio_hand["the"], 1.125) and np.isclose(ratio_hand["cat"], 0.75)

# one text, four heads, three different anchors
assert distinct_share(xr.DataArray([[5, 5, 7, 9]], dims=("layer", "head"))) == 0.75
# two texts, two heads: each has in one text the anchor that it has in the other, never the other head's
keep_hand, swap_hand = kept_anchor(xr.DataArray([[[5, 7]]] * 2, dims=("text", "layer", "head")))
assert keep_hand.values.tolist() == [1, 1] and swap_hand.values.tolist() == [0, 0]
print("anchor 'the': share of ends", ends_hand["the"] / 4, "| ratio", ratio_hand["the"])

# %% [markdown]
# ## The data
#
# One pass over the corpus measured everything, for the model, its untrained twin and shuffled text. Notebooks 02 to 06
# share its result: the first one that runs measures, the others read. Before trusting it, find every head's anchor in one
# text again with a few lines of your own, and compare.

# %%
data = survey(
    model, corpus, max_tokens=max_tokens, controls=("untrained", "shuffled"), seed=SEED,
    out=Path(OUT) / model.name,
).load()  # fmt: skip
print(f"{data.tokens_read:,} tokens read, {data.tokens_cut:,} cut off at the ends of long texts")
print(f"texts dropped: {len(data.texts_dropped)}; {data.nbytes / 1e6:.0f} MB in memory")

verdict = judge("S6", data, seed=SEED)
METRIC, SHARE = verdict.setting["metric"], verdict.setting["share"]
first = head_outputs(model, corpus[int(data.text[0])], max_tokens=max_tokens)
first_ids = first.token_ids[first.is_body].cpu().numpy()
first_pairs = top_pairs(similarity(first.z[:, :, first.is_body], METRIC), SHARE).cpu().numpy()
again = np.array(
    [
        [np.bincount(first_ids[pairs].ravel()).argmax() for pairs in of_layer]
        for of_layer in first_pairs
    ]
)  # (layer, head)
stored = data.anchor.sel(condition="model", metric=METRIC, share=SHARE).isel(text=0).values
print(f"the same anchor in {(again == stored).sum()} of {stored.size} heads of the first text")

# %% [markdown]
# ## What we expect
#
# Function words and punctuation are in every sentence, so many heads will have one of them as their anchor, and the
# number of different anchors will be far below the number of heads. What would that number be without any learning?
# There is more than one answer, so several stand in the figure:
#
# - **untrained**: the same architecture with random weights, on the same texts;
# - **shuffled**: the trained model on the same tokens in random order;
# - **random pairs**: each head gets as many pairs as it has high pairs, but drawn at random from the text. The most
#   frequent token of the text will win in nearly every head;
# - **one random token**: each head's "anchor" is a single token, drawn at random. Two heads then agree only by luck.
#
# We expect the model between the last two, and above the untrained model if anchors are something that heads learn.

# %%
headline = data.sel(share=SHARE)
anchors = {
    condition: headline.anchor.sel(metric=METRIC, condition=condition, drop=True)
    for condition in ("model", "untrained", "shuffled")
}  # each (text, layer, head)
anchors["random pairs"] = headline.anchor_by_chance.sel(condition="model", drop=True)
anchors["one random token"] = headline.token_by_chance.sel(condition="model", drop=True)
n_all = model.n_layers * model.n_heads


def by_layer(values: xr.DataArray) -> xr.DataArray:
    """Distinct anchors among the heads of each layer, per head: (text, layer)."""
    return xr.concat(
        [distinct_share(values.sel(layer=layer, drop=True)) for layer in values["layer"]], "layer"
    ).transpose("text", "layer")


def alone(values: xr.DataArray) -> np.ndarray:
    """Heads whose anchor no other head has in that text: (text,)."""
    table = values.stack(all_heads=("layer", "head")).transpose("text", "all_heads").values
    return np.array([(np.unique(row, return_counts=True)[1] == 1).sum() for row in table])


distinct = {name: distinct_share(values) for name, values in anchors.items()}  # (text,)
n_alone = {name: interval(alone(values), seed=SEED) for name, values in anchors.items()}
distinct_of = {name: interval(values.values, seed=SEED) for name, values in distinct.items()}
layer_of = {name: by_layer(values).mean("text").values for name, values in anchors.items()}

# %%
palette = sns.color_palette("colorblind")
COLOURS = dict(zip(anchors, (palette[0], palette[1], palette[2], "0.45", palette[4])))
ORDER = ("model", "shuffled", "untrained", "random pairs", "one random token")
layers = np.arange(1, model.n_layers + 1)


def label_lines(ax, ends: dict[str, float], x: float, gap: float) -> None:
    """A label at the right end of each line, pushed up where two are close."""
    lowest = -np.inf
    for name, y in sorted(ends.items(), key=lambda item: item[1]):
        lowest = max(y, lowest + gap)
        ax.annotate(
            name, (x, lowest), xytext=(8, 0), textcoords="offset points", color=COLOURS[name],
            fontsize=9, va="center", annotation_clip=False,
        )  # fmt: skip


figure, axes = plt.subplots(1, 2, figsize=(13, 4.2), width_ratios=(1.15, 1))
ax = axes[0]
for row, name in enumerate(ORDER):
    value, low, high = np.array(distinct_of[name]) * n_all
    ax.barh(row, value, color=COLOURS[name], height=0.7, alpha=1 if name == "model" else 0.55)
    ax.plot([low, high], [row, row], color="black", linewidth=1.5)
    ax.annotate(
        f"{value:.0f} of {n_all}", (high, row), xytext=(5, 0), textcoords="offset points",
        va="center", fontweight="bold" if name == "model" else "normal",
    )  # fmt: skip
ax.axvline(n_all, color="black", linestyle="--", linewidth=1.3)
ax.annotate(
    "one for\neach head", (n_all, 0), xytext=(-5, 0), textcoords="offset points", ha="right",
    va="center", fontsize=9,
)  # fmt: skip
ax.set_yticks(
    range(len(ORDER)),
    [
        "model",
        "model,\nshuffled text",
        "untrained model",
        "chance:\nrandom pairs",
        "chance: one random\ntoken per head",
    ],
)
ax.invert_yaxis()
ax.set(
    xlim=(0, n_all * 1.02),
    xlabel="different anchors of all heads in one text (mean over texts)",
    title="Does each head have an anchor of its own?",
)
ax = axes[1]
for name in ORDER:
    values = layer_of[name] * model.n_heads
    solid = name == "model"
    ax.plot(
        layers, values, "-" if solid else "--", marker="o" if solid else None,
        linewidth=2.5 if solid else 1.5, color=COLOURS[name],
    )  # fmt: skip
label_lines(
    ax,
    {name: values[-1] * model.n_heads for name, values in layer_of.items()},
    layers[-1],
    0.065 * model.n_heads,
)
ax.axhline(model.n_heads, color="black", linestyle="--", linewidth=1.3)
ax.annotate(
    "one for each head", (layers[0], model.n_heads), xytext=(0, 4), textcoords="offset points",
    fontsize=9,
)  # fmt: skip
ax.set(
    xlabel="layer",
    ylabel="different anchors in the layer",
    xticks=layers,
    ylim=(0, model.n_heads * 1.1),
    title=f"Inside one layer ({model.n_heads} heads)",
)
sns.despine()
figure.tight_layout()
figure_path = save_figure(figure, OUT, model, "06_find_each_heads_anchor")

# %%
SIDES = {1: "more", -1: "fewer", 0: "about as many"}


def sign(difference: tuple[float, float, float]) -> int:
    """1 or -1 if the interval of a difference lies above or below 0, else 0."""
    return int(difference[1] > 0) - int(difference[2] < 0)


def compared(name: str) -> int:
    """Whether the model has more (1) or fewer (-1) distinct anchors than a control, text by text."""
    return sign(interval((distinct["model"] - distinct[name]).values, seed=SEED))


counts = {name: value[0] * n_all for name, value in distinct_of.items()}
lowest_layer = int(layer_of["model"].argmin())
Markdown(
    f"**How to read it.** In one text, the {n_all} heads of the model have {counts['model']:.0f} different anchors "
    f"between them, {SIDES[compared('untrained')]} than the untrained model ({counts['untrained']:.0f}) and "
    f"{SIDES[compared('shuffled')]} than the model itself on shuffled text ({counts['shuffled']:.0f}). Random pairs give "
    f"{counts['random pairs']:.0f}, one random token per head gives {counts['one random token']:.0f}. "
    f"**{n_alone['model'][0]:.0f} of {n_all} heads** have an anchor that no other head has in that text (untrained: "
    f"{n_alone['untrained'][0]:.0f}). "
    f"Right: sharing is strongest in layer {lowest_layer + 1}, where {model.n_heads} heads have "
    f"{layer_of['model'][lowest_layer] * model.n_heads:.1f} different anchors.\n\n"
    f"**The claim that each head has an anchor of its own: {verdict.verdict}.**"
    + (
        " Random weights alone give the heads more different anchors than training leaves them, so a large number of "
        "different anchors is no sign of a learned division of work."
        if compared("untrained") < 0
        else ""
    )
)

# %%
token_level = interval((distinct["model"] - distinct["one random token"]).values, seed=SEED)
rows = {
    name: (level.ours, level.level, level.difference, level.low, level.high)
    for name, level in verdict.levels.items()
}
rows["one random token (not in the verdict)"] = (
    distinct_of["model"][0], distinct_of["one random token"][0], *token_level,
)  # fmt: skip
levels_table = pd.DataFrame(
    [
        {
            "level": name,
            "of what": "kept" if name.startswith("kept") else "distinct / heads",
            "model": f"{ours:.3f}",
            "level's value": f"{level:.3f}",
            "difference": f"{difference:+.3f} [{low:+.3f}, {high:+.3f}]",
            "side of the claim": {1: "above: as claimed", -1: "below", 0: "undecided"}[
                sign((difference, low, high))
            ],
        }
        for name, (ours, level, difference, low, high) in rows.items()
    ]
).set_index("level")


def rule(signs: list[int]) -> str:
    """The rule of every verdict: supported if above all levels, contradicted if below one."""
    return (
        "supported" if min(signs) > 0 else "contradicted" if min(signs) < 0 else "undecided"
    )  # fmt: skip


signs = {name: sign((level.difference, level.low, level.high)) for name, level in verdict.levels.items()}  # fmt: skip
without_null = [value for name, value in signs.items() if name != "pairs at random"]
null_alone = {
    "random pairs": rule([signs["pairs at random"]]),
    "one random token": rule([sign(token_level)]),
}
with_token = rule([*without_null, sign(token_level)])
no_control = rule(
    [value for name, value in signs.items() if "untrained" not in name]
)  # random pairs, and another head's anchor
no_control_token = rule([signs["kept: another head's anchor"], sign(token_level)])
display(levels_table)
Markdown(
    "**Which chance?** Both kinds of chance draw words as often as the text has them, and yet they are far apart: many "
    "random pairs all elect the same winner, one random token per head hardly ever does. Against random pairs alone the "
    f"claim would be {null_alone['random pairs']}, against one random token per head alone "
    f"{null_alone['one random token']}. The verdict uses random pairs, which is our choice; with the random token instead "
    f"it would be {with_token}, so it "
    + ("does not hang" if with_token == verdict.verdict else "**hangs**")
    + " on that choice. "
    + (
        "Without the untrained model it would hang on it: "
        f"{no_control} with random pairs, {no_control_token} with the random token."
        if no_control != no_control_token
        else f"Without the untrained model it would be {no_control} with either."
    )
)

# %% [markdown]
# ## Which words are they?
#
# Now one anchor for each head over the whole corpus: the type with the most ends of high pairs in all texts together.
# The corrected one has the largest ratio of its share of ends to its share of tokens. Rare words would win that by
# accident, so only types that stand in the corpus at least MIN_COUNT times take part (in a small corpus, at least the
# n most frequent ones for n heads); that limit is our choice.

# %%
token_count = data.token_count.values
labels = data.token.values
# in a tiny corpus the limit is lower, so that as many types as there are heads can take part
frequent = token_count >= min(MIN_COUNT, np.sort(token_count)[-n_all:][0])
token_share = token_count / token_count.sum()


def corpus_anchors(ends: np.ndarray) -> dict[str, np.ndarray]:
    """Raw and corrected anchor of each head over the corpus, as places in labels; ends: (layer, head, type)."""
    share = ends / ends.sum(-1, keepdims=True).clip(1)
    ratio = np.where(frequent, share / token_share, 0)
    return {
        "raw": share.argmax(-1),
        "share": share.max(-1),
        "corrected": ratio.argmax(-1),
        "ratio": ratio.max(-1),
    }


ends = {
    condition: data.pair_ends.sel(condition=condition, metric=METRIC, share=SHARE).values
    for condition in ("model", "untrained", "shuffled")
}
n_ends = int(ends["model"][0, 0].sum())
rng = np.random.default_rng(SEED)
ends["random pairs"] = rng.multinomial(n_ends, token_share, size=(model.n_layers, model.n_heads))
over_corpus = {name: corpus_anchors(values) for name, values in ends.items()}
n_distinct = {
    name: {kind: len(np.unique(found[kind])) for kind in ("raw", "corrected")}
    for name, found in over_corpus.items()
}


def word_grid(words: np.ndarray, values: np.ndarray, norm, cmap: str, label: str, ax, title: str):
    """A word in each cell, layers down and heads across, coloured by a number: all (layer, head)."""
    image = ax.imshow(values, norm=norm, cmap=cmap, aspect="auto")
    for layer, head in np.ndindex(words.shape):
        word = str(labels[words[layer, head]]) if values[layer, head] > 0 else "n/a"
        red, green, blue, _ = image.cmap(image.norm(values[layer, head]))
        light = 0.3 * red + 0.59 * green + 0.11 * blue > 0.5
        ax.text(
            head, layer, (word if len(word) <= 8 else word[:7] + "…").replace("$", r"\$"),
            ha="center", va="center", color="black" if light else "white",
            fontsize=12 if len(word) <= 3 else 9 if len(word) <= 6 else 7.2,
        )  # fmt: skip
    n_layers, n_heads = words.shape
    ax.set_xticks(range(n_heads), [str(head + 1) for head in range(n_heads)])
    ax.set_yticks(range(n_layers), [str(layer + 1) for layer in range(n_layers)])
    ax.tick_params(length=0)
    ax.set(xlabel="head", ylabel="layer", title=title)
    bar = ax.figure.colorbar(image, ax=ax, label=label, pad=0.015)
    if isinstance(norm, LogNorm):
        steps = [step for step in (1, 2, 3, 5, 10, 20, 50, 100) if norm.vmin <= step <= norm.vmax]
        bar.set_ticks(steps, labels=[str(step) for step in steps])
        bar.ax.minorticks_off()
    return ax


height = 1.1 + 0.33 * model.n_layers
figure, axes = plt.subplots(2, 2, figsize=(14.5, 2 * height + 0.4))
both = [over_corpus[name] for name in ("model", "untrained")]
most_share = max(found["share"].max() for found in both)
least_ratio = max(0.1, min(found["ratio"].min() for found in both))
most_ratio = max(2 * least_ratio, *(found["ratio"].max() for found in both))
for column, name in enumerate(("model", "untrained")):
    found = over_corpus[name]
    head_line = name if name == "model" else f"{name} model"
    word_grid(
        found["raw"], found["share"], Normalize(0, most_share), "viridis", "share of pair ends",
        axes[0, column], f"{head_line}: raw anchors, {n_distinct[name]['raw']} different",
    )  # fmt: skip
    word_grid(
        found["corrected"], found["ratio"], LogNorm(least_ratio, most_ratio), "cividis",
        "share of ends / share of tokens", axes[1, column],
        f"{head_line}: corrected anchors, {n_distinct[name]['corrected']} different",
    )  # fmt: skip
figure.tight_layout()


# %%
def listed(name: str, kind: str, n: int = 4) -> str:
    """The most common anchors of the corpus with the number of heads that have each."""
    common = Counter(labels[over_corpus[name][kind]].ravel().tolist()).most_common(n)
    return ", ".join(f"`{str(word).replace('`', chr(39))}` ({count})" for word, count in common)


n_raw, n_raw_untrained = n_distinct["model"]["raw"], n_distinct["untrained"]["raw"]
Markdown(
    f"**How to read it.** Each cell is a head with its anchor over the corpus; bright means that the anchor has much of the "
    f"pair ends (top) or much more than its frequency explains (bottom). The {n_all} heads of the model have **{n_raw} "
    f"different raw anchors**, the untrained model {n_raw_untrained}, shuffled text "
    f"{n_distinct['shuffled']['raw']}, ends drawn at random by frequency {n_distinct['random pairs']['raw']}. The most "
    f"common in the model are {listed('model', 'raw')}; in the untrained model {listed('untrained', 'raw')} (number of "
    f"heads in brackets). Corrected for frequency, with {frequent.sum()} types that are frequent enough, there are {n_distinct['model']['corrected']} different anchors in the "
    f"model, {n_distinct['untrained']['corrected']} in the untrained model and "
    f"{n_distinct['random pairs']['corrected']} by chance: dividing by the frequency takes the most common words away and "
    "so spreads the anchors, learned or not. These counts have no interval; the verdict goes by the counts per text."
)

# %% [markdown]
# ## Does a head keep its anchor? And whose property is it?
#
# Two heads may share an anchor and still each keep it. So take the anchor that a head has most often in one half of
# the texts, and ask in how many texts of the other half it has it again. For comparison: how often does it have the usual
# anchor of *another* head?
#
# And to see whether an anchor belongs to the head or to the text, draw two anchors and ask how likely they are the
# same: one head in two texts; two heads in one text; another head in another text. If the text decides, the second
# is large; if the head decides, the first.

# %%
kept = {name: kept_anchor(values) for name, values in anchors.items()}  # own, another's: (text,)


def kept_by_head(values: xr.DataArray) -> np.ndarray:
    """The same head by head: share of texts with the anchor usual in the other half, (layer, head)."""
    halves = [
        values.isel(text=slice(half, None, 2))
        == usual_anchor(values.isel(text=slice(1 - half, None, 2)))
        for half in (0, 1)
    ]
    return xr.concat(halves, "text").mean("text").values


def agreement(values: xr.DataArray) -> dict[str, np.ndarray]:
    """Probability that two draws have the same anchor, for each text as one of the two: (text,) each.

    Counted exactly: how many others have the anchor follows from how often it stands in a row, a column, and in all.
    """
    table = values.stack(all_heads=("layer", "head")).transpose("text", "all_heads").values
    n_texts, n_heads = table.shape
    kinds, index = np.unique(table, return_inverse=True)
    index = index.reshape(table.shape)
    in_text = np.stack([np.bincount(row, minlength=len(kinds)) for row in index])  # (text, kind)
    in_head = np.stack([np.bincount(row, minlength=len(kinds)) for row in index.T])
    same_text = np.take_along_axis(in_text, index, 1)  # (text, head): itself included
    same_head = np.take_along_axis(in_head, index.T, 1).T
    everywhere = in_text.sum(0)[index]
    return {
        "same head, two texts": (same_head - 1).mean(1) / (n_texts - 1),
        "two heads, same text": (same_text - 1).mean(1) / (n_heads - 1),
        "another head, another text": (everywhere - same_text - same_head + 1).mean(1)
        / ((n_heads - 1) * (n_texts - 1)),
    }


def of_two_texts(by_text: np.ndarray) -> np.ndarray:
    """Values (text,) whose spread is that of a mean over pairs of texts: each text is in it twice."""
    return by_text.mean() + 2 * (by_text - by_text.mean())


DRAWS = ("same head, two texts", "two heads, same text", "another head, another text")
per_text = {}
for name, values in anchors.items():
    found = agreement(values)
    per_text[name] = {
        draw: found[draw] if draw == DRAWS[1] else of_two_texts(found[draw]) for draw in DRAWS
    }
same = {
    name: {draw: interval(values, seed=SEED) for draw, values in found.items()}
    for name, found in per_text.items()
}
by_head = {name: kept_by_head(values) for name, values in anchors.items()}
assert np.isclose(by_head["model"].mean(), float(kept["model"][0].mean()), atol=0.02)

# %%
figure, axes = plt.subplots(1, 2, figsize=(14, 4.2), width_ratios=(1, 1.05))
shown = ("model", "shuffled", "untrained", "random pairs")
ax = axes[0]
jitter = np.random.default_rng(SEED).uniform(-0.24, 0.24, n_all)
for column, name in enumerate(shown):
    own, other = (float(each.mean()) for each in kept[name])
    ax.scatter(column + jitter, by_head[name].ravel(), s=14, color=COLOURS[name], alpha=0.6, linewidth=0)  # fmt: skip
    ax.plot([column - 0.36, column + 0.36], [own, own], color="black", linewidth=2.5)
    ax.plot([column - 0.36, column + 0.36], [other, other], "--", color="black", linewidth=1.5)
    close = abs(own - other) < 0.05
    ax.annotate(f"{own:.2f}", (column + 0.38, own + 0.025 * close), va="center", fontsize=9, fontweight="bold")  # fmt: skip
    ax.annotate(f"{other:.2f}", (column + 0.38, other - 0.025 * close), va="center", fontsize=9)
ax.set_xticks(range(len(shown)), shown)
ax.set(
    xlim=(-0.5, len(shown) - 0.3),
    ylim=(-0.03, 1.03),
    ylabel="share of texts",
    title="How often a head has its usual anchor (dots: heads;\nline: mean; dashed: another head's usual anchor)",
)
ax = axes[1]
groups = ("model", "untrained", "random pairs")
for shift, name in zip((-0.2, 0, 0.2), groups):
    for row, draw in enumerate(DRAWS):
        value, low, high = same[name][draw]
        ax.plot([low, high], [row + shift] * 2, color=COLOURS[name], linewidth=2)
        ax.plot(value, row + shift, "o", color=COLOURS[name], markersize=8)
        ax.annotate(
            f"{value:.2f}" + (f"  {name}" if row == 0 else ""), (high, row + shift), xytext=(8, 0),
            textcoords="offset points", va="center", fontsize=9, color=COLOURS[name],
        )  # fmt: skip
ax.set_yticks(range(len(DRAWS)), [draw.replace(", ", ",\n") for draw in DRAWS])
ax.invert_yaxis()
ax.set(
    xlim=(0, 1.3 * max(value[2] for name in groups for value in same[name].values())),
    xlabel="probability",
    title="How likely two draws have the same anchor",
)
sns.despine()
figure.tight_layout()

# %%
own_kept, other_kept = (interval(each.values, seed=SEED) for each in kept["model"])
own_untrained, other_untrained = (float(each.mean()) for each in kept["untrained"])
own_chance, other_chance = (float(each.mean()) for each in kept["random pairs"])
excess = verdict.levels["kept: another head's anchor"]
ours = per_text["model"]
head_or_text = interval(ours[DRAWS[0]] - ours[DRAWS[1]], seed=SEED)
head_effect = interval(ours[DRAWS[0]] - ours[DRAWS[2]], seed=SEED)
text_effect = interval(ours[DRAWS[1]] - ours[DRAWS[2]], seed=SEED)
head_untrained, text_untrained = (
    same["untrained"][draw][0] - same["untrained"][DRAWS[2]][0] for draw in DRAWS[:2]
)
unmoved = interval(
    (anchors["model"] == anchors["shuffled"]).mean(("layer", "head")).values, seed=SEED
)  # share of heads with the same anchor when the text is shuffled
n_steady = int((by_head["model"] >= 0.5).sum())
Markdown(
    f"**Does it keep it?** A head of the model has its usual anchor in {own_kept[0]:.0%} of the texts [{own_kept[1]:.0%}, "
    f"{own_kept[2]:.0%}], and another head's in {other_kept[0]:.0%}: "
    + (
        "so there is something that belongs to the head"
        if sign((0, excess.low, excess.high)) > 0
        else "so keeping it is no more than having any head's anchor"
    )
    + f". {n_steady} of {n_all} heads keep it in at least half of the texts. The untrained model has {own_untrained:.0%} "
    f"against {other_untrained:.0%}. Random pairs keep their anchor in {own_chance:.0%} of the texts, but in {other_chance:.0%} it "
    "is another head's as well: the most frequent word wins nearly everywhere. Only the distance between line and dashed line "
    f"counts. With the words of the same text in random order, {unmoved[0]:.0%} of the anchors stay what they are [{unmoved[1]:.0%}, "
    f"{unmoved[2]:.0%}]"
    + (
        ": for most of them it matters which words there are, not in which order.\n\n"
        if unmoved[1] > 0.5
        else ".\n\n"
    )
    + f"**Head or text?** The same anchor: one head in two texts {same['model'][DRAWS[0]][0]:.2f}, two heads in one text "
    f"{same['model'][DRAWS[1]][0]:.2f}, neither in common {same['model'][DRAWS[2]][0]:.2f}. Having the head in common adds "
    f"{head_effect[0]:+.3f} [{head_effect[1]:+.3f}, {head_effect[2]:+.3f}], having the text in common "
    f"{text_effect[0]:+.3f} [{text_effect[1]:+.3f}, {text_effect[2]:+.3f}]. "
    + {
        1: "An anchor belongs more to the head than to the text",
        -1: "An anchor belongs more to the text than to the head",
        0: "Neither head nor text has clearly the larger part in it",
    }[sign(head_or_text)]
    + f". In the untrained model the two add {head_untrained:+.3f} and {text_untrained:+.3f}"
    + (
        ": random weights give heads preferences of their own too, weaker ones."
        if 0 < head_untrained < head_effect[0]
        else "."
    )
)

# %% [markdown]
# ## The neighbourhood of one anchor
#
# What is paired with an anchor? Take a head with a clear one: its raw and its corrected anchor over the corpus are the same
# word, and among such heads this word has the largest share of pair ends. The passage is the one among our `passages` in
# which the word has the largest share of pair ends; how often an anchor is paired with *itself* is counted over all passages.

# %%
passages = load_corpus("passages")
outputs = head_outputs(model, passages, max_tokens=max_tokens)


def found_in(output, layer: int, head: int, metric: str = METRIC) -> dict:
    """Similarity, high pairs and anchor of one head (counted from 1) among the body tokens of one text."""
    body = output.is_body
    ids = output.token_ids[body].cpu().numpy()
    mean_z = torch.from_numpy(data.mean_z.sel(condition="model", layer=layer, head=head).values).to(
        output.z.device
    )
    S = similarity(output.z[layer - 1, head - 1, body], metric, mean_z if metric == "centred" else None)  # fmt: skip
    pairs = top_pairs(S, SHARE).cpu().numpy()  # (pair, 2)
    counted = np.bincount(ids[pairs].ravel())
    anchor = int(counted.argmax())
    return dict(
        S=S.float().cpu().numpy(), ids=ids, pairs=pairs, anchor=anchor, ends=counted,
        words=[word for word, inside in zip(output.tokens, body.tolist()) if inside],
        touching=(ids[pairs] == anchor).any(1), alone=(ids[pairs] == anchor).all(1),
    )  # fmt: skip


everyone = over_corpus["model"]
is_word = np.array([str(label).isalpha() for label in labels])
agree = everyone["raw"] == everyone["corrected"]
for candidates in (agree & is_word[everyone["raw"]], agree, np.ones_like(agree)):
    if candidates.any():
        break
layer, head = (
    int(place) + 1
    for place in np.unravel_index(np.where(candidates, everyone["share"], -1).argmax(), agree.shape)
)
anchor_id = int(data.token_type[everyone["raw"][layer - 1, head - 1]])
anchor_word = str(labels[everyone["raw"][layer - 1, head - 1]])

with_itself, chosen, best = [], 0, -1.0
for number, output in enumerate(outputs):
    one = found_in(output, layer, head)
    share_here = one["ends"][anchor_id] / one["ends"].sum() if anchor_id < len(one["ends"]) else 0.0
    if share_here > best:
        chosen, best = number, share_here
    every = [found_in(output, a, b) for a in layers for b in range(1, model.n_heads + 1)]
    with_itself.append([f["alone"].sum() / f["touching"].sum() for f in every])
with_itself = np.mean(with_itself, axis=0).reshape(model.n_layers, model.n_heads)
example = found_in(outputs[chosen], layer, head)
is_anchor = example["ids"] == example["anchor"]
shown_word = example["words"][int(is_anchor.argmax())].lower()

# similarity of each token to the anchor's tokens, itself left out, minus the mean of all pairs
S = example["S"].copy()
np.fill_diagonal(S, np.nan)
to_anchor = np.nanmean(S, axis=1) * np.nan
for place in range(len(S)):
    row = S[place, is_anchor]
    row = row[np.isfinite(row)]
    to_anchor[place] = row.mean() if len(row) else np.nan
to_anchor -= np.nanmean(S)
touched = example["pairs"][example["touching"]]  # (pair, 2)
partners = Counter()
for i, j in touched.tolist():
    partner = j if is_anchor[i] else i
    partners[example["words"][partner].lower()] += 1

# %%
COLUMNS = 92  # characters in a line
figure, axes = plt.subplots(1, 2, figsize=(16, 4.6), width_ratios=(3.6, 1))
ax = axes[0]
limit = float(np.nanmax(np.abs(to_anchor))) or 1.0
norm = TwoSlopeNorm(0, -limit, limit)
colours = sns.color_palette("vlag", as_cmap=True)
paired = set(touched.ravel().tolist())
x, y = 0, 0
for place, word in enumerate(example["words"]):
    width = len(word) + 1
    if x + width > COLUMNS:
        x, y = 0, y + 1
    value = to_anchor[place]
    ax.add_patch(
        Rectangle(
            (x, y - 0.42), width - 0.25, 0.84,
            facecolor="0.85" if np.isnan(value) else colours(norm(value)),
            edgecolor="black" if place in paired else "none", linewidth=1.2,
        )
    )  # fmt: skip
    ax.text(
        x + (width - 0.25) / 2, y, word.replace("$", r"\$"), ha="center", va="center",
        family="monospace", fontsize=10 if is_anchor[place] else 9,
        fontweight="bold" if is_anchor[place] else "normal",
    )  # fmt: skip
    x += width
ax.set(
    xlim=(-0.5, COLUMNS), ylim=(y + 0.7, -0.7),
    title=f"layer {layer}, head {head}, passage {passages[chosen].source.replace('_', ' ')}: how alike to “{shown_word}” "
    "(bold)?\noutlined: in a high pair with it",
)  # fmt: skip
ax.axis("off")
figure.colorbar(
    plt.cm.ScalarMappable(norm, colours), ax=ax, shrink=0.8, pad=0.01,
    label=f"{METRIC} similarity, minus its mean",
)  # fmt: skip
ax = axes[1]
top = partners.most_common(10)
ax.barh(
    range(len(top)), [count for _, count in top],
    color=[COLOURS["model"] if word == shown_word else "0.6" for word, _ in top],
)  # fmt: skip
ax.set_yticks(range(len(top)), [word.replace("$", r"\$") for word, _ in top])
ax.set_ylim(max(5, len(top)) - 0.5, -0.5)
ax.set(xlabel=f"high pairs with “{shown_word}”", title="Its partners (blue: itself)")
sns.despine(ax=ax)
figure.tight_layout()

# %%
alone_here = example["alone"].sum() / example["touching"].sum()
touching_share = example["touching"].mean()
Markdown(
    f"**How to read it.** Red words are more alike to “{shown_word}” than two words of this passage are on average, blue ones "
    f"less. In this head {touching_share:.0%} of the high pairs of the passage have “{shown_word}” at an end, and {alone_here:.0%} "
    f"of those have it at *both* ends. Over all heads and our {len(passages)} passages, {with_itself.mean():.0%} of the pairs "
    f"with the anchor are of the anchor with itself; by head it goes from {with_itself.min():.0%} to "
    f"{with_itself.max():.0%}. "
    + (
        "So a good part of what makes a word an anchor is that it is repeated, and repeats are alike."
        if with_itself.mean() > 0.25
        else "So it is mostly other words that gather around an anchor, not its own repeats."
    )
)

# %% [markdown]
# ## How fragile is it?
#
# The same claim with other settings: three ways to compare vectors, three shares of pairs that count as high, raw and
# corrected anchors. Each cell shows the verdict and the numbers of distinct anchors per head that it rests on: model |
# untrained model | random pairs.

# %%
METRICS, SHARES = data.metric.values.tolist(), data.share.values.tolist()
KINDS = {"raw": "", "corrected": "corrected_"}
TINTS = {"supported": palette[2], "contradicted": palette[3], "undecided": (0.75,) * 3, "n/a": (0.92,) * 3}  # fmt: skip


def swept(metric: str, share: float, kind: str) -> tuple[str, list[float]]:
    """Verdict of one setting, and distinct anchors per head: model, untrained, random pairs."""
    there = data.sel(share=share)
    values = [
        there[f"{KINDS[kind]}anchor"].sel(metric=metric, condition=condition)
        for condition in ("model", "untrained")
    ]
    values.append(there[f"{KINDS[kind]}anchor_by_chance"].sel(condition="model"))
    means = [float(distinct_share(each).mean()) for each in values]
    return verdict.verdicts[f"{metric}, {share}, {kind}"], means


figure, ax = plt.subplots(figsize=(9, 0.9 + 0.55 * len(METRICS) * len(KINDS)))
sweep = {}
rows = [(metric, kind) for metric in METRICS for kind in KINDS]
for (row, (metric, kind)), (column, share) in (
    (a, b) for a in enumerate(rows) for b in enumerate(SHARES)
):
    word, means = swept(metric, share, kind)
    sweep[metric, kind, share] = word, means
    ax.add_patch(
        Rectangle((column, row), 1, 1, facecolor=TINTS[word], alpha=0.55, edgecolor="white")
    )
    ax.text(
        column + 0.5, row + 0.5, f"{word}\n" + " | ".join(f"{mean:.2f}" for mean in means),
        ha="center", va="center", fontsize=9,
    )  # fmt: skip
    if (metric, share, kind) == (METRIC, SHARE, verdict.setting["anchor"]):
        ax.add_patch(
            Rectangle((column + 0.01, row + 0.04), 0.98, 0.92, fill=False, edgecolor="black", linewidth=2)
        )  # fmt: skip
ax.set_xticks(np.arange(len(SHARES)) + 0.5, [f"{share:.1%} of all pairs" for share in SHARES])
ax.set_yticks(np.arange(len(rows)) + 0.5, [f"{metric}, {kind}" for metric, kind in rows])
ax.tick_params(length=0)
ax.set(xlim=(0, len(SHARES)), ylim=(len(rows), 0), title="Verdict (outlined: the headline)\nmodel | untrained | random pairs")  # fmt: skip
sns.despine(ax=ax, left=True, bottom=True)

# %%
tally = Counter(verdict.verdicts.values())
untrained_has_more = sum(means[1] > means[0] for _, means in sweep.values())
raw_only = Counter(word for (_, kind, _), (word, _) in sweep.items() if kind == "raw")
corrected_only = Counter(word for (_, kind, _), (word, _) in sweep.items() if kind == "corrected")


supported = [means[0] for word, means in sweep.values() if word == "supported"]


def told(counter: Counter) -> str:
    return ", ".join(f"{count} {word}" for word, count in counter.most_common())


Markdown(
    f"Robustness: {verdict.robustness:.0%} of the {len(verdict.verdicts)} settings have the headline's verdict "
    f"({told(tally)}). Of the raw anchors: {told(raw_only)}; of the corrected ones: {told(corrected_only)}. "
    f"In {untrained_has_more} of {len(sweep)} settings the untrained model has more distinct anchors than the model."
    + (
        " So the verdict hangs on these choices."
        if tally["supported"] and tally["contradicted"]
        else ""
    )
    + (
        " And *supported* says that the count is above all levels, not that it is near 1: where it is supported, the "
        f"model has at most {max(supported) * n_all:.0f} different anchors for its {n_all} heads."
        if supported
        else ""
    )
)

# %% [markdown]
# ## Move through the heads
#
# Three questions before you touch the sliders. In which layers is the anchor a punctuation mark? Can you find two heads
# of one layer with the same anchor, but other partners? Does the anchor change when you take *cosine* instead of *dot*?
# (Without a kernel the sliders show nothing. The picture below has two of their positions.)

# %%
N_SHOWN = 60  # tokens: more cannot be read in one line
beginning = passages[chosen].text
for stop in range(len(passages[chosen].sentences), 0, -1):
    beginning = passages[chosen].text[: passages[chosen].sentences[stop - 1][1]]
    opening = head_outputs(model, beginning, max_tokens=max_tokens)
    if int(opening.is_body.sum()) <= N_SHOWN:
        break


def draw_arcs(layer: int, head: int, metric: str = METRIC, ax=None):
    """The high pairs of one head (counted from 1) as arcs over the text, those of its anchor in colour."""
    if ax is None:
        _, ax = plt.subplots(figsize=(15, 3.4))
    found = found_in(opening, layer, head, metric)
    n = len(found["words"])
    highest = 1
    for (i, j), touches in zip(found["pairs"].tolist(), found["touching"]):
        highest = max(highest, j - i)
        ax.add_patch(
            Arc(
                ((i + j) / 2, 0), j - i, 2 * (j - i), theta1=0, theta2=180,
                edgecolor=palette[3] if touches else "0.65", linewidth=1.6 if touches else 1.1,
            )
        )  # fmt: skip
    ax.set(xlim=(-1, n), ylim=(0, 1.05 * highest), yticks=[])
    ax.set_xticks(
        range(n), [word.replace("$", r"\$") for word in found["words"]], rotation=90, fontsize=8
    )
    for label, token_id in zip(ax.get_xticklabels(), found["ids"]):
        if token_id == found["anchor"]:
            label.set(color=palette[3], fontweight="bold", fontsize=10)
    word = found["words"][int((found["ids"] == found["anchor"]).argmax())]
    ax.set_title(
        f"layer {layer}, head {head}, {metric}: anchor “{word}”, at an end of {found['touching'].sum()} of "
        f"{len(found['touching'])} high pairs"
    )
    sns.despine(ax=ax, left=True)
    return ax


def move(layer: int, head: int, metric: str) -> None:
    draw_arcs(layer, head, metric)


sliders = widgets.interact(
    move,
    layer=widgets.IntSlider(layer, 1, model.n_layers, continuous_update=False),
    head=widgets.IntSlider(head, 1, model.n_heads, continuous_update=False),
    metric=METRICS,
)

# %%
strongest = np.unravel_index(everyone["share"].argmax(), everyone["share"].shape)
figure, axes = plt.subplots(2, 1, figsize=(15, 7))
draw_arcs(layer, head, ax=axes[0])
draw_arcs(int(strongest[0]) + 1, int(strongest[1]) + 1, ax=axes[1])
figure.tight_layout()

# %%
Markdown(
    "Each arc joins the two tokens of a high pair. In colour: pairs with the anchor (bold) at an end. Top: the head of the "
    "last section. Bottom: the head whose anchor has the largest share of pair ends over the corpus, where it is "
    f"`{str(labels[everyone['raw'][strongest]]).replace('`', chr(39))}`; in a text as short as this one it can be another."
)

# %% [markdown]
# ## Takeaways
#
# - An anchor that a head has is not yet an anchor *of its own*: count how many heads share it.
# - How many different anchors to expect by chance depends on what you draw at random. The untrained model is the control
#   that does not depend on such a choice.
# - Keeping an anchor means something only beside how often the head has another head's anchor.
#
# **What this does not show.** That anchors are of any use to the model, or what an anchor's neighbourhood means: for one
# head and one passage you have seen it, no more. Who the partners of an anchor are over a whole corpus was not counted. That
# the paper's anchors are ours: it may count them another way, and it studied BERT-base; the model named at the top is
# smaller and was fine-tuned. With a model hub in reach, `make run NB=06 MODEL=bert-base-uncased` measures it.
#
# ## Exercises
#
# **1.** The most frequent type of the corpus is an anchor that needs no explanation. What share of the model's heads has
# it as its raw anchor over the corpus? First guess from the word grid, then put the number into `answer`.

# %%
answer = None

if answer is None:
    print("not yet")
else:
    right = float((over_corpus["model"]["raw"] == token_count.argmax()).mean())
    print("right" if abs(answer - right) < 0.005 else "no: a share of all heads, from 0 to 1?")

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# most_frequent = token_count.argmax()  # a place in labels
# answer = float((over_corpus["model"]["raw"] == most_frequent).mean())
# ```
# </details>
#
# **2.** Random pairs and one random token per head draw words with the same frequencies. Why do random pairs give so many
# fewer different anchors?
#
# <details><summary>Solution</summary>
#
# The anchor of many pairs is the winner of many draws. The more draws, the more surely the most frequent word wins, in
# every head the same one. A single draw brings the second, the tenth or the hundredth word nearly as easily.
# </details>


# %%
def rounded(values) -> list[float]:
    return [round(float(value), 4) for value in values]


results_path = save_results(
    OUT,
    "06_find_each_heads_anchor",
    model=model,
    corpus=corpus,
    settings=settings,
    tokens=(data.tokens_read, data.tokens_cut),
    seconds=time.perf_counter() - start,
    main={
        "label": "Distinct anchors in a text / heads",
        "value": round(verdict.estimate, 4),
        "interval": rounded((verdict.low, verdict.high)),
        "verdict": verdict.verdict,
    },
    finding=(
        f"In one text the {n_all} heads have {counts['model']:.0f} different anchors; an untrained model has "
        f"{counts['untrained']:.0f}, random pairs give {counts['random pairs']:.0f}: that each head has an anchor of its own is "
        f"{verdict.verdict}. A head has its usual anchor in {own_kept[0]:.0%} of new texts and another head's in "
        f"{other_kept[0]:.0%} (untrained: {own_untrained:.0%} and {other_untrained:.0%}). Over the corpus there are {n_raw} different "
        f"anchors, {n_raw_untrained} in the untrained model."
    ),
    values={
        "verdicts": {"S6": verdict.as_dict()},
        "distinct_in_a_text": {name: rounded(value) for name, value in distinct_of.items()},
        "distinct_by_layer": {name: rounded(values) for name, values in layer_of.items()},
        "distinct_over_corpus": n_distinct,
        "verdict_against_chance_alone": null_alone,
        "verdict_with_one_random_token": with_token,
        "verdict_without_untrained": {
            "random pairs": no_control,
            "one random token": no_control_token,
        },
        "kept": {
            name: {
                "own": rounded(interval(own.values, seed=SEED)),
                "another head's": rounded(interval(other.values, seed=SEED)),
            }
            for name, (own, other) in kept.items()
        },
        "heads_with_an_anchor_of_their_own": {name: rounded(v) for name, v in n_alone.items()},
        "same_anchor_in_shuffled_text": rounded(unmoved),
        "heads_that_keep_it_in_half_of_the_texts": n_steady,
        "same_anchor": {
            name: {draw: rounded(value) for draw, value in found.items()}
            for name, found in same.items()
        },
        "head_adds": rounded(head_effect),
        "text_adds": rounded(text_effect),
        "head_minus_text": rounded(head_or_text),
        "example": {
            "layer": layer,
            "head": head,
            "anchor": anchor_word,
            "share_of_pair_ends": round(float(everyone["share"][layer - 1, head - 1]), 4),
        },
        "anchor_with_itself": round(float(with_itself.mean()), 4),
    },
)

Markdown("**This run.** " + summary(load_results(results_path)))

# %% [markdown]
# ## Other models
#
# The same notebook with other models, beside this run: from the results that are stored with this repository
# (`make render MODEL=...` adds one).


# %%
def share_text(value: list[float]) -> str:
    return "{:.3f} [{:.3f}, {:.3f}]".format(*value)


pd.DataFrame(
    [
        {
            "model": each["model"]["name"],
            "heads": each["model"]["n_layers"] * each["model"]["n_heads"],
            "distinct / heads": share_text(each["values"]["distinct_in_a_text"]["model"]),
            **{
                name: f"{each['values']['distinct_in_a_text'][name][0]:.3f}"
                for name in ("untrained", "shuffled", "random pairs")
            },
            "over the corpus": each["values"]["distinct_over_corpus"]["model"]["raw"],
            "kept": f"{each['values']['kept']['model']['own'][0]:.3f}",
            "another's": f"{each['values']['kept']['model']['another head' + chr(39) + 's'][0]:.3f}",
            "verdict": each["main"]["verdict"],
            "robustness": f"{each['values']['verdicts']['S6']['robustness']:.0%}",
        }
        for each in with_other_models(results_path)
    ]
).set_index("model")

# %% [markdown]
# ## References
#
# Halevi et al. (2026), *Self-attention vector output similarities reveal how machines pay attention*, Physica A 686,
# 131363; [arXiv 2512.21956](https://arxiv.org/abs/2512.21956). Versions of all packages are in the results file of this
# notebook.
