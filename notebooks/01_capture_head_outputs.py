# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What a head writes can be read exactly, without touching the model

# %%
from IPython.display import Markdown

from attnlib import load_results, summary

Markdown(
    "**Published run.** " + summary(load_results("results/minilm/01_capture_head_outputs.json"))
)

# %% [markdown]
# ![For one token, a bar for the attention it pays to each token of the sentence, the value vectors of those tokens as a
# colour strip, and their weighted sum as a last strip: the head output vector.](figures/01_capture_head_outputs.png)
#
# *One token of one passage in one head. Each token to the left has a **value vector** (a row of colours). The head
# pays the token some **attention** (the bar). The bottom row is the sum of the rows above, each times its bar: the
# **head output vector** z.*

# %% [markdown]
# **You'll do:** capture z from a real model, recompute it from attention weights and value vectors, and compare.
# **You'll learn:** where in a model head outputs are, what they cost to read, and how far the numbers can be trusted.
# **You need:** notebook 00, and matrix products.

# %%
import time

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch

from attnlib import (
    capture,
    head_map,
    head_outputs,
    iter_head_outputs,
    layer_head_grid,
    load_corpus,
    load_model,
    save_figure,
    save_results,
    set_style,
)

# %% tags=["parameters"]
MODEL = "minilm"  # minilm, mpnet, bert-base-uncased, a model hub id, or a folder
CORPUS = "lee"  # passages, lee, wikipedia, a file, a folder, or a glob
N_TEXTS = 300  # texts: the first so many of the corpus
MAX_TOKENS = 256  # tokens of each text that are read, special ones included
DEVICE = "auto"  # auto (cuda, then mps, then cpu), cuda, mps, cpu
DTYPE = "auto"  # auto (as stored), float32, bfloat16, float16
SEED = 0  # of the untrained model
OUT = "../build"  # folder for the results

# %%
start = time.perf_counter()
set_style()
model = load_model(MODEL, device=DEVICE, dtype=DTYPE)
untrained = load_model(MODEL, device=DEVICE, dtype=DTYPE, untrained=True, seed=SEED)
max_tokens = min(MAX_TOKENS, model.max_tokens)
settings = dict(
    MODEL=model.name, CORPUS=CORPUS, N_TEXTS=N_TEXTS, MAX_TOKENS=max_tokens,
    DEVICE=DEVICE, DTYPE=DTYPE, SEED=SEED,
)  # fmt: skip
print(f"{model.name}: {model.n_layers} layers x {model.n_heads} heads of {model.d_head} numbers")
print(f"on {model.device}, in {model.net.dtype}; {model.net.config._attn_implementation} attention")

# %% [markdown]
# ## What is a head output vector?
#
# In each head, each token asks a **query** of the **key** of each token that it may read. The answers, scaled to sum to 1, are the
# **attention weights**. The token then receives the sum of all **value vectors**, weighted by them:
#
# $$z_i = \sum_j A_{ij}\, v_j \qquad\text{or}\qquad z = A V$$
#
# - $A$, attention weights, *query × key*: each row is positive and sums to 1.
# - $V$, value vectors, *key × d_head*.
# - $z$, **head output vectors**, *query × d_head*, in the same units as $V$.
#
# The **output projection** then mixes the vectors of all heads of a layer into one. We read z just before it, where
# the heads are still apart. The paper ([arXiv 2512.21956](https://arxiv.org/abs/2512.21956)) compares the output
# vectors of heads; whether before or after the projection, the summary we worked from does not say. *Before* is our
# choice.

# %% [markdown]
# ## By hand, on three tokens
#
# Token 1 reads only itself, token 2 reads tokens 1 and 2 equally, token 3 reads only token 2.

# %%
A_hand = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])  # (query, key)
V_hand = torch.tensor([[2.0, 0.0], [0.0, 4.0], [9.0, 9.0]])  # (key, d_head)
z_hand = A_hand @ V_hand
assert z_hand.tolist() == [
    [2.0, 0.0],
    [1.0, 2.0],
    [0.0, 4.0],
]  # nobody reads token 3: its 9s are gone
z_hand

# %% [markdown]
# ## Where it lives in the model
#
# `capture` puts a hook on the output projection of each layer and takes what arrives there. The hook only looks. When
# the `with` block ends, it is gone.

# %%
passages = load_corpus("passages")
passage = next(text for text in passages if text.source == "two_banks")
inputs = model.tokenizer(passage.text, return_tensors="pt", truncation=True, max_length=max_tokens)

with torch.inference_mode():
    before = model.net(**inputs.to(model.device)).last_hidden_state
    with capture(model, what=("z", "v")) as captured:
        during = model.net(**inputs).last_hidden_state

print("z:", tuple(captured.z.shape), "batch, layer, head, token, d_head")
print("read from:", model.family.output.format(i="0 ... " + str(model.n_layers - 1)))
print("the model's own output is unchanged:", torch.equal(before, during))

# %% [markdown]
# From text to labelled vectors in one call: `head_outputs` also cuts the token labels from the source text, says which
# tokens are special, and which sentence each is in.

# %%
out = head_outputs(model, passage, what=("z", "attention", "v"), max_tokens=max_tokens)
pd.DataFrame(
    {
        "token": out.tokens,
        "characters": out.offsets,
        "in the text": out.is_body.tolist(),
        "sentence": out.sentence.tolist(),
        "ends a sentence": out.is_sentence_end.tolist(),
    }
).head(16)

# %% [markdown]
# ## What it costs in memory
#
# Three things could be kept for each text: z itself, the attention weights A, and the similarity matrix S of notebook
# 02. z grows with the number of tokens, A and S with its square. The curves are arithmetic: numbers × 4 bytes.

# %%
n = np.array([32, 64, 128, 256, 512, 1024])  # tokens
heads = model.n_layers * model.n_heads
mib = {"z": heads * n * model.d_head * 4 / 2**20, "A or S": heads * n**2 * 4 / 2**20}
_, ax = plt.subplots(figsize=(5.5, 3.2))
for name, values in mib.items():
    ax.loglog(n, values, marker="o", base=2)
    ax.annotate(name, (n[-1], values[-1]), xytext=(8, 0), textcoords="offset points", va="center")
ax.set(
    xlabel="tokens in the text",
    ylabel="MiB for one text, all heads",
    title="z is cheap to keep, A and S are not",
)
ax.set_xticks(n, [str(count) for count in n])
ax.set_yticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
sns.despine()

# %%
measured = out.z.numel() * out.z.element_size() / 2**20
Markdown(
    f"Measured on this passage ({len(out)} tokens): z takes {measured:.1f} MiB. At {max_tokens} tokens a text would "
    f"take {heads * max_tokens * model.d_head * 4 / 2**20:.1f} MiB for z and "
    f"{heads * max_tokens**2 * 4 / 2**20:.0f} MiB for S, so a corpus is never kept whole: it streams through, batch "
    "by batch."
)

# %% [markdown]
# ## Before trusting it: is A V really z?
#
# **What we expect.** z, A and V are read at three different places of the model. If the hooks are on the right modules
# and the tokens are cut into heads in the right order, A V equals z up to rounding: about 0.0000001 in 32-bit numbers.
# One head or layer out of order would give differences as large as z itself. An untrained model must pass too, since
# the identity has nothing to do with what was learnt.

# %%
corpus = load_corpus(CORPUS, limit=N_TEXTS)


def largest_difference(model, label: str) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    """Largest |A V - z| over all texts and tokens, and mean length of z, both (layer, head); tokens read and cut."""
    worst = torch.zeros(model.n_layers, model.n_heads)
    length, n_tokens, n_cut = torch.zeros_like(worst), 0, 0
    for _, out in iter_head_outputs(
        model, corpus, what=("z", "attention", "v"), max_tokens=max_tokens, progress=label
    ):
        # as the model multiplies: in its own number format
        difference = (out.attention @ out.v - out.z).abs().float()  # (layer, head, token, d_head)
        worst = torch.maximum(worst, difference.amax((-1, -2)).cpu())
        z_body = out.z[:, :, out.is_body].float()
        length += z_body.norm(dim=-1).sum(-1).cpu()
        n_tokens, n_cut = n_tokens + z_body.shape[2], n_cut + out.n_cut
    return worst.numpy(), (length / n_tokens).numpy(), (n_tokens, n_cut)


worst, length, tokens = largest_difference(model, "trained")
worst_untrained, length_untrained, _ = largest_difference(untrained, "untrained")
tolerance = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-1}[model.net.dtype]
holds = max(worst.max(), worst_untrained.max()) <= tolerance
pd.DataFrame(
    {
        "largest |A V - z|": [worst.max(), worst_untrained.max()],
        "mean length of z": [length.mean(), length_untrained.mean()],
    },
    index=["trained", "untrained"],
)

# %%
Markdown(
    f"Over {len(corpus)} texts, {heads} heads and {tokens[0]:,} tokens ({tokens[1]:,} more were cut off), the largest difference is {worst.max():.1e} in the "
    f"trained model and {worst_untrained.max():.1e} in the untrained one; the vectors themselves have a mean length "
    f"of {length.mean():.2f} and {length_untrained.mean():.2f}. "
    + ("The identity holds." if holds else f"**The identity fails: more than {tolerance:g}.**")
    + (
        " A difference of exactly 0 means that the model itself does this same product."
        if worst.max() == 0
        else ""
    )
)

# %% [markdown]
# ## How much does each head write?
#
# The mean length of z says how much a head writes before the output projection. If training gives heads different
# jobs, the lengths should differ more between the heads of the trained model than between those of the control. Both
# grids have the same colours.

# %%
limits = (min(length.min(), length_untrained.min()), max(length.max(), length_untrained.max()))
figure, axes = plt.subplots(1, 2, figsize=(12, 0.9 + 0.33 * model.n_layers))
for ax, values, name in zip(axes, (length, length_untrained), ("trained", "untrained control")):
    layer_head_grid(values, label="mean length of z", limits=limits, ax=ax, title=name)
figure.tight_layout()

# %%
spread, spread_untrained = (
    length.std() / length.mean(),
    length_untrained.std() / length_untrained.mean(),
)
Markdown(
    f"The lengths of the {heads} heads spread by {spread:.0%} of their mean in the trained model, by "
    f"{spread_untrained:.0%} in the untrained one."
)

# %% [markdown]
# ## How fragile is it: does the fast kernel give the same z?
#
# Models usually run with a **fused** attention kernel (`sdpa`) that never forms A. Reading A needs the plain, slower
# code (`eager`), and `capture` switches to it while you ask for attention, then back. Do both give the same z?

# %%
fused = {}
for name, each in (("trained", model), ("untrained", untrained)):
    if each.net.config._attn_implementation == "eager":
        continue  # this family has no fused kernel
    outs = head_outputs(each, passages.texts, max_tokens=max_tokens)
    outs_eager = head_outputs(each, passages.texts, what=("z", "attention"), max_tokens=max_tokens)
    fused[name] = [
        max(float((a.z[i].float() - b.z[i].float()).abs().max()) for a, b in zip(outs, outs_eager))
        for i in range(model.n_layers)
    ]

if fused:
    _, ax = plt.subplots(figsize=(6, 2.8))
    for name, values in fused.items():
        ax.plot(range(1, model.n_layers + 1), values, marker="o", label=name)
    ax.set(yscale="log", xlabel="layer", ylabel="largest |z fused - z eager|")
    ax.set_title("How far the fused kernel is from the plain one")
    ax.set_xticks(range(1, model.n_layers + 1))
    ax.legend(frameon=False)
    sns.despine()

# %%
fused_worst = max(map(max, fused.values())) if fused else None
Markdown(
    f"The largest difference over the {len(passages)} passages is {fused['trained'][-1]:.1e} in the last layer, "
    f"{fused['trained'][0]:.1e} in the first: rounding in one layer is read by the next. The mean length of z is "
    f"{length.mean():.2f}."
    if fused
    else "n/a: this model has no fused kernel, z is always the eager one."
)

# %% [markdown]
# ## One head, in pieces
#
# The picture at the top, made here: the last word of a sentence, what it reads, and what it gets. Of the heads in which
# that word reads the text more than special tokens, it is the one in which it reads about four tokens (the exponential of
# the entropy of its weights is nearest to 4), so that the sum has a few visible terms.

# %%
first_sentence = passage.text[slice(*passage.sentences[0])]
short = head_outputs(model, first_sentence, what=("z", "attention", "v"))
last = int(short.is_body.nonzero()[-2])  # the last word; the last token is the full stop
weights = short.attention[:, :, last].float()  # (layer, head, key)
n_read = (-(weights * weights.clamp_min(1e-12).log()).sum(-1)).exp()  # (layer, head)
# not one that mostly reads special tokens
n_read[weights[:, :, short.is_body].sum(-1) < 0.5] = torch.inf
layer, head = divmod(int((n_read - 4).abs().argmin()), model.n_heads)


def draw(layer: int, head: int):
    """What the last word of the sentence reads in one head (counted from 1), and what it gets."""
    weights = short.attention[layer - 1, head - 1, last].float().cpu()  # (key,)
    V = short.v[layer - 1, head - 1].float().cpu()  # (key, d_head)
    z = short.z[layer - 1, head - 1, last].float().cpu()  # (d_head,)
    size = float(V.abs().quantile(0.99))
    figure, (bars, strip) = plt.subplots(
        1, 2, figsize=(9, 0.8 + 0.2 * len(short)), sharey=True, width_ratios=(1, 2.4)
    )
    rows = [*short.tokens, "sum: z"]
    bars.barh(np.arange(len(short)) + 0.5, weights, color=sns.color_palette("colorblind")[0])
    bars.set(
        xlabel="attention weight A",
        title=f"what “{short.tokens[last]}” reads",
        ylim=(len(rows) + 0.5, 0),
    )
    stacked = torch.cat([V, torch.full((1, V.shape[1]), torch.nan), z[None]])
    places = [i + 0.5 for i in range(len(short))] + [len(short) + 1.5]
    sns.heatmap(
        stacked, ax=strip, cmap="vlag", vmin=-size, vmax=size, xticklabels=False,
        cbar_kws={"label": "value", "shrink": 0.7},
    )  # fmt: skip
    strip.set(
        xlabel="d_head", title=f"value vectors, and their weighted sum (layer {layer}, head {head})"
    )
    bars.set_yticks(places, rows, fontsize=8)
    bars.set_ylim(len(short) + 2, 0)
    sns.despine(ax=bars)
    figure.tight_layout()
    return figure


figure = draw(layer + 1, head + 1)
figure_path = save_figure(figure, OUT, model, "01_capture_head_outputs")
# %% [markdown]
# ## Move through the heads
#
# Three questions before you touch the sliders: Which heads read a single token, so that z is simply one of the rows?
# Which read everything alike, so that z is their mean? Do the heads of the last layer read more evenly than those of
# the first? (Without a kernel the sliders show nothing. The picture above is one of their positions.)


# %%
def move(layer: int, head: int) -> None:
    draw(layer, head)
    plt.show()


sliders = widgets.interact(
    move,
    layer=widgets.IntSlider(layer + 1, 1, model.n_layers, continuous_update=False),
    head=widgets.IntSlider(head + 1, 1, model.n_heads, continuous_update=False),
)
# %%
ax = head_map(
    short.attention[layer, head],
    short.tokens,
    title=f"All rows of A at once: layer {layer + 1}, head {head + 1}",
)

# %% [markdown]
# ## Takeaways
#
# - z is read where the heads of a layer are still apart: at the input of the output projection.
# - A V has to give the same numbers: if it did not, the hooks, the order of the heads or the tokens would be wrong.
# - z is small enough to keep for a text; A and S are not small enough to keep for a corpus.
#
# **What this does not show.** That z is *meaningful*: notebook 02 starts on that. That a head matters for the model's
# output: the projection can shrink or cancel what a head writes. And the identity is shown for the model named at the
# top; `make run NB=01 MODEL=...` checks another one.

# %% [markdown]
# ## Exercises
#
# **1.** What is the largest share of attention that any head in this sentence gives to special tokens, averaged over
# the tokens of the text? Put a number between 0 and 1 into `answer`.

# %%
answer = None

to_special = short.attention[:, :, short.is_body][..., ~short.is_body].float().sum(-1).mean(-1)
if answer is None:
    print("not yet")
else:
    right = float(to_special.max())
    print("right" if abs(answer - right) < 0.005 else "no: mind which axis is the query")

# %% [markdown]
# <details><summary>Solution</summary>
#
# ```python
# A = short.attention[:, :, short.is_body]        # rows: only the tokens of the text read
# answer = float(A[..., ~short.is_body].sum(-1).mean(-1).max())  # columns: only special tokens are read
# ```
# </details>
#
# **2.** Scale all value vectors of a head by 2. What happens to A, to z, and to the scalar products between z vectors?
#
# <details><summary>Solution</summary>
#
# A stays (it comes from queries and keys only), z doubles, scalar products grow fourfold. Cosines stay.
# </details>

# %%
results_path = save_results(
    OUT,
    "01_capture_head_outputs",
    model=model,
    corpus=corpus,
    settings=settings,
    tokens=tokens,
    seconds=time.perf_counter() - start,
    main={
        "label": "Largest difference between A V and z",
        "value": f"{worst.max():.1e}",
        "interval": None,
        "verdict": "holds" if holds else "fails",
    },
    finding=(
        f"Attention weights times value vectors give each head's output vectors: over {len(corpus)} texts and "
        f"{heads} heads the largest difference is {worst.max():.1e}, and {worst_untrained.max():.1e} in the same "
        "architecture with untrained weights. "
        + (f"Fused and eager attention agree to {fused_worst:.1e}. " if fused else "")
        + (
            "Reading changes nothing in the model's own output."
            if torch.equal(before, during)
            else "Reading changes the model's own output, which it must not."
        )
    ),
    values={
        "largest_difference": float(worst.max()),
        "largest_difference_untrained": float(worst_untrained.max()),
        "tolerance": tolerance,
        "fused_against_eager": fused_worst,
        "output_unchanged": bool(torch.equal(before, during)),
        "mean_length_of_z": [[round(float(x), 4) for x in row] for row in length],
        "spread_of_length": round(float(spread), 4),
        "spread_of_length_untrained": round(float(spread_untrained), 4),
    },
)

Markdown("**This run.** " + summary(load_results(results_path)))

# %% [markdown]
# ## References
#
# Halevi, Tzach, Gross, Rosner, Kanter (2026), *Self-attention vector output similarities reveal how machines pay
# attention*, Physica A 686, 131363; [arXiv 2512.21956](https://arxiv.org/abs/2512.21956). Vaswani et al. (2017),
# *Attention is all you need*; [arXiv 1706.03762](https://arxiv.org/abs/1706.03762). Versions of all packages are in the
# results file of this notebook.
