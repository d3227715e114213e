# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Some heads have a role; none detects a repetition that its input did not show

# %%
from IPython.display import Markdown, display

from attnlib import load_results, summary

Markdown("**Published run.** " + summary(load_results("results/minilm/04_name_the_heads.json")))

# %% [markdown]
# ![A grid of heads, layers down and heads across, each coloured by its role, beside one row of dots per role that shows
# every head's score, with marks for the untrained model and for the input.](figures/04_name_the_heads.png)
#
# *Left: the role of each head; white: it has none. Right: each dot is a head, coloured if it has the role, with a circle
# around the highest score. A head has a role only if it beats every mark in its row, on one half of the texts and again on
# the other half. (Two levels differ from head to head and have no mark: its own score on shuffled text, for repetition,
# and what its own nearness predicts, for same sentence.)*

# %% [markdown]
# **You'll do:** score every head for six roles, hold the scores against controls, and look at the best head of each role.
# **You'll learn:** which roles are left once chance, the untrained model and the model's own input are taken off, and why
# looking at all heads needs a correction. **You need:** notebooks 02 and 03.

# %%
import time
from pathlib import Path

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.colors import ListedColormap
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.stats import false_discovery_control, spearmanr

from attnlib import (
    head_map,
    head_outputs,
    head_roles,
    interval,
    judge,
    load_corpus,
    load_model,
    pair_auroc,
    save_figure,
    save_results,
    set_style,
    similarity,
    similarity_map,
    survey,
    top_pairs,
    with_other_models,
)
from attnlib.inference import ROLES, best_head, passing_heads, role_scores

# %% tags=["parameters"]
MODEL = "minilm"  # minilm, mpnet, bert-base-uncased, a model hub id, or a folder
CORPUS = "lee"  # passages, lee, wikipedia, a file, a folder, or a glob
N_TEXTS = 300  # texts: the first so many of the corpus
MAX_TOKENS = 256  # tokens of each text that are read, special ones included
METRIC = "dot"  # the similarity that the scores are about: dot, cosine, centred
SHARE = 0.01  # the share of all pairs that counts as high-similarity pairs: 0.001, 0.01, 0.05
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
        f"CORPUS={CORPUS!r} has {len(corpus)} texts: a role has to hold on one half of them and on "
        "the other, so give at least 4."
    )
max_tokens = min(MAX_TOKENS, model.max_tokens)
settings = dict(
    MODEL=model.name, CORPUS=CORPUS, N_TEXTS=N_TEXTS, MAX_TOKENS=max_tokens, METRIC=METRIC,
    SHARE=SHARE, DEVICE=DEVICE, DTYPE=DTYPE, SEED=SEED,
)  # fmt: skip
print(f"{model.name}: {model.n_layers} layers x {model.n_heads} heads, on {model.device}")
print(f"{corpus.name}: {len(corpus)} texts, SHA-256 {corpus.provenance['sha256'][:12]}...")

# %% [markdown]
# ## The question, and six roles
#
# The paper (arXiv 2512.21956) says that heads specialise: some detect repetitions, some bind a token to its context. What
# would you have to see to believe it of a head? A score that no simpler thing reaches:
#
# | role | score of a head in a text | what it has to exceed |
# |---|---|---|
# | repetition | AUROC: does similarity tell pairs of the same token from all others? | the input alone; the best untrained head; shuffled text |
# | collocation | AUROC: among adjacent words, does it tell those that belong together from the rest? | 0.5; the input alone; the best untrained head |
# | neighbour | AUROC: does it tell adjacent tokens from all other pairs? | 0.5; the input alone; the best untrained head |
# | separator | share of attention paid to separator tokens and to the ends of sentences | their share of all tokens; the best untrained head |
# | same sentence | how much more often than chance high pairs lie in one sentence | 1; what their nearness predicts; the best untrained head |
# | broad | entropy of attention | ln(n / 2): reading half of the n tokens evenly |
#
# AUROC, the area under the receiver operating characteristic curve, is the chance that a pair of the kind gets the higher
# value than a pair of the rest: 0.5 is chance, 1 is perfect. *The input alone* are the vectors that enter layer 1, before
# any head. Words *belong together* if they stand side by side far more often than their frequencies predict (normalised
# pointwise mutual information above 0.5), counted in this corpus. Roles, levels and thresholds are **our** choice; the
# paper's text was not at hand.
#
# With so many heads, some exceed any level by luck. So each head is tested over the texts (one-sided t test, its hardest
# level counts), the p values are corrected over all heads (Benjamini–Hochberg), and it has to pass twice, on two halves.

# %% [markdown]
# ## By hand, on three tokens and four heads

# %%
z_hand = torch.tensor([[2.0, 0.0], [1.0, 1.0], [2.0, 0.5]])  # tokens 1 and 3 are the same word
same_hand = torch.tensor([[False, False, True]] + [[False] * 3] * 2)
S_hand = similarity(z_hand, "dot")  # 2 for tokens 1 and 2, 4 for 1 and 3, 2.5 for 2 and 3
assert S_hand[0, 2] == 4 and pair_auroc(S_hand, same_hand) == 1  # above both other pairs

p_hand = np.array([0.001, 0.02, 0.03, 0.9])  # four heads
# each p is multiplied by 4 / its rank, and must not exceed those of higher rank
assert np.allclose(false_discovery_control(p_hand), [0.004, 0.04, 0.04, 0.9])
print(
    "AUROC", float(pair_auroc(S_hand, same_hand)), "| corrected p", false_discovery_control(p_hand)
)

# %% [markdown]
# ## The data
#
# One pass over the corpus measured everything, for the model, its untrained twin and shuffled text. Notebooks 02 to 06
# share its result: the first one that runs measures, the others read.

# %%
data = survey(
    model, corpus, max_tokens=max_tokens, controls=("untrained", "shuffled"), seed=SEED,
    out=Path(OUT) / model.name,
).load()  # fmt: skip
print(f"{data.tokens_read:,} tokens read, {data.tokens_cut:,} cut off at the ends of long texts")
print(
    f"{data.n_collocations} pairs of words belong together; texts dropped: {len(data.texts_dropped)}"
)

# %% [markdown]
# ## Before trusting it: does the test find roles where there are none?
#
# The untrained model has learnt nothing. Put it in the place of the model, held against the other levels only: where its
# heads pass, those levels are too easy, and the untrained model has to be one as well. *Broad* is expected, since random
# weights read everything about evenly.
#
# **What we expect.** Equal words enter the model as nearly equal vectors, so the input alone should be hard to beat for
# repetitions (notebook 02). Neighbours differ in all but their place, so there is room for heads to do something.

# %%
blank = data.sel(condition=["untrained"]).assign_coords(condition=["model"])
roles_untrained = head_roles(blank, metric=METRIC, share=SHARE)
found_untrained = roles_untrained.passes.sum(("layer", "head")).to_series()
too_easy = [role for role in ROLES if found_untrained[role] and role != "broad"]
margins_untrained = roles_untrained.margin.where(roles_untrained.passes).max(("layer", "head"))
display(found_untrained.rename("heads of the untrained model that pass").to_frame().T)
Markdown(
    "**How to read it.** "
    + (
        "By how much the clearest of these heads exceeds its levels: "
        + ", ".join(f"{role} {float(margins_untrained.sel(role=role)):.3f}" for role in too_easy)
        + ". Over so many texts a test is sure of differences that mean nothing, so the untrained model's best head is a "
        "level, too. "
        if too_easy
        else "No head has a role that it could not have. "
    )
    + f"*Broad* is what {found_untrained['broad'] / roles_untrained.passes[0].size:.0%} of the untrained heads do: as a "
    "role it says that a head reads evenly, not that it has learnt to."
)

# %%
roles = head_roles(data, metric=METRIC, share=SHARE)
names = list(ROLES)
SHORT = dict(zip(names, ("rep", "coll", "near", "sep", "sent", "broad")))
colours = dict(zip(names, sns.color_palette("colorblind", len(names))))
PLAIN = {  # how a level is called in the figure
    "untrained, best head": "untrained",
    "token embeddings": "input",
}
markers = {"untrained": "X", "input": "D"}


def draw_atlas(roles, ax) -> None:
    """Layer x head, coloured by role, with a short name."""
    index = np.array(
        [[names.index(r) if r else -1 for r in row] for row in roles.role_of_head.values]
    )
    table = ListedColormap(["white", *colours.values()])
    sns.heatmap(
        index, cmap=table, vmin=-1.5, vmax=len(names) - 0.5, cbar=False, square=True, ax=ax,
        linewidths=1, linecolor="0.85", xticklabels=roles["head"].values, yticklabels=roles["layer"].values,
    )  # fmt: skip
    for (row, column), k in np.ndenumerate(index):
        if k >= 0:
            ax.text(
                column + 0.5,
                row + 0.5,
                SHORT[names[k]],
                ha="center",
                va="center",
                fontsize=8.5 if model.n_layers < 9 else 7,
                color="white",
            )
    ax.set(xlabel="head", ylabel="layer", title="The role of each head")
    ax.tick_params(rotation=0, length=0)


def draw_roles(axes) -> None:
    """For each role all heads' scores on one line, with the levels that they are held against."""
    for ax, role in zip(axes, names):
        scores, levels = role_scores(data, role, metric=METRIC, share=SHARE)
        means = scores.sel(condition="model").mean("text").values.ravel()
        rng = np.random.default_rng(0)
        passing = roles.passes.sel(role=role).values.ravel()
        height = rng.uniform(-0.3, 0.3, means.size)
        ax.scatter(means, height, s=14, color="0.7", linewidth=0)
        ax.scatter(means[passing], height[passing], s=16, color=colours[role], linewidth=0)
        if np.isfinite(means).any():
            best = int(np.nanargmax(means))
            ax.scatter(
                means[best], height[best], s=55, facecolor="none", edgecolor="black", zorder=4
            )
        for name, level in levels.items():
            by_head = level.mean("text").values
            value = float(by_head.mean())
            if np.ptp(by_head) > 1e-6:  # its own level for each head: no one mark
                continue
            if name in PLAIN:
                ax.scatter(value, 0, marker=markers[PLAIN[name]], color="black", s=34, zorder=3)
            elif np.isfinite(value):
                ax.axvline(value, linestyle="--", color="black", linewidth=1.2)
        n = int(passing.sum())
        ax.set_yticks([0], [f"{role} ({SHORT[role]})\n{n} of {passing.size} heads"])
        ax.get_yticklabels()[0].set(color=colours[role], weight="bold", fontsize=10)
        ax.set_ylim(-0.6, 0.6)
        ax.set_xlabel(ROLES[role].unit, fontsize=8, labelpad=1)
        ax.tick_params(axis="x", labelsize=8)
        if not np.isfinite(means).any():
            ax.text(0.5, 0.5, "n/a", transform=ax.transAxes)


figure = plt.figure(figsize=(12.5, max(6.6, 1.5 + 0.45 * model.n_layers)), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(1, 1.15))
draw_atlas(roles, left.subplots())
row_axes = right.subplots(len(names), 1)
draw_roles(row_axes)
row_axes[0].set_title(
    "Every head's score. Coloured: has the role. Circle: highest score.\n"
    "Dashed: chance. X: untrained, best head. Diamond: input alone.",
    fontsize=9,
)
sns.despine(figure)
figure_path = save_figure(figure, OUT, model, "04_name_the_heads")

# %%
n_heads = model.n_layers * model.n_heads
counts = roles.passes.sum(("layer", "head")).to_series()
n_named = int((roles.role_of_head != "").sum())
depth = {
    role: [int(x) for x in roles["layer"].values[roles.passes.sel(role=role).any("head").values]]
    for role in names
}
Markdown(
    f"**How to read it.** {n_named} of {n_heads} heads have a role. "
    + " ".join(
        f"**{role.capitalize()}**: {counts[role]} heads"
        + (f", in layers {', '.join(map(str, depth[role]))}." if counts[role] else ".")
        for role in names
    )
    + " A head that passes for several roles is coloured by the one that it exceeds most clearly, and by *broad* only if "
    "there is no other."
)

# %% [markdown]
# ## The best head of each role, and its controls
#
# *Best* is chosen on one half of the texts and measured on the other: of many heads, the best is best partly by luck.


# %%
def best_case(role: str) -> dict:
    """The best head of a role, chosen on every other text and measured on the rest, with the same score elsewhere."""
    scores, levels = role_scores(data, role, metric=METRIC, share=SHARE)
    best, levels = best_head(scores.sel(condition="model"), levels)
    shuffled = scores.sel(
        condition="shuffled", layer=best["layer"], head=best["head"], text=best.text
    )
    return {
        "place": (int(best["layer"]) - 1, int(best["head"]) - 1),
        "estimate": interval(best.values, seed=SEED),
        "levels": {name: float(level.mean()) for name, level in levels.items()},
        "shuffled": float(shuffled.mean()),
    }  # fmt: skip


def shown(value: float) -> str:
    return f"{value:.3f}" if np.isfinite(value) else "n/a"


cases = {role: best_case(role) for role in names}
pd.DataFrame(
    [
        {
            "role": role,
            "has the role": f"{counts[role]} of {n_heads}",
            "best head": f"layer {case['place'][0] + 1}, head {case['place'][1] + 1}",
            "score [95 %]": "{} [{}, {}]".format(*map(shown, case["estimate"])),
            "untrained, best head": shown(case["levels"].get("untrained, best head", np.nan)),
            "input alone": shown(case["levels"].get("token embeddings", np.nan)),
            "the same head, shuffled text": shown(case["shuffled"]),
        }
        for role, case in cases.items()
    ]
).set_index("role")

# %% [markdown]
# ## Two claims of the paper
#
# *Some heads detect repetitions* (S2) needs one head that exceeds the input, the untrained model and shuffled text. *Some
# heads bind a token to its surrounding context* (S3) needs one that tells words that belong together from other adjacent
# words, so from pairs at the same distance. The other levels stand beside it.

# %%
s2, s3 = (judge(claim, data, metric=METRIC, seed=SEED) for claim in ("S2", "S3"))


def claim_table(verdict) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "claim": verdict.claim,
                "held against": name,
                "best head": shown(level.ours),
                "level": shown(level.level),
                "difference [95 %]": f"{shown(level.difference)} [{shown(level.low)}, {shown(level.high)}]",
                "decides": "yes" if level.decides else "no",
                "heads above it": f"{verdict.heads['above'][name]} of {verdict.heads['of']}",
            }
            for name, level in verdict.levels.items()
        ]
    )


pd.concat([claim_table(s2), claim_table(s3)]).set_index(["claim", "held against"])

# %%
head_of = {v.claim: "layer {} head {}".format(*v.heads["best"]) for v in (s2, s3)}
inputs_of = {v.claim: v.levels["token embeddings"] for v in (s2, s3)}
Markdown(
    f"**{s2.statement}: {s2.verdict}.** The head that comes closest ({head_of['S2']}) scores {shown(s2.estimate)}; the input alone "
    f"scores {shown(inputs_of['S2'].level)}. {s2.heads['passing']} of {s2.heads['of']} heads exceed all three levels. Against the "
    f"untrained model alone it would be {s2.heads['above'].get('untrained, best head', 0)}: a test without the input as a control would have "
    "called them all detectors.\n\n"
    f"**{s3.statement}: {s3.verdict}.** {s3.heads['passing']} of {s3.heads['of']} heads exceed other adjacent words; the best "
    f"({head_of['S3']}) scores {shown(s3.estimate)}. "
    + (
        f"But the input alone scores {shown(inputs_of['S3'].level)}, and {s3.heads['above']['token embeddings']} heads exceed that: "
        "words that belong together are alike as words, before any head has seen them side by side."
        if "token embeddings" in s3.caveats
        else f"The input alone scores {shown(inputs_of['S3'].level)}, and the best head exceeds it."
    )
)

# %% [markdown]
# ## A better question: what does a layer add to what it reads?
#
# Where the input of layer 1 recognises repetitions without a mistake, no head can exceed it. So compare each head with the
# vectors that **its own layer** reads, which the layers below have already mixed. In the figure each dot is a head, and the
# black line is what its layer reads, compared in the same way over the whole vector. A dot above the line is a head that
# brings such pairs closer than they were handed to it.

# %%
own_input = {
    name: data[f"input_{name}"].sel(condition="model", metric=METRIC)
    for name in ("repetition_auroc", "collocation_auroc", "adjacent_auroc")
}
layers = data["layer"].values
figure, axes = plt.subplots(1, 3, figsize=(13, 3.6))
above_own = {}
for ax, (name, entering), role in zip(
    axes, own_input.items(), ("repetition", "collocation", "neighbour")
):
    scores = data[name].sel(condition="model", metric=METRIC)
    above_own[role] = int(passing_heads(scores, {"input": entering + 0 * scores}).sum())
    means = scores.mean("text").values
    jitter = np.linspace(-0.25, 0.25, model.n_heads)
    ax.scatter(layers[:, None] + jitter, means, s=14, color=colours[role], linewidth=0)
    ax.plot(
        layers,
        entering.mean("text"),
        "D-",
        color="black",
        markersize=5,
        label="what the layer reads",
    )
    ax.axhline(0.5, linestyle="--", color="0.4", label="chance")
    ax.set(
        title=f"{role}: {above_own[role]} of {n_heads} heads exceed\nwhat their layer reads",
        xlabel="layer",
    )
    ax.set_xticks(layers)
axes[0].set_ylabel(f"AUROC ({METRIC})")
axes[-1].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
sns.despine()
figure.tight_layout()

# %% [markdown]
# ## Do the scores stay on other texts?

# %%
halves = [data.isel(text=slice(half, None, 2)) for half in (0, 1)]
agreement = {}
for role in names:
    means = [
        role_scores(half, role, metric=METRIC, share=SHARE)[0]
        .sel(condition="model")
        .mean("text")
        .values.ravel()
        for half in halves
    ]
    usable = np.isfinite(means).all(0)
    agreement[role] = (
        float(spearmanr(means[0][usable], means[1][usable]).statistic)
        if usable.sum() > 2
        else np.nan
    )
weakest = min(agreement, key=lambda role: np.nan_to_num(agreement[role], nan=2))
Markdown(
    "Rank correlation (Spearman) of all heads' scores between the two halves of the texts: "
    + ", ".join(f"{role} {shown(value)}" for role, value in agreement.items())
    + f". So a head's score is a property of the head rather than of the texts, least so for *{weakest}*."
)

# %% [markdown]
# ## The best head of each role on one passage
#
# The opening of one of our `passages`. Maps of similarity outline the high pairs; maps of attention show which token reads
# which.

# %%
passage = next(text for text in load_corpus("passages") if text.source == "comets")
opening = passage.text[passage.sentences[0][0] : passage.sentences[1][1]]
short = head_outputs(model, opening, what=("z", "attention"))
body = short.is_body
words = [token for token, inside in zip(short.tokens, body.tolist()) if inside]
mean_z = torch.from_numpy(data.mean_z.sel(condition="model").values)


def draw_head(layer: int, head: int, show: str = "similarity", ax=None, title: str | None = None):
    """One head (counted from 1) on the passage: its similarity map or its attention map."""
    title = f"layer {layer}, head {head}" if title is None else title
    if show == "attention":
        A = short.attention[layer - 1, head - 1][body].cpu()
        ax = head_map(A, short.tokens, queries=words, ax=ax, title=title)
    else:
        z = short.z[layer - 1, head - 1, body].float().cpu()
        S = similarity(z, METRIC, mean_z[layer - 1, head - 1] if METRIC == "centred" else None)
        ax = similarity_map(S, words, pairs=top_pairs(S, SHARE), label=METRIC, ax=ax, title=title)
    ax.tick_params(labelsize=5.5)
    return ax


figure, axes = plt.subplots(2, 3, figsize=(16, 10.5))
for ax, role in zip(axes.flat, names):
    layer, head = (place + 1 for place in cases[role]["place"])
    kind = "attention" if role in ("separator", "broad") else "similarity"
    draw_head(layer, head, kind, ax, f"{role}: layer {layer} head {head}")
figure.tight_layout()

# %% [markdown]
# ## Heads that resemble each other
#
# Describe each head by its profile: the six scores, and how much it reads the previous token, the next one and itself. Each
# column is brought to mean 0 and standard deviation 1 over the heads, and the rows are ordered so that like heads stand
# together (average linkage).

# %%
measures = {role: role_scores(data, role, metric=METRIC, share=SHARE)[0] for role in names}
measures |= {
    label: data[name]
    for label, name in (
        ("reads previous", "attention_previous"),
        ("reads next", "attention_next"),
        ("reads itself", "attention_self"),
        ("reach", "relative_distance"),
    )
}
profile = pd.DataFrame(
    {
        label: (
            values.sel(metric=METRIC, share=SHARE) if label == "reach" else values
        ).sel(condition="model").mean("text").values.ravel()
        for label, values in measures.items()
    },
    index=[f"{layer}.{head}" for layer in layers for head in data["head"].values],
)  # fmt: skip
profile = profile.dropna(axis=1)
profile = (profile - profile.mean()) / profile.std().where(lambda spread: spread > 0, 1)
order = leaves_list(linkage(profile.values, "average"))
figure, ax = plt.subplots(figsize=(14, 3.6))
sns.heatmap(
    profile.iloc[order].T, cmap="vlag", center=0, vmin=-3, vmax=3, ax=ax, xticklabels=True,
    cbar_kws={"label": "standard deviations\nfrom the mean head"},
)  # fmt: skip
ax.set(xlabel="head, as layer.head", title="Profiles of all heads, like ones side by side")
ax.tick_params(axis="x", labelsize=max(3.5, min(8, 560 / n_heads)), rotation=90)
figure.tight_layout()

# %%
together = profile.iloc[order].index.str.split(".").str[0].astype(int).values
same_layer = float((together[1:] == together[:-1]).mean())
by_chance = (model.n_heads - 1) / max(1, n_heads - 1)
Markdown(
    f"Of heads that stand side by side, {same_layer:.0%} are from the same layer; in random order it would be {by_chance:.0%}. "
    "So what a head does depends on its depth, "
    + ("and to a large part." if same_layer > 3 * by_chance else "but only in part.")
)

# %% [markdown]
# ## How fragile is it: the same with each comparison

# %%
by_metric = {m: head_roles(data, metric=m, share=SHARE) for m in data.metric.values.tolist()}
fragile = pd.DataFrame(
    {m: found.passes.sum(("layer", "head")).to_series() for m, found in by_metric.items()}
)
fragile = fragile.astype(object)
fragile.loc["S2: " + s2.statement] = [s2.verdicts[m] for m in fragile.columns]
fragile.loc["S3: " + s3.statement] = [s3.verdicts[m] for m in fragile.columns]
fragile.columns.name = "heads with the role, by similarity"
fragile

# %% [markdown]
# ## Move through the heads
#
# Three questions before you touch the sliders. Which heads of layer 1 have no role, and what do you see in their maps? Do
# two heads with the same role look alike on the passage? Can you find a head whose map you would have given another name?
# (Without a kernel the sliders show nothing: the maps above are some of their positions.)


# %%
def move(layer: int, head: int, show: str) -> None:
    role = roles.role_of_head.sel(layer=layer, head=head).item() or "no role"
    draw_head(layer, head, show, title=f"layer {layer}, head {head}: {role}")


first = cases["neighbour"]["place"]
sliders = widgets.interact(
    move,
    layer=widgets.IntSlider(first[0] + 1, 1, model.n_layers, continuous_update=False),
    head=widgets.IntSlider(first[1] + 1, 1, model.n_heads, continuous_update=False),
    show=["similarity", "attention"],
)

# %% [markdown]
# ## Takeaways
#
# - A role is a score that no simpler explanation reaches. Most of what looks like one is already in the input.
# - Testing every head finds some by luck: correct for it, and look again on other texts.
# - Neighbours and separators leave roles that survive; whether repetitions do depends on what you compare with.
#
# **What this does not show.** That a head with a role is *needed* for anything: that takes removing it. That these six are
# the only roles. That *neighbour* means understanding of word order: notebook 02 shows the score hardly falls on shuffled
# text. And anything about BERT-base, which the paper studied: `make run NB=04 MODEL=bert-base-uncased` measures it where a
# model hub is in reach.

# %% [markdown]
# ## Exercises
#
# **1.** How many heads would have the role *neighbour* if the input were no level? Put the number into `answer`.

# %%
answer = None

scores, levels = role_scores(data, "neighbour", metric=METRIC, share=SHARE)
if answer is None:
    print("not yet")
else:
    kept = {name: level for name, level in levels.items() if name != "token embeddings"}
    right = int(passing_heads(scores.sel(condition="model"), kept).sum())
    print("right" if answer == right else "no: which levels are left?")

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# kept = {name: level for name, level in levels.items() if name != "token embeddings"}
# answer = int(passing_heads(scores.sel(condition="model"), kept).sum())
# ```
# </details>
#
# **2.** Why is the shuffled text a level for *repetition*, but not for *neighbour*?
#
# <details><summary>Solution</summary>
#
# A repetition is about which word stands there, and shuffling keeps the words. A head that *detects* repetitions in context
# should do better where there is a context. Shuffling destroys which words are neighbours, but not that some are: a head that
# goes by place alone keeps its score, and it is still a head for neighbours.
# </details>

# %%
results_path = save_results(
    OUT,
    "04_name_the_heads",
    model=model,
    corpus=corpus,
    settings=settings,
    tokens=(data.tokens_read, data.tokens_cut),
    seconds=time.perf_counter() - start,
    main={
        "label": "Repetition AUROC of the best head",
        "value": round(s2.estimate, 4),
        "interval": [round(s2.low, 4), round(s2.high, 4)],
        "verdict": s2.verdict,
    },
    finding=(
        f"{n_named} of {n_heads} heads have a role that survives every control on both halves of the texts: "
        + ", ".join(f"{role} {counts[role]}" for role in names)
        + f" (a head may have several). That some heads detect repetitions is {s2.verdict}: the best scores {shown(s2.estimate)}, the "
        f"model's input {shown(inputs_of['S2'].level)}. That some bind a token to its context is {s3.verdict} against other adjacent "
        f"words ({s3.heads['passing']} heads), and the input alone scores {shown(inputs_of['S3'].level)} where the best head has {shown(s3.estimate)}."
    ),
    values={
        "verdicts": {"S2": s2.as_dict(), "S3": s3.as_dict()},
        "heads_with_role": {role: int(counts[role]) for role in names},
        "heads_with_role_untrained": {role: int(found_untrained[role]) for role in names},
        "role_of_head": roles.role_of_head.values.tolist(),
        "best": {
            role: {
                "layer": case["place"][0] + 1,
                "head": case["place"][1] + 1,
                "score": [round(x, 4) for x in case["estimate"]],
                "levels": {name: round(x, 4) for name, x in case["levels"].items()},
                "shuffled": round(case["shuffled"], 4),
            }
            for role, case in cases.items()
        },
        "heads_above_their_own_input": above_own,
        "split_half_correlation": {role: round(value, 4) for role, value in agreement.items()},
        "heads_with_role_by_metric": {
            m: {role: int(x) for role, x in zip(names, found.passes.sum(("layer", "head")).values)}
            for m, found in by_metric.items()
        },
        "like_heads_in_one_layer": round(same_layer, 4),
    },
)

Markdown("**This run.** " + summary(load_results(results_path)))

# %% [markdown]
# ## Other models
#
# The same notebook with other models, beside this run: from the results stored with this repository.

# %%
pd.DataFrame(
    [
        {
            "model": each["model"]["name"],
            "heads": each["model"]["n_layers"] * each["model"]["n_heads"],
            **each["values"]["heads_with_role"],
            **{claim: v["verdict"] for claim, v in each["values"]["verdicts"].items()},
        }
        for each in with_other_models(results_path)
    ]
).set_index("model")

# %% [markdown]
# ## References
#
# Halevi et al. (2026), *Self-attention vector output similarities reveal how machines pay attention*, Physica A 686,
# 131363; [arXiv 2512.21956](https://arxiv.org/abs/2512.21956). Clark et al. (2019), *What does BERT look at?*;
# [arXiv 1906.04341](https://arxiv.org/abs/1906.04341). Benjamini and Hochberg (1995), *Controlling the false discovery rate*,
# Journal of the Royal Statistical Society B 57. Versions of all packages are in the results file of this notebook.
