# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # See in two minutes what one attention head compares
#
# A transformer reads a text with many **attention heads**. Each head gives every token a new vector, its **head output
# vector**. Two tokens whose vectors point the same way have been treated alike by that head. Comparing the vectors of
# all tokens of a text therefore shows what the head does, and this repository does that for every head of a model.
# The idea is from Halevi et al. (2026), *Self-attention vector output similarities reveal how machines pay attention*
# ([arXiv 2512.21956](https://arxiv.org/abs/2512.21956)).

# %%
from IPython.display import Markdown

from attnlib import load_results, summary

Markdown("**Published run.** " + summary(load_results("results/minilm/00_start_here.json")))

# %% [markdown]
# **You'll do:** load a model, read one text, draw one map. **You'll learn:** what the maps of the other notebooks show.
# **You need:** nothing but this environment; the model and the text are already in it. Run the cells from the top with
# Shift + Enter.

# %%
import time

import ipywidgets as widgets
import torch

from attnlib import (
    Corpus,
    head_outputs,
    layer_head_grid,
    load_corpus,
    load_model,
    same_sentence_lift,
    save_results,
    set_style,
    similarity,
    similarity_map,
    top_pairs,
    versions,
)

# %% tags=["parameters"]
MODEL = "minilm"  # minilm, mpnet, bert-base-uncased, a model hub id, or a folder
CORPUS = "lee"  # not read here: the text shown was written for this repository
N_TEXTS = 300  # likewise
MAX_TOKENS = 128  # tokens of the text that are read, special ones included
DEVICE = "auto"  # auto (cuda, then mps, then cpu), cuda, mps, cpu
DTYPE = "auto"  # auto (as stored), float32, bfloat16, float16
SEED = 0  # nothing random happens here
OUT = "../build"  # folder for the results

# %%
start = time.perf_counter()
set_style()
model = load_model(MODEL, device=DEVICE, dtype=DTYPE)
max_tokens = min(MAX_TOKENS, model.max_tokens)
settings = dict(MODEL=model.name, MAX_TOKENS=max_tokens, DEVICE=DEVICE, DTYPE=DTYPE, SEED=SEED)
print(
    f"{model.name}: {model.n_layers} layers x {model.n_heads} heads of {model.d_head} numbers, on {model.device}"
)
print(", ".join(f"{package} {version}" for package, version in versions().items()))

# %% [markdown]
# ## One text
#
# The text is one of 24 `passages` in this repository. The model cuts it into **tokens**: words, pieces of words, and
# punctuation. Most models also add **special tokens** at the ends.

# %%
passages = load_corpus("passages")
text = next(passage for passage in passages if passage.source == "two_banks")
out = head_outputs(model, text, max_tokens=max_tokens)
print(" ".join(out.tokens[:40]), "...")

# %% [markdown]
# ## One map
#
# `out.z` holds the head output vectors: one for each layer, head and token. For one head, compare every token with every
# other by the cosine of the angle between their vectors: 1 means the same direction, 0 a right angle.
#
# Which head? Not one picked by eye: take the one whose most similar pairs of tokens lie most often inside one sentence.
# The **lift** says how many times more often than pairs drawn at random do; 1 is chance.

# %%
body = out.is_body  # leave the special tokens out
high = 0.01  # the share of all pairs that counts as most similar
S = similarity(out.z[:, :, body], "cosine")  # (layer, head, token, token)
lift = same_sentence_lift(top_pairs(S, high), out.sentence[body])  # (layer, head)
layer, head = divmod(int(torch.nan_to_num(lift).argmax()), model.n_heads)
ax = layer_head_grid(lift, label="same-sentence lift (1 is chance)", centre=1, mark=(layer, head))
# %%
shown = slice(0, 40)  # the first tokens only, so that each label can be read
share = 0.02  # the strongest pairs in the part that is shown
tokens = [token for token, inside in zip(out.tokens, body.tolist()) if inside]


def draw(layer: int, head: int):
    """The similarity map of one head, counted from 1, with the strongest pairs outlined."""
    S_shown = S[layer - 1, head - 1, shown, shown]
    title = f"layer {layer}, head {head}: which tokens does it treat alike?"
    return similarity_map(
        S_shown,
        tokens[shown],
        pairs=top_pairs(S_shown, share),
        label="cosine similarity",
        limit=1,
        title=title,
    )


ax = draw(layer + 1, head + 1)

# %%
Markdown(
    f"**How to read it.** Each row and each column is a token; red means that the head gives the two tokens similar "
    f"vectors, blue that it gives them opposite ones. The outlined pairs are the most similar {share:.0%}. In this head (layer "
    f"{layer + 1}, head {head + 1}) the most similar {high:.0%} of the pairs of the whole text lie inside one sentence "
    f"{float(lift[layer, head]):.1f} times as often as pairs drawn at random."
)

# %% [markdown]
# ## Every other head
#
# Move the sliders (click one, then use the arrow keys). Before you do: will the first layer or the last one show the
# clearest blocks? Without a running kernel the sliders show nothing; the map above is the same picture, standing still.


# %%
def move(layer: int, head: int) -> None:
    draw(layer, head)


sliders = widgets.interact(
    move,
    layer=widgets.IntSlider(layer + 1, 1, model.n_layers, continuous_update=False),
    head=widgets.IntSlider(head + 1, 1, model.n_heads, continuous_update=False),
)
# %%
results_path = save_results(
    OUT,
    "00_start_here",
    model=model,
    corpus=Corpus(f"passages: {text.source}", (text,)),
    settings=settings,
    tokens=(int(body.sum()), out.n_cut),
    seconds=time.perf_counter() - start,
    main={
        "label": "Heads captured",
        "value": str(model.n_layers * model.n_heads),
        "interval": None,
        "verdict": "ready",
    },
    finding=(
        f"All {model.n_layers * model.n_heads} heads of the model were read on one passage. The head that keeps most to "
        f"single sentences, layer {layer + 1} head {head + 1}, does so {float(lift[layer, head]):.1f} times as often as "
        "chance."
    ),
    values={
        "layer": layer + 1,
        "head": head + 1,
        "same_sentence_lift": round(float(lift[layer, head]), 4),
    },
)

Markdown("**This run.** " + summary(load_results(results_path)))

# %% [markdown]
# ## The road from here
#
# | notebook | question |
# |---|---|
# | [01_capture_head_outputs](01_capture_head_outputs.ipynb) | What is a head output vector, where in the model is it, and is what we read exact? |
# | [02_compare_tokens](02_compare_tokens.ipynb) | What does comparing the vectors show, and how much of it was there before any head did something? |
#
# To use **your own model or texts**, change the parameters above, or run everything from a shell:
#
# ```
# make run MODEL=path/to/model CORPUS='path/to/*.txt'
# ```
#
# ## When something fails
#
# | what you see | what to do |
# |---|---|
# | `No module named 'attnlib'` | start Jupyter with `make lab`, which uses the environment that `make setup` makes |
# | a model *is not here* | the message lists the models that need no hub; a folder with a model works too |
# | a text *exceeds the tokens* that a model can take | the rest was cut: split the text, or set `MAX_TOKENS` to say so knowingly |
# | sliders do nothing | the page is shown without a kernel: use `make lab`; every slider has a still picture beside it |
# | a GPU runs out of memory | a smaller `MAX_TOKENS`, or `batch_tokens=` of `head_outputs` |
#
# **What this notebook does not show:** one map of one text is an example and proves nothing about the head. From
# notebook 02 on, every number is taken over a corpus and stands beside its controls.
