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

Markdown(summary(load_results("results/minilm/02_compare_tokens.json")))

# %% [markdown]
# ![Top row: for repetition, neighbours and separators one dot per head and layer, with dashed lines for the controls.
# Bottom row: the best head of each kind on one sentence pair, as a token by token map.](figures/02_compare_tokens.png)
#
# *Top: each dot is a head, scored over the corpus; dashed lines are what the untrained model's best head, the model's
# input before any head, and shuffled text reach. Bottom: the best head of each kind on a passage. The first two maps
# compare head output vectors (red: alike), the third shows which tokens are read (yellow: much).*

# %% [markdown]
# **You'll do:** compare all tokens of a text by their head output vectors, in three ways; find the heads that do one
# thing best, over a corpus; take the similarity apart. **You'll learn:** why dot product, cosine and centred cosine
# disagree, and why a high score means nothing without its control. **You need:** notebook 01.

# %%
import time

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from scipy.stats import bootstrap
from tqdm import tqdm

from attnlib import (
    capture,
    decompose,
    head_map,
    head_outputs,
    iter_head_outputs,
    load_corpus,
    load_model,
    pair_auroc,
    relative_distance,
    repetition_auroc,
    save_figure,
    save_results,
    set_style,
    similarity,
    similarity_map,
    top_pairs,
)

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
settings = {name: value for name, value in globals().items() if name.isupper() and name != "OUT"}
set_style()
model = load_model(MODEL, device=DEVICE, dtype=DTYPE)
untrained = load_model(MODEL, device=DEVICE, dtype=DTYPE, untrained=True, seed=SEED)
corpus = load_corpus(CORPUS, limit=N_TEXTS)
if len(corpus) < 4:
    raise ValueError(
        f"CORPUS={CORPUS!r} has {len(corpus)} texts: heads are chosen on one half and measured on "
        "the other, so give at least 4."
    )
max_tokens = min(MAX_TOKENS, model.max_tokens)
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
# - **Repetition score**: does S tell pairs of the same word from all other pairs? As AUROC, the chance that a pair of
#   equals gets the higher value: 0.5 is chance, 1 is perfect.
# - **Neighbour score**: the same for pairs of adjacent tokens.
# - **Separator attention**: the share of attention that tokens of the text give to the separator token and to the
#   punctuation that ends a sentence.
#
# Only tokens of the text itself are compared. Controls: **untrained**, the same architecture with random weights;
# **input**, the vectors that enter the first layer, before any head; **shuffled**, the same tokens in random order.
# To be fair to the untrained model, *its* best head is chosen too.
#
# **What we expect.** Equal words enter the model as nearly equal vectors, so any head that passes on what it gets will
# score high on repetition. Neighbours do not start out alike, except that their positions are close.


# %%
def is_adjacent(n: int) -> torch.Tensor:
    """(token, token), True for each token and the next one."""
    return torch.ones(n, n).triu(1).tril(1).bool()


def pair_scores(S: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Repetition and neighbour score of each head in one text: (2, layer, head)."""
    return torch.stack([repetition_auroc(S, token_ids), pair_auroc(S, is_adjacent(len(token_ids)))])


def mean_vectors(model, label: str) -> torch.Tensor:
    """The mean of z over all tokens of the corpus: (layer, head, d_head)."""
    total, n = 0, 0
    for _, out in iter_head_outputs(model, corpus, max_tokens=max_tokens, progress=label):
        z = out.z[:, :, out.is_body].float()
        total, n = total + z.sum(2), n + z.shape[2]
    return total / n


mean = mean_vectors(model, "mean vectors")
mean_untrained = mean_vectors(untrained, "mean vectors, untrained")

# %% [markdown]
# ## Why the three disagree: length and the common direction
#
# One pass over the corpus collects everything below. Two of its measures concern the comparison itself: how alike two
# tokens *drawn at random* are, and how often the ends of the highest 1 % of pairs are the longest 10 % of vectors.


# %%
def measure(
    model, mean: torch.Tensor, metrics: tuple[str, ...], label: str
) -> dict[str, np.ndarray]:
    """Every measure of every head in every text; each array is (text, ..., layer, head)."""
    rows = {}
    for index, out in iter_head_outputs(
        model, corpus, what=("z", "attention", "v"), max_tokens=max_tokens, progress=label
    ):
        body, ids = out.is_body, out.token_ids[out.is_body]
        z, A = out.z[:, :, body].float(), out.attention[:, :, body].float()
        n = len(ids)
        longest = z.norm(dim=-1) >= z.norm(dim=-1).quantile(0.9, dim=-1, keepdim=True)
        row = {"at random": [], "distance": [], "longest": []}
        row["score"] = []
        for metric in metrics:
            S = similarity(z, metric, mean if metric == "centred" else None)
            row["score"].append(pair_scores(S, ids))
            pairs = top_pairs(S, SHARE)  # (layer, head, pair, 2)
            row["at random"].append(
                (S.sum((-1, -2)) - S.diagonal(dim1=-1, dim2=-2).sum(-1)) / (n * (n - 1))
            )
            row["distance"].append(relative_distance(pairs, n))
            ends = longest.gather(-1, pairs.flatten(-2))
            row["longest"].append(ends.float().mean(-1))
        separators = out.is_sep | out.is_sentence_end
        first = ~out.is_body & ~out.is_sep  # special tokens that separate nothing, such as [CLS]
        row["separator"] = A[..., separators].sum(-1).mean(-1)
        row["first"] = A[..., first].sum(-1).mean(-1)
        row["separator share of keys"] = separators.float().mean().expand_as(row["first"])
        # what the similarity of the high pairs is made of (scalar product, as the sum is exact only there)
        pairs = top_pairs(similarity(z), SHARE)
        flat = pairs[..., 0] * n + pairs[..., 1]  # (layer, head, pair)
        parts = [
            *decompose(A, out.v, separators),
            decompose(A, out.v, separators | first).same_separator,
        ]
        row["part"] = [part.flatten(-2).gather(-1, flat).sum(-1) for part in parts]
        rows[index] = {
            name: (torch.stack(value) if isinstance(value, list) else value).cpu().numpy()
            for name, value in row.items()
        }
    return {name: np.stack([rows[i][name] for i in range(len(rows))]) for name in rows[0]}


METRICS = ("dot", "cosine", "centred")
found = measure(model, mean, METRICS, "trained")
control = measure(untrained, mean_untrained, METRICS, "untrained")

# %%
layers = np.arange(1, model.n_layers + 1)
figure, axes = plt.subplots(1, 2, figsize=(10.5, 3.4))
colours = dict(zip(METRICS, sns.color_palette("colorblind")))
by_layer = {
    name: {metric: np.nanmean(found[name][:, m], axis=(0, 2)) for m, metric in enumerate(METRICS)}
    for name in ("at random", "longest")
}
for metric in ("cosine", "centred"):
    random_untrained = np.nanmean(control["at random"][:, METRICS.index(metric)], axis=(0, 2))
    axes[0].plot(
        layers, by_layer["at random"][metric], marker="o", color=colours[metric], label=metric
    )
    axes[0].plot(
        layers, random_untrained, "--", color=colours[metric], label=f"{metric}, untrained"
    )
axes[0].axhline(0, linewidth=0.8, color="0.6")
axes[0].set(
    title="Two tokens drawn at random", xlabel="layer", ylabel="mean similarity", ylim=(-0.1, 1.05)
)
for metric in METRICS:
    axes[1].plot(
        layers, by_layer["longest"][metric], marker="o", color=colours[metric], label=metric
    )
axes[1].axhline(0.1, linestyle="--", color="0.4", label="chance")
axes[1].set(
    title="Ends of high pairs that are among the longest 10 %",
    xlabel="layer",
    ylabel="share of ends",
)
axes[1].set_ylim(0, None)
for ax in axes:
    ax.set_xticks(layers)
    ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
sns.despine()
figure.tight_layout()

# %%
alike, alike_centred = (by_layer["at random"][metric] for metric in ("cosine", "centred"))
alike_untrained = float(np.nanmean(control["at random"][:, 1]))
longest = {metric: float(by_layer["longest"][metric].mean()) for metric in METRICS}
Markdown(
    f"**How to read it.** Left: two tokens drawn at random have a cosine of {alike.min():.2f} to {alike.max():.2f} "
    f"depending on the layer, and of {alike_untrained:.2f} in the untrained model: its heads write the same vector for "
    "every token, and a fixed threshold on cosine would call everything similar. Subtracting the mean vector brings "
    f"the trained values to {alike_centred.min():.2f} to {alike_centred.max():.2f}. Right: with the dot product, "
    f"{longest['dot']:.0%} of the ends of high pairs are among the longest tenth of the vectors, so it finds long "
    f"vectors as much as like ones; with cosine it is {longest['cosine']:.0%}, with centred cosine "
    f"{longest['centred']:.0%}. This is why every result below says which of the three it uses, and why the last "
    "section repeats it with the others."
)

# %% [markdown]
# ## The two controls that keep the trained model
#
# The **input** to the first layer, and the same tokens **shuffled**. For these, run the model on token numbers directly,
# inside `capture`.

# %%
rng = torch.Generator().manual_seed(SEED)
kinds = ("repetition", "neighbours")
at_input, shuffled = [], []
for out in tqdm(head_outputs(model, corpus, max_tokens=max_tokens, layers=[0]), leave=False):
    body = out.is_body
    n = int(body.sum())
    with torch.inference_mode():
        states = model.net(input_ids=out.token_ids[None], output_hidden_states=True).hidden_states
        at_input.append(
            pair_scores(similarity(states[0][:, body], "cosine"), out.token_ids[body]).cpu()
        )
        mixed = out.token_ids.clone()
        mixed[body] = out.token_ids[body][torch.randperm(n, generator=rng).to(mixed.device)]
        with capture(model) as captured:
            model.net(input_ids=mixed[None])
        z = captured.z[0][:, :, body]  # (layer, head, token, d_head)
        shuffled.append(pair_scores(similarity(z, "cosine"), mixed[body]).cpu())
at_input = torch.stack(at_input).numpy()[..., 0]  # (text, 2)
shuffled = torch.stack(shuffled).numpy()  # (text, 2, layer, head)

# %% [markdown]
# ## The best head of each kind, chosen on one half, measured on the other
#
# Among so many heads the best one is best partly by luck. So heads are chosen on every other text, and everything
# below is measured on the texts in between. Intervals are 95 %, by bootstrap over those texts (2,000 resamples).

# %%
choosing, held_out = np.arange(len(corpus)) % 2 == 0, np.arange(len(corpus)) % 2 == 1


def best_head(scores: np.ndarray) -> tuple[int, int]:
    """Layer and head, counted from 0, with the highest mean on the choosing half; scores are (text, layer, head)."""
    means = np.nan_to_num(np.nanmean(scores[choosing], axis=0), nan=-np.inf)
    return divmod(int(means.argmax()), model.n_heads)


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Mean over texts with its 95 % bootstrap interval; texts in which the measure does not exist are left out."""
    values = values[np.isfinite(values)].astype(float)
    if len(values) < 2:
        return float("nan"), float("nan"), float("nan")
    found = bootstrap(
        (values,), np.mean, n_resamples=2000, method="percentile", rng=np.random.default_rng(SEED)
    ).confidence_interval
    return float(values.mean()), float(found.low), float(found.high)


def judge(scores: np.ndarray, controls: dict[str, np.ndarray]) -> dict:
    """One head's scores against each control, text by text on the held-out half; both are (text,)."""
    estimate, low, high = interval(scores[held_out])
    margins = {name: interval((scores - level)[held_out]) for name, level in controls.items()}
    if all(margin[1] > 0 for margin in margins.values()):
        verdict = "supported"
    elif any(margin[2] < 0 for margin in margins.values()):
        verdict = "contradicted"
    else:
        verdict = "undecided"
    levels = {name: float(np.nanmean(level[held_out])) for name, level in controls.items()}
    return dict(
        estimate=estimate, low=low, high=high, verdict=verdict, levels=levels, margins=margins
    )


def judge_pairs(kind: str, metric: str) -> dict:
    """The best repetition or neighbour head under one metric."""
    k, m = kinds.index(kind), METRICS.index(metric)
    scores, scores_untrained = (
        found["score"][:, m, k],
        control["score"][:, m, k],
    )  # (text, layer, head)
    layer, head = best_head(scores)
    ours = scores[:, layer, head]
    controls = {
        "chance": np.full(len(corpus), 0.5),
        "untrained": scores_untrained[(slice(None), *best_head(scores_untrained))],
        "input": at_input[:, k],
    }
    return {"layer": layer, "head": head, **judge(ours, controls)}


cases = {kind: judge_pairs(kind, "cosine") for kind in kinds}
layer, head = best_head(found["separator"])
cases["separators"] = {
    "layer": layer,
    "head": head,
    **judge(
        found["separator"][:, layer, head],
        {
            "chance": found["separator share of keys"][:, 0, 0],
            "untrained": control["separator"][(slice(None), *best_head(control["separator"]))],
        },
    ),
}
for k, kind in enumerate(kinds):
    case = cases[kind]
    case["shuffled"] = interval(shuffled[:, k, case["layer"], case["head"]][held_out])

# %%
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
            "shuffled": f"{case['shuffled'][0]:.3f}" if "shuffled" in case else "n/a",
            "verdict": case["verdict"],
        }
        for kind, case in cases.items()
    ]
).replace("nan", "n/a").set_index("kind")

# %% [markdown]
# **Supported** means that the interval of the difference lies above 0 for every control (chance, untrained, input);
# **contradicted** that it lies below 0 for one of them. *Shuffled* is not a level to beat: it tells whether a head goes
# by the words or by their places.

# %%
rep, nei, sep = cases["repetition"], cases["neighbours"], cases["separators"]
name_of = {
    kind: f"layer {case['layer'] + 1} head {case['head'] + 1}" for kind, case in cases.items()
}
by_place = nei["shuffled"][0] - 0.5 > 0.5 * (nei["estimate"] - 0.5)
Markdown(
    f"**Repetition: {rep['verdict']}.** The best head ({name_of['repetition']}) recognises repeated words with "
    f"{rep['estimate']:.3f}. But the vectors that enter the model, before any head, reach {rep['levels']['input']:.3f}. "
    + (
        "Heads cannot be said to *detect* what they are handed: most of them lose some of it, and by the rule above none "
        "adds to it.\n\n"
        if rep["verdict"] != "supported"
        else "The head does better than what it was given.\n\n"
    )
    + f"**Neighbours: {nei['verdict']}.** The best head ({name_of['neighbours']}) reaches {nei['estimate']:.3f}, the input "
    f"{nei['levels']['input']:.3f}, the untrained model's best head {nei['levels']['untrained']:.3f}. On shuffled text it still "
    f"has {nei['shuffled'][0]:.3f}: it goes "
    + (
        "mostly by the tokens' places, whatever words stand there.\n\n"
        if by_place
        else "mostly by the words.\n\n"
    )
    + f"**Separators: {sep['verdict']}.** The best head ({name_of['separators']}) gives {sep['estimate']:.1%} of its attention to "
    f"separators, which are {sep['levels']['chance']:.1%} of the tokens."
)

# %% [markdown]
# ## The three cases, over all heads and on one passage
#
# The picture at the top, made here. The two opening sentences are from one of our `passages`, which no head was chosen on.

# %%
passages = load_corpus("passages")
passage = next(text for text in passages if text.source == "comets")
opening = passage.text[passage.sentences[0][0] : passage.sentences[1][1]]
short = head_outputs(model, opening, what=("z", "attention"))
short_body = short.is_body
words = [token for token, inside in zip(short.tokens, short_body.tolist()) if inside]


def draw_pairs(layer: int, head: int, metric: str = "cosine", ax=None, title=None):
    """Similarity map of one head (counted from 1) on the opening of the passage, high pairs outlined."""
    S = similarity(
        short.z[layer - 1, head - 1, short_body],
        metric,
        mean[layer - 1, head - 1] if metric == "centred" else None,
    )
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
    ("repetition", found["score"][:, 1, 0], "tells repeated words apart (AUROC)"),
    ("neighbours", found["score"][:, 1, 1], "tells neighbours apart (AUROC)"),
    ("separators", found["separator"], "share of attention to separators"),
)
colours = dict(
    zip(("chance", "untrained", "input", "shuffled"), ("0.35", *sns.color_palette("dark")[:3]))
)
for ax, (kind, scores, label) in zip(axes[0], panels):
    case = cases[kind]
    means = np.nanmean(scores[held_out], axis=0)  # (layer, head)
    jitter = np.linspace(-0.28, 0.28, model.n_heads)
    ax.scatter(layers[:, None] + jitter, means, s=16, color="0.45", linewidth=0)
    ax.scatter(
        case["layer"] + 1 + jitter[case["head"]], case["estimate"], s=60, color="black", zorder=3
    )
    levels = case["levels"] | ({"shuffled": case["shuffled"][0]} if "shuffled" in case else {})
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


def part_shares(part: np.ndarray) -> np.ndarray:
    """Share of each part in the summed similarity of the high pairs, averaged over texts: (part, layer)."""
    total = part[:, :5].sum(axis=(1, -1))  # (text, layer), summed over parts and heads
    return np.nanmean(part.sum(-1) / total[:, None], axis=0)


shares, shares_untrained = part_shares(found["part"]), part_shares(control["part"])
figure, axes = plt.subplots(1, 3, figsize=(15, 3.6), width_ratios=(1, 1, 1.6))
axes[0].plot(layers, found["separator"].mean((0, 2)), marker="o", label="separators")
axes[0].plot(layers, found["first"].mean((0, 2)), marker="o", label="other special tokens")
axes[0].axhline(
    found["separator share of keys"].mean(),
    linestyle="--",
    color="0.4",
    label="chance (separators)",
)
axes[0].set(
    title="Attention paid",
    xlabel="layer",
    ylabel="share of attention",
    ylim=(0, None),
    xticks=layers,
)
axes[0].legend(frameon=False, fontsize=8)
palette = sns.color_palette("colorblind")
for ax, values, title in (
    (axes[1], shares_untrained, "Similarity, untrained"),
    (axes[2], shares, "Similarity of high pairs"),
):
    up, down = np.zeros(model.n_layers), np.zeros(model.n_layers)
    for part, (name, colour) in enumerate(
        zip(PARTS.values(), (palette[3], palette[1], palette[8], palette[0], palette[7]))
    ):
        bottom = np.where(values[part] >= 0, up, down)
        ax.bar(layers, values[part], bottom=bottom, color=colour, label=name)
        up, down = up + values[part].clip(min=0), down + values[part].clip(max=0)
    ax.set(title=title, xlabel="layer", ylabel="share of S", xticks=layers)
axes[2].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
sns.despine()
figure.tight_layout()

# %%
top_layer = int(shares[0].argmax())
part_sep = found["part"][:, :, sep["layer"], sep["head"]]  # (text, part)
share_in_head = interval(part_sep[:, 0] / part_sep[:, :5].sum(1))
through_in_head = interval(part_sep[:, :3].sum(1) / part_sep[:, :5].sum(1))
first_attention, first_share = found["first"].mean((0, 2)), shares[5] - shares[0]
Markdown(
    f"Two tokens reading **the same separator** make up at most {shares[0].max():.1%} of the similarity of high pairs in any "
    f"layer (layer {top_layer + 1}). In the separator head itself ({name_of['separators']}) it is {share_in_head[0]:.1%} "
    f"[{share_in_head[1]:.1%}, {share_in_head[2]:.1%}]; but all that passes **through a separator at all**, on one side or both, "
    f"is {through_in_head[0]:.1%} [{through_in_head[1]:.1%}, {through_in_head[2]:.1%}] there: its high pairs are tokens that read "
    "separators, mostly different ones whose value vectors are alike.\n\n"
    f"Special tokens that separate nothing, such as the one at the start, get up to {first_attention.max():.0%} of the "
    f"attention (layer {int(first_attention.argmax()) + 1}) and still add at most {abs(first_share).max():.1%} of S through being "
    "read by both: attention to a token whose value vector is short leaves next to nothing in z."
)

# %% [markdown]
# ## How fragile is it: the same with each comparison
#
# Does the best head, and the verdict, depend on which of the three similarities is used? The controls are measured with
# the same similarity, except for the input, where it is the cosine.

# %%
sweep = pd.DataFrame(
    [
        {"kind": kind, "similarity": metric, **judge_pairs(kind, metric)}
        for kind in kinds
        for metric in METRICS
    ]
)
robustness = {
    kind: float((sweep[sweep.kind == kind].verdict == cases[kind]["verdict"]).mean())
    for kind in kinds
}
shown = sweep.assign(
    head=[f"layer {a + 1}, head {b + 1}" for a, b in zip(sweep.layer, sweep["head"])],
    score=[f"{a:.3f} [{b:.3f}, {c:.3f}]" for a, b, c in zip(sweep.estimate, sweep.low, sweep.high)],
    untrained=[f"{levels['untrained']:.3f}" for levels in sweep.levels],
    input=[f"{levels['input']:.3f}" for levels in sweep.levels],
)
shown[["kind", "similarity", "head", "score", "untrained", "input", "verdict"]].set_index(
    ["kind", "similarity"]
)

# %%
distance = {
    metric: np.nanmean(found["distance"][:, m], axis=(0, 2)) for m, metric in enumerate(METRICS)
}
Markdown(
    f"The verdict on repetition is the same in {robustness['repetition']:.0%} of the three, on neighbours in "
    f"{robustness['neighbours']:.0%}. How far apart the high pairs are depends on the comparison too (relative "
    "distance, 1 is chance), layer by layer: "
    + "; ".join(
        f"{metric} " + " ".join(f"{value:.2f}" for value in values)
        for metric, values in distance.items()
    )
    + "."
)

# %% [markdown]
# ## Move through the heads
#
# Three questions before you touch the sliders. Which heads show a band along the diagonal, and in which layers? Is there
# a head in which the two *Sun* are alike, and is it the one that scores best on repetition? Where does *dot* outline
# other pairs than *cosine*? (Without a kernel the sliders show nothing. The maps below are one of their positions.)

# %%
sliders = widgets.interact(
    draw_pairs,
    layer=widgets.IntSlider(nei["layer"] + 1, 1, model.n_layers, continuous_update=False),
    head=widgets.IntSlider(nei["head"] + 1, 1, model.n_heads, continuous_update=False),
    metric=list(METRICS),
    ax=widgets.fixed(None),
    title=widgets.fixed(None),
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
# - A score is a finding only against its controls. Repetition looks like the heads' best skill until you see the input.
# - Attention paid is not similarity made: what counts is the value vector that is read.
#
# **What this does not show.** That any head binds *words that belong together*: neighbours are near, and near is a
# simpler reason. How many heads have each role, with correction for having looked at all of them. And anything about
# BERT-base, which the paper studied: the model named at the top is smaller and was fine-tuned; with a model hub in reach,
# `make run NB=02 MODEL=bert-base-uncased` measures it.

# %% [markdown]
# ## Exercises
#
# **1.** In the neighbour head, how similar (cosine) are the two tokens *Sun* in the opening sentences? First guess, then put the number into `answer`.

# %%
answer = None

i, j = (place for place, word in enumerate(words) if word == "Sun")
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
        f"{nei['levels']['untrained']:.3f}. On shuffled text that head still has {nei['shuffled'][0]:.3f}: it goes "
        f"{'by place' if by_place else 'by the words'}. Repeated words are told apart with {rep['estimate']:.3f} by the best head "
        f"({name_of['repetition']}), but with {rep['levels']['input']:.3f} by the input alone: that heads *detect* repetitions is "
        f"{rep['verdict']}. Two tokens reading the same separator make up at most {shares[0].max():.1%} of the similarity of high pairs in any layer."
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
                "shuffled": [round(x, 4) for x in case["shuffled"]] if "shuffled" in case else None,
                "verdict": case["verdict"],
            }
            for kind, case in cases.items()
        },
        "robustness": robustness,
        "random_pair_cosine_by_layer": [round(float(x), 4) for x in alike],
        "random_pair_cosine_untrained": round(alike_untrained, 4),
        "ends_among_longest_tenth": {metric: round(value, 4) for metric, value in longest.items()},
        "relative_distance_by_layer": {
            m: [round(float(x), 4) for x in v] for m, v in distance.items()
        },
        "share_of_similarity_by_layer": {
            name: [round(float(x), 4) for x in values] for name, values in zip(PARTS, shares)
        },
        "same_separator_in_separator_head": [round(x, 4) for x in share_in_head],
        "through_separators_in_separator_head": [round(x, 4) for x in through_in_head],
    },
)

# %% [markdown]
# ## References
#
# Halevi et al. (2026), *Self-attention vector output similarities reveal how machines pay attention*, Physica A 686,
# 131363; [arXiv 2512.21956](https://arxiv.org/abs/2512.21956). Ethayarajh (2019), *How contextual are contextualized word
# representations?*; [arXiv 1909.00512](https://arxiv.org/abs/1909.00512). Kobayashi et al. (2020), *Attention is not
# only a weight*; [arXiv 2004.10102](https://arxiv.org/abs/2004.10102). Versions of all packages are in the results file
# of this notebook.
