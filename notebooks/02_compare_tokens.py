# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Heads bring neighbours together; repeated words were alike before

# %%
from IPython.display import Markdown

from attnlib import load_results, summary

Markdown("**Published run.** " + summary(load_results("results/minilm/02_compare_tokens.json")))

# %% [markdown]
# ![Top row: for repetition, neighbours and separators one dot per head and layer, with dashed lines for the controls.
# Bottom row: the best head of each kind on one sentence pair, as a token by token map.](figures/02_compare_tokens.png)
#
# *Top: each dot is a head, scored over the corpus; dashed lines are chance, and what the untrained model's best head, the
# model's input before any head, and shuffled text reach. Bottom: the best head of each kind on a passage. The first two
# maps compare head output vectors (red: alike), the third shows which tokens are read (yellow: much).*

# %% [markdown]
# **You'll do:** compare all tokens of a text by their head output vectors, in three ways; find the heads that do one
# thing best, over a corpus; take the similarity apart. **You'll learn:** why dot product, cosine and centred cosine
# disagree, and why a high score means nothing without its control. **You need:** notebook 01.

# %%
import re
import time
from pathlib import Path

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch

from attnlib import (
    decompose,
    head_map,
    head_outputs,
    interval,
    iter_head_outputs,
    load_corpus,
    load_model,
    repetition_auroc,
    save_figure,
    save_results,
    set_style,
    similarity,
    similarity_map,
    survey,
    top_pairs,
    with_other_models,
)
from attnlib.inference import best_head, role_scores

# %% tags=["parameters"]
MODEL = "minilm"  # minilm, mpnet, bert-base-uncased, a model hub id, or a folder
CORPUS = "lee"  # passages, lee, wikipedia, a file, a folder, or a glob
N_TEXTS = 300  # texts: the first so many of the corpus
MAX_TOKENS = 256  # tokens of each text that are read, special ones included
SHARE = 0.01  # the share of all pairs that counts as high-similarity pairs
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
        f"CORPUS={CORPUS!r} has {len(corpus)} texts: heads are chosen on one half and measured on "
        "the other, so give at least 4."
    )
max_tokens = min(MAX_TOKENS, model.max_tokens)
settings = dict(
    MODEL=model.name, CORPUS=CORPUS, N_TEXTS=N_TEXTS, MAX_TOKENS=max_tokens, SHARE=SHARE,
    DEVICE=DEVICE, DTYPE=DTYPE, SEED=SEED,
)  # fmt: skip
print(f"{model.name}: {model.n_layers} layers x {model.n_heads} heads, on {model.device}")
print(f"{corpus.name}: {len(corpus)} texts, SHA-256 {corpus.provenance['sha256'][:12]}...")

# %% [markdown]
# ## The question, and three ways to ask it
#
# Which tokens does a head treat alike? The **context similarity matrix** S compares the head output vectors z of all
# tokens i and j of a text, for one layer and head:
#
# | name | formula | range | what it asks |
# |---|---|---|---|
# | dot | $S_{ij} = \langle z_i, z_j\rangle$ | any number | alike *and* long? (arXiv 2512.21956) |
# | cosine | $\hat S_{ij} = \langle z_i, z_j\rangle / \lVert z_i\rVert\lVert z_j\rVert$ | −1 to 1 | the same direction? |
# | centred | cosine of $z_i - \bar z$ and $z_j - \bar z$ | −1 to 1 | the same deviation from what the head always writes? |
#
# $\bar z$ is the head's mean vector over the corpus. The paper's summary names the scalar product; that we look at the
# other two as well is our choice.

# %% [markdown]
# ## By hand, on three tokens

# %%
z_hand = torch.tensor([[3.0, 4.0], [6.0, 8.0], [4.0, -3.0]])  # (token, d_head)
mean_hand = torch.tensor([3.0, 0.0])

dot = similarity(z_hand, "dot")
cosine = similarity(z_hand, "cosine")
centred = similarity(z_hand, "centred", mean=mean_hand)
assert dot[0, 1] == 3 * 6 + 4 * 8 == 50 and dot[0, 2] == 3 * 4 - 4 * 3 == 0
assert torch.isclose(cosine[0, 1], torch.tensor(1.0))  # token 2 is token 1 at twice the length
# minus the mean: (0, 4), (3, 8), (1, -3), so tokens 1 and 3 now point apart
assert torch.isclose(centred[0, 2], torch.tensor(-12 / (4 * 10**0.5)))
# tokens 1 and 2 are the same word: the dot product gives that pair the highest value of the three
assert repetition_auroc(dot, torch.tensor([7, 7, 5])) == 1
pd.DataFrame(
    {
        "dot": dot[[0, 0], [1, 2]],
        "cosine": cosine[[0, 0], [1, 2]],
        "centred": centred[[0, 0], [1, 2]],
    },
    index=["tokens 1 and 2", "tokens 1 and 3"],
)
# %% [markdown]
# ## What we measure for each head and text
#
# - **Repetition score**: does S tell pairs of the same token from all other pairs? (Tokens are vocabulary entries: words,
#   pieces of words, punctuation.) As AUROC, the area under the receiver operating characteristic curve: the chance that a
#   pair of equals gets the higher value. 0.5 is chance, 1 is perfect.
# - **Neighbour score**: the same for pairs of adjacent tokens.
# - **Separator attention**: the share of attention that tokens of the text give to the separator token at the end and to
#   the punctuation that ends a sentence. What counts as a separator is our choice; notebook 03 tries others.
#
# Only tokens of the text itself are compared. Controls: **untrained**, the same architecture with random weights;
# **input**, the vectors that enter the first layer, before any head; **shuffled**, the same tokens in random order.
# To be fair to the untrained model, *its* best head is chosen too.
#
# **What we expect.** Equal words enter the model as nearly equal vectors, so any head that passes on what it gets will
# score high on repetition. Neighbours do not start out alike, except that their positions are close.
#
# `survey` measures all this, and more, in one pass. Notebooks 02 to 06 share its result: the first one that runs measures,
# the others read.

# %%
data = survey(
    model, corpus, max_tokens=max_tokens, controls=("untrained", "shuffled"), seed=SEED,
    out=Path(OUT) / model.name,
).load()  # fmt: skip
METRICS = data.metric.values.tolist()
mean = torch.from_numpy(data.mean_z.sel(condition="model").values)  # (layer, head, d_head)
print(
    f"{data.tokens_read:,} tokens read; {data.tokens_cut:,} at the ends of long texts were cut off and are not read"
)

# %% [markdown]
# ## Why the three disagree: length and the common direction
#
# How alike are two tokens of one text on average? And how often are the ends of high pairs among the longest tenth of the
# vectors? The second is measured on our 24 `passages`.

# %%
passages = load_corpus("passages")
longest = {metric: [] for metric in METRICS}
parts = []  # of the decomposition further below, read in the same pass
for _, out in iter_head_outputs(
    model, passages, what=("z", "attention", "v"), max_tokens=max_tokens, progress="passages"
):
    z, A = out.z[:, :, out.is_body].float(), out.attention[:, :, out.is_body].float()
    lengths = z.norm(dim=-1)  # (layer, head, token)
    is_long = lengths >= lengths.quantile(0.9, dim=-1, keepdim=True)
    for metric in METRICS:
        S = similarity(z, metric, mean.to(z.device) if metric == "centred" else None)
        pairs = top_pairs(S, SHARE)  # (layer, head, pair, 2)
        longest[metric].append(is_long.gather(-1, pairs.flatten(-2)).float().mean((1, 2)).cpu())
        if metric == "dot":
            flat = pairs[..., 0] * z.shape[2] + pairs[..., 1]  # (layer, head, pair)
            split = decompose(A, out.v, out.is_sep | out.is_sentence_end)
            parts.append(
                torch.stack([p.flatten(-2).gather(-1, flat).sum((1, 2)) for p in split]).cpu()
            )
longest = {metric: torch.stack(found).mean(0).numpy() for metric, found in longest.items()}

layers = np.arange(1, model.n_layers + 1)
by_layer = data.mean_similarity.mean(("text", "head"))  # (condition, layer, metric)
figure, axes = plt.subplots(1, 2, figsize=(10.5, 3.4))
colours = dict(zip(METRICS, sns.color_palette("colorblind")))
for metric in METRICS:
    colour = colours[metric]
    axes[1].plot(layers, longest[metric], marker="o", color=colour, label=metric)
    if metric != "dot":  # its unit is not that of the other two
        ours, control = (by_layer.sel(metric=metric, condition=c) for c in ("model", "untrained"))
        axes[0].plot(layers, ours, marker="o", color=colour, label=metric)
        axes[0].plot(layers, control, "--", color=colour, label=f"{metric}, untrained")
axes[0].axhline(0, linewidth=0.8, color="0.6")
axes[0].set(title="Two tokens of one text, on average", ylabel="similarity")
axes[1].axhline(0.1, linestyle=":", color="0.4", label="chance")
axes[1].set(title="Ends of high pairs in the longest tenth", ylabel="share of ends", ylim=(0, None))
for ax in axes:
    ax.set(xlabel="layer", xticks=layers)
    ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
sns.despine()
figure.tight_layout()

# %%
alike, alike_centred = (
    by_layer.sel(metric=metric, condition="model").values for metric in ("cosine", "centred")
)
alike_untrained = float(by_layer.sel(metric="cosine", condition="untrained").mean())
Markdown(
    f"**How to read it.** Left: on average, two tokens of one text have a cosine of {alike.min():.2f} to "
    f"{alike.max():.2f} depending on the layer, and of {alike_untrained:.2f} in the untrained model"
    + (
        ", whose heads write nearly the same vector for every token: a fixed threshold on the cosine would call "
        "everything similar"
        if alike_untrained > 0.9
        else ""
    )
    + f". Subtracting the mean vector of the corpus brings the trained values to {alike_centred.min():.2f} to "
    f"{alike_centred.max():.2f}; what is left, the tokens of one text share. Right: the share of ends of high pairs that are "
    f"among the longest tenth of the vectors is {longest['dot'].mean():.0%} with the dot product, {longest['cosine'].mean():.0%} "
    f"with cosine and {longest['centred'].mean():.0%} with centred cosine. So every result below says which of the three it uses, "
    "and the last section repeats it with the others."
)

# %% [markdown]
# ## The best head of each kind, chosen on one half, measured on the other
#
# Among so many heads the best one is best partly by luck. So heads are chosen on every other text, and scored on the texts
# in between. Intervals are 95 %, by bootstrap over those texts. **Supported** means that the interval of the difference
# lies above 0 for every control; **contradicted** that it lies below 0 for one of them. To be called a repetition
# detector, a head has to beat *shuffled* text too. For neighbours *shuffled* is no level to beat: it tells whether a head
# goes by the words or by their places.

# %%
LEVEL_NAMES = {
    "all pairs": "chance",
    "share of such tokens": "chance",
    "token embeddings": "input",
    "untrained, best head": "untrained",
    "shuffled text": "shuffled",
}
kinds = {"repetition": "repetition", "neighbours": "neighbour", "separators": "separator"}


def best_case(kind: str, metric: str = "cosine") -> dict:
    """The best head of a kind, chosen on one half of the texts, against its controls on the other half."""
    scores, levels = role_scores(data, kinds[kind], metric=metric, share=SHARE)
    best, levels = best_head(scores.sel(condition="model"), levels)
    estimate, low, high = interval(best.values, seed=SEED)
    levels = {LEVEL_NAMES[name]: level.values for name, level in levels.items()}
    margins = {name: interval(best.values - level, seed=SEED) for name, level in levels.items()}
    mixed = scores.sel(condition="shuffled", layer=best["layer"], head=best["head"], text=best.text)
    if all(margin[1] > 0 for margin in margins.values()):
        verdict = "supported"
    elif any(margin[2] < 0 for margin in margins.values()):
        verdict = "contradicted"
    else:
        verdict = "undecided"
    if kind == "repetition":
        levels["chance"] = np.full(1, 0.5)
    return {
        "layer": int(best["layer"]) - 1, "head": int(best["head"]) - 1, "estimate": estimate, "low": low, "high": high,
        "levels": {name: float(level.mean()) for name, level in levels.items()},
        "margins": margins, "verdict": verdict,
        "mixed": interval(mixed.values, seed=SEED),
    }  # fmt: skip


cases = {kind: best_case(kind) for kind in kinds}
pd.DataFrame(
    [
        {
            "kind": kind,
            "best head": f"layer {case['layer'] + 1}, head {case['head'] + 1}",
            "score": f"{case['estimate']:.3f} [{case['low']:.3f}, {case['high']:.3f}]",
            **{
                name: f"{case['levels'].get(name, np.nan):.3f}"
                for name in ("chance", "untrained", "input")
            },
            "shuffled": f"{case['mixed'][0]:.3f}",
            "verdict": case["verdict"],
        }
        for kind, case in cases.items()
    ]
).replace("nan", "n/a").set_index("kind")

# %%
rep, nei, sep = cases["repetition"], cases["neighbours"], cases["separators"]
name_of = {
    kind: f"layer {case['layer'] + 1} head {case['head'] + 1}" for kind, case in cases.items()
}
by_place = nei["mixed"][0] - 0.5 > 0.5 * (nei["estimate"] - 0.5)
rep_means = (
    data.repetition_auroc.sel(condition="model", metric="cosine")
    .isel(text=slice(1, None, 2))
    .mean("text")
    .values
)
n_below, n_all = int((rep_means < rep["levels"]["input"]).sum()), rep_means.size
sep_parts = {
    kind: float(
        data.separator_attention.sel(condition="model", separator=kind)
        .isel(text=slice(1, None, 2), layer=sep["layer"], head=sep["head"])
        .fillna(0)
        .mean()
    )
    for kind in ("sep_token", "sentence_end")
}
Markdown(
    f"**Repetition: {rep['verdict']}.** The best head ({name_of['repetition']}) recognises repeated tokens with "
    f"{rep['estimate']:.3f}; the vectors that enter the model, before any head, do with {rep['levels']['input']:.3f}, and "
    f"{n_below} of {n_all} heads score below them. "
    + (
        "The input leaves no room above it, so no head could pass this test: a head can keep what it is handed or lose it, "
        "and a high score does not show that it *detects* anything."
        if rep["levels"]["input"] > 0.999
        else ""
    )
    + f"\n\n**Neighbours: {nei['verdict']}.** The best head ({name_of['neighbours']}) reaches {nei['estimate']:.3f}, the input "
    f"{nei['levels']['input']:.3f}, the untrained model's best head {nei['levels']['untrained']:.3f}. On shuffled text it has "
    f"{nei['mixed'][0]:.3f}: it goes "
    + (
        "mostly by the tokens' places, whatever words stand there"
        if by_place
        else "mostly by the words"
    )
    + f".\n\n**Separators: {sep['verdict']}.** The best head ({name_of['separators']}) gives {sep['estimate']:.1%} of its attention "
    f"to separators ({sep_parts['sep_token']:.1%} to the separator token, {sep_parts['sentence_end']:.1%} to the ends of sentences), which are "
    f"{sep['levels']['chance']:.1%} of the tokens."
)
# %% [markdown]
# ## The three cases, over all heads and on one passage
#
# The picture at the top, made here. The two opening sentences are from one of our `passages`.

# %%
passage = next(text for text in passages if text.source == "comets")
opening = passage.text[passage.sentences[0][0] : passage.sentences[1][1]]
short = head_outputs(model, opening, what=("z", "attention"))
short_body = short.is_body
words = [token for token, inside in zip(short.tokens, short_body.tolist()) if inside]


def draw_pairs(layer: int, head: int, metric: str = "cosine", ax=None, title=None):
    """Similarity map of one head (counted from 1) on the opening of the passage, high pairs outlined."""
    z = short.z[layer - 1, head - 1, short_body].float().cpu()
    S = similarity(z, metric, mean[layer - 1, head - 1] if metric == "centred" else None)
    ax = similarity_map(
        S,
        words,
        pairs=top_pairs(S, SHARE),
        label=metric,
        limit=None if metric == "dot" else 1,
        ax=ax,
        title=f"layer {layer}, head {head}" if title is None else title,
    )
    ax.tick_params(labelsize=6)
    return ax


figure, axes = plt.subplots(2, 3, figsize=(15, 9.6), height_ratios=(1, 1.7))
panels = (
    ("repetition", "recognises repeated tokens (AUROC)"),
    ("neighbours", "recognises neighbours (AUROC)"),
    ("separators", "share of attention to separators"),
)
colours = dict(
    zip(("chance", "untrained", "input", "shuffled"), ("0.35", *sns.color_palette("dark")[:3]))
)
for ax, (kind, label) in zip(axes[0], panels):
    case = cases[kind]
    scores, _ = role_scores(data, kinds[kind], metric="cosine", share=SHARE)
    means = (
        scores.sel(condition="model").isel(text=slice(1, None, 2)).mean("text").values
    )  # (layer, head)
    jitter = np.linspace(-0.28, 0.28, model.n_heads)
    ax.scatter(layers[:, None] + jitter, means, s=16, color="0.45", linewidth=0)
    ax.scatter(
        case["layer"] + 1 + jitter[case["head"]], case["estimate"], s=60, color="black", zorder=3
    )
    levels = case["levels"] | {"shuffled": case["mixed"][0]}
    bottom, top = min(means.min(), *levels.values()), max(means.max(), *levels.values())
    lowest = -np.inf  # labels beside the lines, pushed apart where two lines are close
    for name, level in sorted(levels.items(), key=lambda item: item[1]):
        lowest = max(level, lowest + 0.075 * (top - bottom))
        ax.axhline(level, linestyle="--", color=colours[name], linewidth=1.3)
        ax.annotate(
            f"{name} {level:.2f}", (1.01, lowest), xycoords=("axes fraction", "data"),
            color=colours[name], fontsize=8.5, va="center",
        )  # fmt: skip
    ax.set(xlabel="layer", title=f"{label}\nblack: {name_of[kind]}")
    ax.set_xticks(layers)
sns.despine()
for ax, kind in zip(axes[1], ("repetition", "neighbours")):
    draw_pairs(
        cases[kind]["layer"] + 1,
        cases[kind]["head"] + 1,
        ax=ax,
        title=f"{name_of[kind]}: top pairs outlined",
    )
head_map(
    short.attention[sep["layer"], sep["head"]][short_body],
    short.tokens,
    queries=words,
    ax=axes[1, 2],
    title=f"{name_of['separators']}: what each token reads",
).tick_params(labelsize=6)
figure.tight_layout()
figure_path = save_figure(figure, OUT, model, "02_compare_tokens")

# %% [markdown]
# ## How much of S is two tokens reading the same separator?
#
# Since $z = A V$, also $S = A\,(V V^\top) A^\top$: S is a sum over all pairs of tokens (k, l) that i and j *read*.
# `decompose` sorts this sum by what k and l are. If two tokens are similar only because both read the same full stop,
# the similarity says nothing about the two. **We expect** much of S to come through separators in heads that pay them
# much attention, unless the separators' value vectors are short (Kobayashi et al. 2020).

# %%
PARTS = {
    "same_separator": "both read the same separator",
    "two_separators": "they read two different separators",
    "separator_and_other": "one reads a separator, one another token",
    "same_token": "both read the same other token",
    "two_tokens": "they read two different other tokens",
}
parts = torch.stack(parts)  # (text, part, layer)
shares = (parts / parts.sum(1, keepdim=True)).mean(0).numpy()  # (part, layer)
through = data[["through_separators", "same_separator"]].sel(share=SHARE).mean(("text", "head"))
figure, axes = plt.subplots(1, 2, figsize=(14, 3.6))
for name, label, colour in (
    ("through_separators", "through any separator", "C0"),
    ("same_separator", "both read the same one", "C1"),
):
    for condition, style in (("model", "-o"), ("untrained", "--")):
        suffix = "" if condition == "model" else ", untrained"
        axes[0].plot(
            layers,
            through[name].sel(condition=condition),
            style,
            color=colour,
            label=label + suffix,
        )
axes[0].axhline(0, linewidth=0.8, color="0.6")
axes[0].set(
    title=f"Similarity of high pairs that\ncomes through separators ({corpus.name})",
    ylabel="share of S",
)
axes[0].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
palette = sns.color_palette("colorblind")
up, down = np.zeros(model.n_layers), np.zeros(model.n_layers)
for values, name, colour in zip(
    shares, PARTS.values(), (palette[3], palette[1], palette[8], palette[0], palette[7])
):
    axes[1].bar(layers, values, bottom=np.where(values >= 0, up, down), color=colour, label=name)
    up, down = up + values.clip(min=0), down + values.clip(max=0)
axes[1].set(title=f"All of it, by what the two tokens read\n({len(passages)} passages)", ylabel="share of S")  # fmt: skip
axes[1].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
for ax in axes:
    ax.set(xlabel="layer", xticks=layers)
sns.despine()
figure.tight_layout()

# %%
same_by_layer = through.same_separator.sel(condition="model").values
top_layer = int(np.nan_to_num(same_by_layer, nan=-np.inf).argmax())
in_head = data.sel(condition="model", share=SHARE).isel(layer=sep["layer"], head=sep["head"])
same_in_head, through_in_head = (
    interval(in_head[name].values, seed=SEED) for name in ("same_separator", "through_separators")
)
special = (
    data[["special_attention", "special_weighted"]].sel(condition="model").mean(("text", "head"))
)
has_special = bool(special.special_attention.notnull().any())
at = int(np.nan_to_num(special.special_attention.values).argmax())
Markdown(
    f"Two tokens reading **the same separator** make up at most {same_by_layer[top_layer]:.1%} of the similarity of high pairs in "
    f"any layer (layer {top_layer + 1}). In the separator head itself ({name_of['separators']}) it is {same_in_head[0]:.1%} "
    f"[{same_in_head[1]:.1%}, {same_in_head[2]:.1%}], and all that passes **through a separator at all**, on one side or both, "
    f"{through_in_head[0]:.1%} [{through_in_head[1]:.1%}, {through_in_head[2]:.1%}].\n\n"
    + (
        "Special tokens that separate nothing, such as one at the start, get the most attention in layer "
        f"{at + 1}: {float(special.special_attention[at]):.0%}; weighted by the length of the value vectors it is "
        f"{float(special.special_weighted[at]):.1%}."
        if has_special
        else "This model adds no special token at the start."
    )
)

# %% [markdown]
# ## How fragile is it: the same with each comparison
#
# Does the best head, and the verdict, depend on which of the three similarities is used? Every control is measured with the
# same one (centred, for the input: minus its mean over the text).

# %%
pair_kinds = ("repetition", "neighbours")
sweep = pd.DataFrame(
    [
        {"kind": kind, "similarity": metric, **best_case(kind, metric)}
        for kind in pair_kinds
        for metric in METRICS
    ]
)
robustness = {
    kind: float((sweep[sweep.kind == kind].verdict == cases[kind]["verdict"]).mean())
    for kind in pair_kinds
}
shown = sweep.assign(
    head=[f"layer {a + 1}, head {b + 1}" for a, b in zip(sweep.layer, sweep["head"])],
    score=[f"{a:.3f} [{b:.3f}, {c:.3f}]" for a, b, c in zip(sweep.estimate, sweep.low, sweep.high)],
    untrained=[f"{levels['untrained']:.3f}" for levels in sweep.levels],
    input=[f"{levels['input']:.3f}" for levels in sweep.levels],
    shuffled=[f"{mixed[0]:.3f}" for mixed in sweep.mixed],
)
shown[
    ["kind", "similarity", "head", "score", "untrained", "input", "shuffled", "verdict"]
].set_index(["kind", "similarity"])

# %%
Markdown(
    f"The verdict on repetition is the same in {robustness['repetition']:.0%} of the three, on neighbours in "
    f"{robustness['neighbours']:.0%}. Chosen are the three similarities because each answers another question; what they say "
    "about distance is the subject of notebook 05."
)

# %% [markdown]
# ## Move through the heads
#
# Three questions before you touch the sliders. Which heads show a band along the diagonal, and in which layers? Is there
# a head in which the two *Sun* are alike, and is it the one that scores best on repetition? Where does *dot* outline
# other pairs than *cosine*? (Without a kernel the sliders show nothing. The maps below are one of their positions.)


# %%
def move(layer: int, head: int, metric: str) -> None:
    draw_pairs(layer, head, metric)


sliders = widgets.interact(
    move,
    layer=widgets.IntSlider(nei["layer"] + 1, 1, model.n_layers, continuous_update=False),
    head=widgets.IntSlider(nei["head"] + 1, 1, model.n_heads, continuous_update=False),
    metric=list(METRICS),
)

# %%
figure, axes = plt.subplots(1, 3, figsize=(15, 5))
for ax, metric in zip(axes, METRICS):
    draw_pairs(
        nei["layer"] + 1, nei["head"] + 1, metric, ax=ax, title=f"{name_of['neighbours']}, {metric}"
    )
figure.tight_layout()

# %% [markdown]
# ## Takeaways
#
# - Comparing head outputs shows what a head treats alike; which comparison you take is part of the result.
# - A score is a finding only against its controls: look at what the input already has.
# - Attention paid is not similarity made: what counts is the value vector that is read.
#
# **What this does not show.** That any head binds *words that belong together*: neighbours are near, and near is a
# simpler reason. How many heads have each role, with correction for having looked at all of them (notebook 04). What a separator
# between all sentences would change (notebook 03), and how much hangs on which share of pairs counts as high (notebook 05). And anything about BERT-base, which the paper studied: the model named at the top is smaller and was fine-tuned; with a model hub in reach,
# `make run NB=02 MODEL=bert-base-uncased` measures it.

# %% [markdown]
# ## Exercises
#
# **1.** In the neighbour head, how similar (cosine) are the two tokens *Sun* in the opening sentences? First guess, then put the number into `answer`.

# %%
answer = None

spans = [span for span, inside in zip(short.offsets, short_body.tolist()) if inside]
starts = [match.start() for match in re.finditer("Sun", opening)]  # characters
i, j = (next(place for place, (a, b) in enumerate(spans) if a <= start < b) for start in starts[:2])
if answer is None:
    print("not yet")
else:
    S = similarity(short.z[nei["layer"], nei["head"], short_body], "cosine")
    print(
        "right"
        if abs(answer - float(S[i, j])) < 0.01
        else "no: is it the right head, and only body tokens?"
    )

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# z = short.z[nei["layer"], nei["head"], short_body]  # (token, d_head)
# answer = float(similarity(z, "cosine")[i, j])
# ```
# </details>
#
# **2.** Why can the AUROC of the *input* for neighbours be well above 0.5, although neighbouring words are different words?
#
# <details><summary>Solution</summary>
#
# The input vector of a token is the sum of what stands for the word and what stands for its place. Places that are close
# have similar vectors, so neighbours start out a little alike. A model without such place vectors would start at 0.5.
# </details>

# %%
results_path = save_results(
    OUT,
    "02_compare_tokens",
    model=model,
    corpus=corpus,
    settings=settings,
    tokens=(data.tokens_read, data.tokens_cut),
    seconds=time.perf_counter() - start,
    main={
        "label": "Neighbour AUROC of the best head",
        "value": round(nei["estimate"], 4),
        "interval": [round(nei["low"], 4), round(nei["high"], 4)],
        "verdict": nei["verdict"],
    },
    finding=(
        f"The best head for neighbours ({name_of['neighbours']}) tells adjacent tokens from all others with an AUROC of "
        f"{nei['estimate']:.3f}, where the model's input reaches {nei['levels']['input']:.3f} and an untrained model "
        f"{nei['levels']['untrained']:.3f}. On shuffled text that head has {nei['mixed'][0]:.3f}: it goes "
        f"{'by place' if by_place else 'by the words'}. Repeated tokens are recognised with {rep['estimate']:.3f} by the best head "
        f"({name_of['repetition']}), but with {rep['levels']['input']:.3f} by the input alone: that heads *detect* repetitions is "
        f"{rep['verdict']}. Two tokens reading the same separator make up at most {same_by_layer[top_layer]:.1%} of the similarity of high pairs in any layer."
    ),
    values={
        "cases": {
            kind: {
                "layer": case["layer"] + 1,
                "head": case["head"] + 1,
                "score": [round(case[key], 4) for key in ("estimate", "low", "high")],
                "levels": {name: round(level, 4) for name, level in case["levels"].items()},
                "margins": {
                    name: [round(x, 4) for x in margin] for name, margin in case["margins"].items()
                },
                "shuffled": [round(x, 4) for x in case["mixed"]],
                "verdict": case["verdict"],
            }
            for kind, case in cases.items()
        },
        "robustness": robustness,
        "average_cosine_by_layer": [round(float(x), 4) for x in alike],
        "average_cosine_untrained": round(float(alike_untrained), 4),
        "ends_among_longest_tenth": {m: round(float(x.mean()), 4) for m, x in longest.items()},
        "same_separator_by_layer": [round(float(x), 4) for x in same_by_layer],
        "share_of_similarity_by_layer_passages": {
            name: [round(float(x), 4) for x in values] for name, values in zip(PARTS, shares)
        },
        "same_separator_in_separator_head": [round(x, 4) for x in same_in_head],
        "through_separators_in_separator_head": [round(x, 4) for x in through_in_head],
    },
)

Markdown("**This run.** " + summary(load_results(results_path)))

# %% [markdown]
# ## Other models
#
# The same notebook with other models, beside this run: from the results that are stored with this repository
# (`make render MODEL=...` adds one).


# %%
def shown_or_not(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


pd.DataFrame(
    [
        {
            "model": each["model"]["name"],
            "kind": kind,
            "best head": f"layer {case['layer']} of {each['model']['n_layers']}, head {case['head']}",
            "score": "{} [{}, {}]".format(*map(shown_or_not, case["score"])),
            **{name: shown_or_not(case["levels"].get(name)) for name in ("untrained", "input")},
            "shuffled": shown_or_not(case["shuffled"][0]),
            "verdict": case["verdict"],
        }
        for each in with_other_models(results_path)
        for kind, case in each["values"]["cases"].items()
    ]
).set_index(["model", "kind"])

# %% [markdown]
# ## References
#
# Halevi et al. (2026), *Self-attention vector output similarities reveal how machines pay attention*, Physica A 686,
# 131363; [arXiv 2512.21956](https://arxiv.org/abs/2512.21956). Ethayarajh (2019), *How contextual are contextualized word
# representations?*; [arXiv 1909.00512](https://arxiv.org/abs/1909.00512). Kobayashi et al. (2020), *Attention is not
# only a weight*; [arXiv 2004.10102](https://arxiv.org/abs/2004.10102). Versions of all packages are in the results file
# of this notebook.
