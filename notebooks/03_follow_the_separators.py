# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Separators are read most in the middle layers, not in the last ones

# %%
from IPython.display import Markdown

from attnlib import load_results, summary

Markdown(
    "**Published run.** " + summary(load_results("results/minilm/03_follow_the_separators.json"))
)

# %% [markdown]
# ![Three panels, one for each meaning of separator: attention to it by layer, a dot for each head and a black line for
# their mean, with lines for even attention, the untrained model and shuffled text. The first and the last third of the
# layers are shaded.](figures/03_follow_the_separators.png)
#
# *Attention to separators by layer, for three meanings of the word. Each dot is a head, the black line is the mean over
# heads. The claim needs the right grey band to lie above the left one, and above the dashed lines.*

# %% [markdown]
# **You'll do:** measure how much attention goes to separators, in three meanings of the word; find the heads that read
# them; see how much similarity passes through them. **You'll learn:** why a weight is not yet an influence, what an
# attention sink is, and how a claim can turn on a definition. **You need:** notebooks 01 and 02.

# %%
import time
from pathlib import Path

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from attnlib import (
    decompose,
    head_map,
    head_outputs,
    head_roles,
    interval,
    judge,
    layer_head_grid,
    load_corpus,
    load_model,
    save_figure,
    save_results,
    set_style,
    survey,
    with_other_models,
)
from attnlib.inference import best_head, first_third, last_third

# %% tags=["parameters"]
MODEL = "minilm"  # minilm, mpnet, bert-base-uncased, a model hub id, or a folder
CORPUS = "lee"  # passages, lee, wikipedia, a file, a folder, or a glob
N_TEXTS = 300  # texts: the first so many of the corpus
MAX_TOKENS = 256  # tokens of each text that are read, special ones included
SHARE = 0.01  # the share of all pairs that counts as high-similarity pairs: 0.001, 0.01 or 0.05
DEVICE = "auto"  # auto (cuda, then mps, then cpu), cuda, mps, cpu
DTYPE = "auto"  # auto (as stored), float32, bfloat16, float16
SEED = 0  # of the untrained model, the shuffling and the bootstrap
OUT = "../build"  # folder for the results

# %%
start = time.perf_counter()
set_style()
model = load_model(MODEL, device=DEVICE, dtype=DTYPE)
corpus = load_corpus(CORPUS, limit=N_TEXTS)
if len(corpus) < 4:
    raise ValueError(
        f"CORPUS={CORPUS!r} has {len(corpus)} texts: heads are tested on one half and again on the "
        "other, so give at least 4."
    )
max_tokens = min(MAX_TOKENS, model.max_tokens)
settings = dict(
    MODEL=model.name, CORPUS=CORPUS, N_TEXTS=N_TEXTS, MAX_TOKENS=max_tokens, SHARE=SHARE,
    DEVICE=DEVICE, DTYPE=DTYPE, SEED=SEED,
)  # fmt: skip
sep_name = model.tokenizer.sep_token or "separator token"
print(f"{model.name}: {model.n_layers} layers x {model.n_heads} heads, on {model.device}")
print(f"{corpus.name}: {len(corpus)} texts, SHA-256 {corpus.provenance['sha256'][:12]}...")

# %% [markdown]
# ## The question, and three things that "separator" can mean
#
# The summary of the paper (arXiv 2512.21956) says that the attention of the final layers focuses on separators. Its full
# text was not at hand, so what counts as a separator is **our choice**, and we take all three meanings:
#
# | | separator | in the survey |
# |---|---|---|
# | (a) | the model's separator token, once, at the end of the input | `sep_token` |
# | (b) | the punctuation that ends a sentence: full stop, question mark, exclamation mark; no commas | `sentence_end` |
# | (c) | every separator token, when one more is put between any two sentences | `between`, the headline |
#
# For one head and one text, with separators $K$ among the keys:
#
# | name | formula | range | source |
# |---|---|---|---|
# | attention | mean over tokens $i$ of $\sum_{k \in K} A_{ik}$ | 0 to 1 | |
# | attention × length | mean over $i$ of $\sum_{k \in K} A_{ik}\lVert v_k\rVert \,/\, \sum_k A_{ik}\lVert v_k\rVert$ | 0 to 1 | Kobayashi et al. 2020 |
# | even share | number of separators / number of keys | 0 to 1 | chance; for a model that only looks back, the untrained model is the fairer one |
#
# - $A_{ik}$: attention weight of token $i$ on key $k$; a row sums to 1. Only tokens of the text itself are counted as $i$.
# - $v_k$: the value vector of key $k$, which is what is read. A short one adds little, however large its weight.
#
# **The estimate** for the claim: attention in the last third of the layers minus attention in the first third. It has to
# be above 0 and above the same difference in an untrained model, and the last third has to be above the even share.
#
# By hand, three tokens read `Rain`, `fell` and `.`, and the value vector of the full stop is short:


# %%
def attention_to(
    A: torch.Tensor, kind: torch.Tensor, V: torch.Tensor | None = None
) -> torch.Tensor:
    """Mean share of attention (..., query, key) to some keys; times the length of V (..., key, d_head) if given."""
    weight = A.float() if V is None else A.float() * V.float().norm(dim=-1).unsqueeze(-2)
    return (weight[..., kind].sum(-1) / weight.sum(-1)).mean(-1)


A_hand = torch.tensor([[0.2, 0.2, 0.6], [0.1, 0.7, 0.2], [0.2, 0.4, 0.4]])  # (query, key)
V_hand = torch.tensor([[3.0, 4.0], [0.0, 5.0], [0.6, 0.8]])  # (key, d_head), lengths 5, 5, 1
stop = torch.tensor([False, False, True])
plain, weighted = attention_to(A_hand, stop), attention_to(A_hand, stop, V_hand)
assert torch.isclose(plain, torch.tensor((0.6 + 0.2 + 0.4) / 3))
assert torch.isclose(weighted, torch.tensor((0.6 / 2.6 + 0.2 / 4.2 + 0.4 / 3.4) / 3))
print(
    f"attention to the full stop {plain:.3f}, times length {weighted:.3f}, even share {1 / 3:.3f}"
)

# %% [markdown]
# ## The data: one survey, and a check of it
#
# `survey` reads the corpus once and measures every head in every text, and the same for two controls: **untrained**, the
# same architecture with random weights, and **shuffled**, the tokens of each text in random order. Notebooks 03 to 06 make
# this very call: the first one that runs pays for it (minutes), the others read the file it left. Before trusting it, we
# measure one text again with the three lines above.

# %%
data = survey(
    model, corpus, max_tokens=max_tokens, controls=("untrained", "shuffled"), seed=SEED, out=Path(OUT) / model.name
).load()  # fmt: skip
tokens = data.tokens_read, data.tokens_cut
print(
    f"{tokens[0]:,} tokens read; {tokens[1]:,} at the ends of long texts were cut off and are not read"
)
if data.texts_dropped:
    print(f"{len(data.texts_dropped)} texts with fewer than two tokens were dropped")

again = head_outputs(
    model, corpus[int(data.text[0])], what=("attention", "v"), max_tokens=max_tokens
)
stored = data.isel(text=0).sel(condition="model", separator="sentence_end")
largest = max(
    float((attention_to(again.attention[:, :, again.is_body], again.is_sentence_end, V).cpu() - values).abs().max())
    for V, values in (
        (None, torch.from_numpy(stored.separator_attention.values)),
        (again.v, torch.from_numpy(stored.separator_weighted.values)),
    )
) if again.is_sentence_end.any() else 0.0  # fmt: skip
assert largest < 0.02, "the survey and the formula disagree by more than half precision can explain"
print(f"survey against the formula, one text, every head: largest difference {largest:.1e}")

# %% [markdown]
# ## What we expect
#
# If the summary holds for this model, the black line rises in the last third of the layers and leaves the dashed line and
# the untrained model below it. An untrained model has no reason to prefer any token, so it should stay at the even share.
# Shuffling keeps every token and takes the sentences away: if separators are read because of *which token* they are,
# shuffled text gives the same line.
#
# From elsewhere we expect the three meanings to disagree. In BERT-base, separator tokens take about half of the attention in
# layers 5 to 10 but only about 0.07 in layers 11 and 12, where full stops and commas together take 0.50 to 0.57. (Clark et
# al. 2019, read off a plot, so give or take 0.02.)

# %%
PLACES = ("sep_token", "sentence_end", "between")
MEANING = {
    "sep_token": f"(a) {sep_name} at the end",
    "sentence_end": "(b) punctuation that ends a sentence",
    "between": f"(c) {sep_name} between all sentences",
}
layers = data.layer.values
n_third = first_third(data.layer).size
by_head = data.separator_attention.mean("text")  # (condition, layer, head, separator)
by_layer = by_head.mean("head")  # (condition, layer, separator)
by_layer_weighted = data.separator_weighted.mean(["text", "head"])
even = data.separator_keys.sel(condition="model").mean("text")  # (separator,)
COLOURS = dict(
    zip(("untrained", "shuffled", "even share"), (*sns.color_palette("dark")[:2], "0.35"))
)


def spoken(place: str) -> str:
    """A meaning as it stands in text: names of tokens can look like mark-up."""
    return MEANING[place].replace(
        sep_name, f"`{sep_name}`" if model.tokenizer.sep_token else sep_name
    )


def percent(value: float, digits: int = 1) -> str:
    return f"{value:.{digits}%}" if np.isfinite(value) else "n/a"


def label_lines(ax, labels: dict, text_of=lambda name, value: name, gap: float = 0.06) -> None:
    """Names of lines at the right edge, at the height of (value, colour), pushed apart where two are close."""
    bottom, top = ax.get_ylim()
    lowest = -np.inf
    for name, (value, colour) in sorted(labels.items(), key=lambda item: item[1][0]):
        lowest = max(value, lowest + gap * (top - bottom))
        ax.annotate(
            text_of(name, value), (1.01, lowest), xycoords=("axes fraction", "data"),
            color=colour, fontsize=8.5, va="center",
        )  # fmt: skip


def middle_third(values):
    """The layers between the first third and the last."""
    return values.isel(layer=slice(n_third, max(n_third + 1, model.n_layers - n_third)))


def not_there(ax, values) -> bool:
    """Whether there is nothing to draw; then the panel says so."""
    if np.isfinite(values).any():
        return False
    ax.text(
        0.5, 0.5, "n/a: there is no\nsuch token", transform=ax.transAxes, ha="center", va="center"
    )
    ax.set_yticks([])
    return True


figure, axes = plt.subplots(1, 3, figsize=(15, 4.2))
jitter = np.linspace(-0.28, 0.28, model.n_heads)
for ax, place in zip(axes, PLACES):
    ax.set(title=MEANING[place], xlabel="layer", xticks=layers, xlim=(0.5, model.n_layers + 0.5))
    dots = by_head.sel(condition="model", separator=place).values  # (layer, head)
    if not_there(ax, dots):
        continue
    top = 1.22 * max(np.nanmax(dots), float(even.sel(separator=place)))
    ax.set(ylim=(0, top), ylabel="share of attention")
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    line = by_layer.sel(condition="model", separator=place)
    for name, part, middle in (
        ("first third", first_third(line), (1 + n_third) / 2),
        ("middle", middle_third(line), (1 + model.n_layers) / 2),
        ("last third", last_third(line), model.n_layers + (1 - n_third) / 2),
    ):
        if name != "middle":
            ax.axvspan(middle - n_third / 2, middle + n_third / 2, color="0.93", zorder=0)
        ax.text(
            middle, 0.98 * top, f"{name}\n{percent(float(part.mean()))}", ha="center", va="top", fontsize=9
        )  # fmt: skip
    ax.scatter(layers[:, None] + jitter, dots, s=14, color="0.6", linewidth=0)
    ax.axhline(
        float(even.sel(separator=place)), linestyle="--", color=COLOURS["even share"], linewidth=1.3
    )
    for control in ("untrained", "shuffled"):
        ax.plot(
            layers, by_layer.sel(condition=control, separator=place), color=COLOURS[control],
            linestyle=":" if control == "untrained" else "--", linewidth=1.5,
        )  # fmt: skip
    ax.plot(layers, line, color="black", marker="o", linewidth=2)
    label_lines(
        ax,
        {
            "even share": (float(even.sel(separator=place)), COLOURS["even share"]),
            "model": (float(line[-1]), "black"),
            **{
                control: (
                    float(by_layer.sel(condition=control, separator=place)[-1]),
                    COLOURS[control],
                )
                for control in ("untrained", "shuffled")
            },
        },
        lambda name, value: f"even share {percent(value)}" if name == "even share" else name,
    )
sns.despine()
figure.tight_layout()
figure_path = save_figure(figure, OUT, model, "03_follow_the_separators")

# %%
verdict = judge("S1", data, seed=SEED)


def points(value: float) -> str:
    """A difference of shares, in percentage points."""
    return f"{round(100 * value, 2) + 0.0:+.2f}" if np.isfinite(value) else "n/a"  # no -0.00


def span(found: tuple[float, float, float]) -> str:
    estimate, low, high = (points(value) for value in found)
    return estimate if estimate == "n/a" else f"{estimate} [{low}, {high}]"


def why(verdict) -> str:
    """Which levels the verdict comes from."""
    below = [name for name, level in verdict.levels.items() if level.high < 0]
    open_ = [name for name, level in verdict.levels.items() if level.low <= 0 <= level.high]
    return {
        "supported": "it is above every level: " + ", ".join(verdict.levels),
        "contradicted": "it is below a level that it would have to exceed: " + ", ".join(below),
        "undecided": "the interval of the difference includes 0 for: " + ", ".join(open_),
        "n/a": "this model has no separator token, so the measure does not exist",
    }[verdict.verdict]


def thirds(values, place: str) -> dict[str, np.ndarray]:
    """Mean over heads and over each third of the layers, text by text: (text,)."""
    chosen = values.sel(condition="model", separator=place).mean("head")  # (text, layer)
    parts = {
        "first": first_third(chosen),
        "middle": middle_third(chosen),
        "last": last_third(chosen),
    }
    return {name: part.mean("layer").values for name, part in parts.items()}


def peak_of(values) -> int:
    """The layer, counted from 1, with the largest value."""
    return int(np.nan_to_num(np.asarray(values), nan=-1).argmax()) + 1


peaks, bumps = {}, {}
for place in PLACES:
    part = thirds(data.separator_attention, place)
    bumps[place] = interval(part["middle"] - part["last"], seed=SEED)
    peaks[place] = peak_of(by_layer.sel(condition="model", separator=place))

at, level = peaks["sentence_end"], float(even.sel(separator="sentence_end"))
there, mixed = (
    float(by_layer.sel(condition=condition, separator="sentence_end", layer=at)) for condition in ("model", "shuffled")
)  # fmt: skip

Markdown(
    f"**The claim: {verdict.statement.lower()}. Verdict: {verdict.verdict}.** For {spoken('between')}, the last third minus the "
    f"first is {span((verdict.estimate, verdict.low, verdict.high))} percentage points (95 % interval over "
    f"{verdict.n_texts} texts). Why: {why(verdict)}.\n\n**How to read it.** Compare the black line in the two grey bands. "
    + " ".join(
        f"{spoken(place)}: "
        + (
            f"the mean over heads is largest in layer {peaks[place]} of {model.n_layers}, "
            f"{percent(float(by_layer.sel(condition='model', separator=place, layer=peaks[place])))}, where even attention would give "
            f"{percent(float(even.sel(separator=place)))}; the middle third has {span(bumps[place])} points more than the last."
            if np.isfinite(bumps[place][0])
            else "n/a."
        )
        for place in PLACES
    )
    + " A minus sign in that last number would mean that the last third reads them more."
    + (
        f"\n\n**Sentences or tokens?** On shuffled text the same punctuation gets {percent(mixed)} in layer {at}, against "
        f"{percent(there)} in order: "
        + (
            "these tokens are read mostly for what they are, wherever they stand."
            if mixed - level > 0.5 * (there - level)
            else "these tokens are read mostly because they end a sentence."
        )
        if there > level
        else ""
    )
)

# %% [markdown]
# ## A weight is not an influence: sinks, and the length of what is read
#
# Heads often put weight on a token that has nothing to say, with a value vector so short that reading it adds almost
# nothing. This is called an **attention sink**: weights have to sum to 1, and a sink is where a head leaves what it does
# not want to spend. Multiplying each weight by the length of the value vector shows what is read in earnest. Beside
# the separators stand the special tokens that separate nothing, such as the one at the start.

# %%
special = data[["special_attention", "special_weighted"]].mean(
    ["text", "head"]
)  # (condition, layer)
kinds = {"special tokens that separate nothing": (special.special_attention, special.special_weighted)} | {
    MEANING[place]: (by_layer.sel(separator=place), by_layer_weighted.sel(separator=place)) for place in PLACES
}  # fmt: skip
figure, axes = plt.subplots(1, 4, figsize=(15, 3.5))
orange = sns.color_palette("colorblind")[3]
for ax, (title, (plain, weighted)) in zip(axes, kinds.items()):
    ax.set(
        title=title.replace(" that ", "\nthat ").replace(" between", "\nbetween"),
        xlabel="layer",
        xticks=layers,
    )
    ours, ours_weighted = plain.sel(condition="model"), weighted.sel(condition="model")
    if not_there(ax, ours):
        continue
    level = float(plain.sel(condition="untrained").mean())
    ax.axhline(level, linestyle="--", color=COLOURS["untrained"], linewidth=1.3)
    ax.plot(layers, ours, color="black", marker="o")
    ax.plot(layers, ours_weighted, color=orange, marker="s", markersize=4)
    ax.set_ylim(0, 1.1 * max(float(ours.max()), float(ours_weighted.max()), level))
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    label_lines(
        ax,
        {
            "weight": (float(ours[-1]), "black"),
            "× length": (float(ours_weighted[-1]), orange),
            "untrained": (level, COLOURS["untrained"]),
        },
        gap=0.09,
    )
    ax.tick_params(labelsize=8)
axes[0].set_ylabel("share of attention")
sns.despine()
figure.tight_layout()

# %%
# what separators take of the attention that is left when the other special tokens are set aside
rest = {
    name: (values.sel(condition="model", separator="sentence_end") / (1 - sink.sel(condition="model").fillna(0))).values
    for name, values, sink in (
        ("weight", by_layer, special.special_attention),
        ("length", by_layer_weighted, special.special_weighted),
    )
}  # fmt: skip
sink, sink_weighted = (
    special[f"special_{kind}"].sel(condition="model").values for kind in ("attention", "weighted")
)
sink_layer = peak_of(sink)
end, end_weighted = (
    each.sel(condition="model", separator="sentence_end").values
    for each in (by_layer, by_layer_weighted)
)
ratio = rest["length"] / rest["weight"]  # (layer,), below 1 where their value vectors are short
Markdown(
    (
        f"**The sink.** Special tokens that separate nothing get {percent(sink[sink_layer - 1])} of the attention in layer {sink_layer}, and "
        f"{percent(sink_weighted[sink_layer - 1])} once weights are multiplied by length"
        + (": most of that weight reads almost nothing" if sink_weighted[sink_layer - 1] < sink[sink_layer - 1] / 2 else "")
        + ". Where such a part shrinks, all others grow, since shares sum to 1.\n\n"
        if np.isfinite(sink).any()
        else "This model adds no special token that separates nothing.\n\n"
    )
    + "**Separators.** "
    + ("To take that effect out, set those special tokens aside. Of the rest, p" if np.isfinite(sink).any() else "P")
    + f"unctuation that ends a sentence gets, layer by layer, {', '.join(percent(x) for x in rest['weight'])} by weight and "
    f"{', '.join(percent(x) for x in rest['length'])} by weight times length. In the last layer that is "
    f"{'n/a' if np.isnan(ratio[-1]) else f'{ratio[-1]:.2f}'} times as much by length as by weight"
    + (
        ": there, separators have short value vectors and the weights overstate them, as Kobayashi et al. (2020) found for BERT."
        if ratio[-1] < 0.8
        else ": there, their value vectors are not much shorter than others."
        if ratio[-1] >= 0.8
        else "."
    )
)  # fmt: skip

# %% [markdown]
# ## Where the separator heads are
#
# A mean over heads can hide a few heads that do nothing else. So we ask it of each head: does it read separators, (a) and
# (b) together, more than their share of the tokens *and* more than the best head of the untrained model? It has to pass in
# both halves of the texts, with correction for testing all heads (Benjamini-Hochberg). Heads that pass are ringed.

# %%
roles = head_roles(data, share=SHARE).sel(role="separator")
passes = roles.passes
chance = float(even.sel(separator=["sep_token", "sentence_end"]).sum())
in_third = {
    "first": first_third(passes),
    "middle": middle_third(passes),
    "last": last_third(passes),
}
counts = {name: (int(part.sum()), int(part.size)) for name, part in in_third.items()}
figure, (ax, bars) = plt.subplots(
    1, 2, figsize=(11, 1.8 + 0.36 * max(model.n_layers, 6)), width_ratios=(2.4, 1)
)
layer_head_grid(
    100 * roles.score.values, label="% of attention to separators", centre=100 * chance, ax=ax,
    title=f"white: the even share, {percent(chance)}; ringed: passes the test",
)  # fmt: skip
at_layer, at_head = np.nonzero(passes.values)
ax.scatter(
    at_head + 0.5, at_layer + 0.5, s=90, facecolors="none", edgecolors="black", linewidths=1.6
)
shares = [passing / of if of else 0 for passing, of in counts.values()]
bars.barh([f"{name} third" for name in counts], shares, color="0.6")
for row, (passing, of) in enumerate(counts.values()):
    bars.text(shares[row] + 0.02, row, f"{passing} of {of}", va="center")
bars.invert_yaxis()
bars.set(
    xlim=(0, 1.25 * max(0.4, *shares)),
    xlabel="share of heads that pass",
    title="separator heads by depth",
)
bars.xaxis.set_major_formatter(PercentFormatter(1))
sns.despine(ax=bars)
figure.tight_layout()

# %%
best = np.unravel_index(np.nan_to_num(roles.score.values, nan=-1).argmax(), passes.shape)
best_name = f"layer {best[0] + 1}, head {best[1] + 1}"
n_passing = int(passes.sum())
most = max(counts, key=lambda name: shares[list(counts).index(name)])
Markdown(
    f"**How to read it.** {n_passing} of {passes.size} heads read separators by this test: "
    + ", ".join(f"{passing} of {of} in the {name} third" for name, (passing, of) in counts.items())
    + (f". The largest share of them is in the **{most} third**" if n_passing else "")
    + f". The head that reads them most is {best_name}, with {percent(float(roles.score[best]))} of its attention, against an "
    f"even share of {percent(chance)}. "
    + (
        "Even there, most of the attention goes elsewhere."
        if float(roles.score[best]) < 0.5
        else f"The mean over all heads is {percent(float(roles.score.mean()))}."
    )
)

# %% [markdown]
# ## What comes of it: similarity that passes through separators
#
# Two tokens are similar in a head if they read similar things: $S = A\,(V V^\top) A^\top$ (notebook 02). Some of that
# sum passes through separators, because one of the two tokens reads a separator, or both do. We measure it for the high
# pairs, by the scalar product, with (a) and (b) as separators.
#
# **What to hold it against.** If all value vectors were the same, and each token gave separators the share $a$ of its
# attention, the part that does *not* pass through them would be $(1-a)^2$. So $1-(1-a)^2$ does. Where value
# vectors hardly differ, as may be so in the untrained model, heads lie near that curve. A head above it gains more similarity from separators than its attention explains.

# %%
through = data.through_separators.sel(share=SHARE)  # (condition, text, layer, head)
paid = data.separator_attention.sel(separator=["sep_token", "sentence_end"]).sum(
    "separator", min_count=1
)
x, y = paid.mean("text"), through.mean("text")  # (condition, layer, head)
figure, ax = plt.subplots(figsize=(7.5, 4.6))
edge = 1.08 * float(x.max())
curve = np.linspace(0, edge, 50)
ax.plot(curve, 1 - (1 - curve) ** 2, "--", color="0.35", linewidth=1.3)
ax.annotate(
    "if all value vectors were the same", (edge, 1 - (1 - 0.55 * edge) ** 2), color="0.35", fontsize=8.5,
    ha="right", va="top",
)  # fmt: skip
ax.scatter(
    x.sel(condition="untrained"),
    y.sel(condition="untrained"),
    marker="x",
    s=22,
    color=COLOURS["untrained"],
)
colour_of = np.broadcast_to(layers[:, None], x.shape[1:])
dots = ax.scatter(
    x.sel(condition="model"), y.sel(condition="model"), c=colour_of, cmap="viridis", s=36, linewidth=0.4, edgecolor="black",
)  # fmt: skip
mark_at = [float(each.sel(condition="model")[best]) for each in (x, y)]
right = mark_at[0] > edge / 2
ax.annotate(
    best_name, mark_at, xytext=(-8 if right else 8, 0), textcoords="offset points",
    ha="right" if right else "left", va="center", fontsize=9,
)  # fmt: skip
ax.text(
    0.03,
    0.95,
    "× untrained heads",
    transform=ax.transAxes,
    color=COLOURS["untrained"],
    fontsize=8.5,
)
ax.axhline(0, color="0.7", linewidth=0.8)
ax.set(
    xlabel="attention to separators, (a) + (b)", ylabel="similarity that passes\nthrough separators", xlim=(0, edge),
)  # fmt: skip
for axis in (ax.xaxis, ax.yaxis):
    axis.set_major_locator(MaxNLocator(6))
    axis.set_major_formatter(PercentFormatter(1, decimals=None))
figure.colorbar(dots, ax=ax, label="layer", ticks=layers)
sns.despine()
figure.tight_layout()

# %%
# the head is chosen on every other text and measured on the texts in between
paid_best, held = best_head(
    paid.sel(condition="model"), {"through": through.sel(condition="model")}
)
chosen_name = f"layer {int(paid_best['layer'])}, head {int(paid_best['head'])}"
paid_there = interval(paid_best.values, seed=SEED)
through_there = interval(held["through"].values, seed=SEED)
explained = 1 - (1 - paid_there[0]) ** 2
above = (y > 1 - (1 - x) ** 2).sel(condition="model")
through_by_layer = y.mean("head").sel(condition="model").values
top = peak_of(through_by_layer)
Markdown(
    f"**How to read it.** Right is much attention, up is much similarity. The head with the most attention to separators on one half of the "
    f"texts ({chosen_name}) gives them {percent(paid_there[0])} of its attention on the other half, and {percent(through_there[0])} "
    f"[{percent(through_there[1])}, {percent(through_there[2])}] of the similarity of its high pairs passes through them; equal value "
    f"vectors would give {percent(explained)}. {int(above.sum())} of {above.size} heads lie above the curve. Averaged over heads, the share is "
    f"largest in layer {top}, {percent(through_by_layer[top - 1])}, and {percent(through_by_layer[-1])} in the last layer."
)

# %% [markdown]
# ## How fragile is it: each meaning, by weight and by length
#
# The verdict again for all three meanings, each with plain weights and with weights times length. Differences are in
# percentage points; **supported**, **contradicted** and **undecided** are computed from the intervals, as in notebook 02.

# %%
sweep = verdict.sweep  # a verdict for each meaning and each measure
LAST = "share of such tokens (last third)"
pd.DataFrame(
    [
        {
            "separators": MEANING[place],
            "measured by": "weight" if weight == "attention" else "weight × length",
            "last − first third, points": span((each.estimate, each.low, each.high)),
            "the same, untrained": points(each.controls["untrained"]),
            "the same, shuffled": points(each.controls["shuffled"]),
            "last third": percent(each.levels[LAST].ours, 2),
            "even share": percent(each.levels[LAST].level, 2),
            "verdict": each.verdict,
        }
        for (place, weight), each in sweep.items()
    ]
).set_index(["separators", "measured by"])

# %%
tally = {
    name: sum(each.verdict == name for each in sweep.values())
    for name in ("supported", "contradicted", "undecided", "n/a")
}
largest_last = max(
    (each.levels[LAST].ours for each in sweep.values() if np.isfinite(each.levels[LAST].ours)),
    default=np.nan,
)
Markdown(
    f"Of {len(sweep)} ways to measure it, "
    + ", ".join(f"{n} {'says' if n == 1 else 'say'} {name}" for name, n in tally.items() if n)
    + f". The headline's verdict, {verdict.verdict}, is shared by {verdict.robustness:.0%} of them.\n\n"
    "**Beside BERT-base.** Look at the size of the shares, too. Clark et al. (2019) have about half of all attention on the separator "
    "token in layers 5 to 10, 0.07 on it in layers 11 and 12, and there 0.50 to 0.57 on full stops and commas (read off a plot). "
    f"Here, the largest share in the last third, of all meanings and both measures, is {percent(largest_last)}. We count no commas, so (b) is "
    "not the same measure. "
    + (
        "Still, a focus of that kind is not to be seen in this model: what holds for one model need not hold for another."
        if largest_last < 0.25
        else "A focus of that kind is to be seen in this model."
        if largest_last >= 0.25
        else ""
    )
)

# %% [markdown]
# ## Move through the heads
#
# Three questions before you touch the sliders. Do separators (orange labels) show as bright columns, and in which layers?
# Which column is the brightest one in most heads of the middle layers? Does a head that reads full stops turn to the
# separator tokens when you put them *between* the sentences? (Without a kernel the sliders show nothing. The maps below
# are one of their positions.) The three sentences are from one of our `passages`.

# %%
passage = next(text for text in load_corpus("passages") if text.source == "onion_soup")
excerpt = passage.text[passage.sentences[3][0] : passage.sentences[5][1]]
inputs = ["end", "between"] if model.tokenizer.sep_token_id is not None else ["end"]
shorts = {
    kind: head_outputs(
        model, excerpt, what=("attention", "v"), separators=kind, max_tokens=max_tokens
    )
    for kind in inputs
}


def draw(layer: int, head: int, separators: str = "end", ax=None):
    """What one head (counted from 1) reads in the excerpt; separators have orange labels."""
    short = shorts[separators]
    kind = short.is_sep | short.is_sentence_end
    A = short.attention[layer - 1, head - 1, short.is_body]  # (query, key)
    words = [token for token, inside in zip(short.tokens, short.is_body.tolist()) if inside]
    title = f"layer {layer}, head {head}, {separators}: {percent(float(attention_to(A, kind)))} to separators"
    ax = head_map(A, short.tokens, queries=words, ax=ax, title=title)
    ax.tick_params(labelsize=6.5)
    for place, label in zip(ax.get_xticks(), ax.get_xticklabels()):
        if kind[int(place)]:
            label.set(color=sns.color_palette("colorblind")[3], fontweight="bold")
    return ax


def move(layer: int, head: int, separators: str) -> None:
    draw(layer, head, separators)


sliders = widgets.interact(
    move,
    layer=widgets.IntSlider(int(best[0]) + 1, 1, model.n_layers, continuous_update=False),
    head=widgets.IntSlider(int(best[1]) + 1, 1, model.n_heads, continuous_update=False),
    separators=inputs,
)

# %%
figure, axes = plt.subplots(1, len(inputs), figsize=(7.5 * len(inputs), 5.6), squeeze=False)
for ax, kind in zip(axes[0], inputs):
    draw(int(best[0]) + 1, int(best[1]) + 1, kind, ax=ax)
figure.tight_layout()

# %% [markdown]
# ## Takeaways
#
# - "Separator" has at least three meanings, and a claim about separators is none before it says which.
# - Hold attention against the even share: a token that is frequent is read often by chance.
# - A weight counts as much as the vector it reads: the largest weights may sit on a sink.
# - How much attention separators get and how much similarity passes through them are two things: measure both.
#
# **What this does not show.** That separators matter for what the model puts out: attention is not effect. Anything
# about BERT-base, which the paper studied: the model named at the top is another one, and was fine-tuned;
# `make run NB=03 MODEL=bert-base-uncased` measures BERT-base with a model hub in reach. And how separators *between*
# sentences would be read by a model that was trained with them: most models have seen only one or two in a text.
#
# ## Exercises
#
# **1.** In the head drawn above, with one separator token at the end: how large is the share that goes to separators
# when weights are multiplied by the length of the value vectors? Guess first, then put the number into `answer`.
#
# **2.** Show that $1-(1-a)^2$ of the similarity passes through separators if all value vectors are the same.

# %%
answer = None

short = shorts["end"]
kind = short.is_sep | short.is_sentence_end
A, V = short.attention[best][short.is_body], short.v[best]  # (query, key), (key, d_head)
if answer is None:
    print("not yet")
else:
    print(
        "right"
        if abs(answer - float(attention_to(A, kind, V))) < 0.01
        else "no: does each row sum to 1 again?"
    )

# the formula of exercise 2, on numbers: two tokens, half of the attention on the second key, which is a separator
parts = decompose(
    torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.ones(2, 3), torch.tensor([False, True])
)
assert torch.isclose(1 - (parts.same_token + parts.two_tokens)[0, 1] / 3, torch.tensor(1 - 0.5**2))

# %% [markdown]
# <details><summary>Solutions</summary>
#
# **1.** `answer = float(attention_to(A, kind, V))`
#
# **2.** With $v_k = v$ for all keys, $z_i = \sum_k A_{ik} v$, of which $(1-a)v$ comes through other tokens and $av$ through
# separators. The scalar product of two such vectors is $\lVert v\rVert^2$, and the part in which both read other tokens is
# $(1-a)^2\lVert v\rVert^2$. The rest passes through a separator on one side or both.
# </details>


# %%
def rounded(values) -> list[float]:
    return [round(float(value), 4) for value in np.asarray(values).ravel()]


ends = {name: float(by_layer.sel(condition="model", separator="sentence_end", layer=layer)) for name, layer in (
    ("peak", peaks["sentence_end"]), ("last", model.n_layers),
)}  # fmt: skip
results_path = save_results(
    OUT,
    "03_follow_the_separators",
    model=model,
    corpus=corpus,
    settings=settings,
    tokens=tokens,
    seconds=time.perf_counter() - start,
    main={
        "label": "Attention to separators, last third of the layers minus first",
        "value": round(verdict.estimate, 4),
        "interval": [round(verdict.low, 4), round(verdict.high, 4)],
        "verdict": verdict.verdict,
    },
    finding=(
        f"Punctuation that ends a sentence gets {percent(ends['peak'])} of the attention in layer {peaks['sentence_end']} of {model.n_layers}, where it is "
        f"read most, and {percent(ends['last'])} in the last layer; it is {percent(float(even.sel(separator='sentence_end')))} of the tokens. That the final "
        f"layers focus on separators is {verdict.verdict} with a separator token between all sentences, and supported in "
        f"{tally['supported']} of {len(sweep)} ways to measure it."
        + (
            f" In the head that reads separators most ({chosen_name}), {percent(paid_there[0], 0)} of the attention goes to them, and "
            f"{percent(through_there[0], 0)} of the similarity of its high pairs passes through them."
            if np.isfinite(paid_there[0] + through_there[0])
            else ""
        )
    ),
    values={
        "verdicts": {"S1": verdict.as_dict()},
        "sweep": {
            f"{place}, {weight}": {
                "estimate": rounded((each.estimate, each.low, each.high)),
                "untrained": round(each.controls["untrained"], 4),
                "shuffled": round(each.controls["shuffled"], 4),
                "last_third": round(each.levels[LAST].ours, 4),
                "even_share": round(each.levels[LAST].level, 4),
                "verdict": each.verdict,
            }
            for (place, weight), each in sweep.items()
        },
        "attention_by_layer": {
            condition: {place: rounded(by_layer.sel(condition=condition, separator=place)) for place in PLACES}
            for condition in data.condition.values.tolist()
        },
        "weighted_by_layer": {
            condition: {place: rounded(by_layer_weighted.sel(condition=condition, separator=place)) for place in PLACES}
            for condition in data.condition.values.tolist()
        },
        "even_share": {place: round(float(even.sel(separator=place)), 4) for place in PLACES},
        "middle_minus_last_third": {place: rounded(bump) for place, bump in bumps.items()},
        "peak_layer": {place: peaks[place] if np.isfinite(bumps[place][0]) else None for place in PLACES},
        "special_attention_by_layer": rounded(sink),
        "special_weighted_by_layer": rounded(sink_weighted),
        "heads_by_third": {name: list(count) for name, count in counts.items()},
        "head_scores": [rounded(row) for row in roles.score.values],
        "heads_that_pass": [[int(a) + 1, int(b) + 1] for a, b in zip(at_layer, at_head)],
        "separator_head": {
            "layer": int(paid_best["layer"]),
            "head": int(paid_best["head"]),
            "attention": rounded(paid_there),
            "similarity_through_separators": rounded(through_there),
            "if_all_values_were_the_same": round(explained, 4),
        },
        "similarity_through_separators_by_layer": rounded(through_by_layer),
    },
)  # fmt: skip

Markdown("**This run.** " + summary(load_results(results_path)))

# %% [markdown]
# ## Other models
#
# The same notebook with other models, beside this run: from the results that are stored with this repository
# (`make render MODEL=...` adds one). Plain weights; differences in percentage points.


# %%
def number(value: float | None) -> float:
    return np.nan if value is None else value


pd.DataFrame(
    [
        {
            "model": each["model"]["name"],
            "separators": place,
            "last − first third, points": span([number(value) for value in row["estimate"]]),
            "last third": percent(number(row["last_third"])),
            "even share": percent(number(row["even_share"])),
            "most in": f"layer {each['values']['peak_layer'][place] or 'n/a'} of {each['model']['n_layers']}",
            "verdict": row["verdict"],
        }
        for each in with_other_models(results_path)
        for place in PLACES
        for row in (each["values"]["sweep"][f"{place}, attention"],)
    ]
).set_index(["model", "separators"])

# %% [markdown]
# ## References
#
# Halevi et al. (2026), *Self-attention vector output similarities reveal how machines pay attention*, Physica A 686,
# 131363; [arXiv 2512.21956](https://arxiv.org/abs/2512.21956). Clark et al. (2019), *What does BERT look at?*;
# [arXiv 1906.04341](https://arxiv.org/abs/1906.04341). Kobayashi et al. (2020), *Attention is not only a weight*;
# [arXiv 2004.10102](https://arxiv.org/abs/2004.10102). Versions of all packages are in the results file of this notebook.
