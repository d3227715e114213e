# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Which of the paper's claims hold, and for which model

# %%
from IPython.display import Markdown

from attnlib import load_results, summary

Markdown("**Published run.** " + summary(load_results("results/minilm/12_read_the_scorecard.json")))

# %% [markdown]
# ![A table of claims by models, each cell coloured by its verdict and showing the estimate with its
# interval.](figures/12_read_the_scorecard.png)
#
# *One row for each claim, one column for each model: the estimate with its 95 % interval, the verdict, and the share of
# settings that give the same verdict. Blue: supported. Orange: contradicted. Grey: undecided. White: not run.*

# %% [markdown]
# **You'll do:** read the verdicts of notebooks 03 to 06 side by side. **You'll learn:** which claims hold, how much they hang
# on the settings, and what is still open. **You need:** nothing; each row names the notebook that explains it.
#
# Every cell is computed from the results files that the notebooks write, with their model, corpus and settings. Nothing here
# is typed by hand, so a claim that fails stands as plainly as one that holds.

# %%
import time
from pathlib import Path

import ipywidgets as widgets
import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns

from attnlib import (
    judge,
    load_corpus,
    load_model,
    save_figure,
    save_results,
    scorecard,
    set_style,
    survey,
)
from attnlib.inference import CLAIMS

# %% tags=["parameters"]
MODEL = "minilm"  # minilm, mpnet, bert-base-uncased, a model hub id, or a folder
CORPUS = "lee"  # passages, lee, wikipedia, a file, a folder, or a glob
N_TEXTS = 300  # texts: the first so many of the corpus
MAX_TOKENS = 256  # tokens of each text that are read, special ones included
DEVICE = "auto"  # auto (cuda, then mps, then cpu), cuda, mps, cpu
DTYPE = "auto"  # auto (as stored), float32, bfloat16, float16
SEED = 0  # of the untrained model, the shuffling and the bootstrap
OUT = "../build"  # folder for the results

# %%
start = time.perf_counter()
set_style()
model = load_model(MODEL, device=DEVICE, dtype=DTYPE)
corpus = load_corpus(CORPUS, limit=N_TEXTS)
max_tokens = min(MAX_TOKENS, model.max_tokens)
settings = dict(
    MODEL=model.name, CORPUS=CORPUS, N_TEXTS=N_TEXTS, MAX_TOKENS=max_tokens, DEVICE=DEVICE,
    DTYPE=DTYPE, SEED=SEED,
)  # fmt: skip

# %% [markdown]
# ## How a verdict comes about
#
# | verdict | when |
# |---|---|
# | supported | the interval of the difference to **every** level lies on the claimed side |
# | contradicted | it lies on the other side for at least one level |
# | undecided | neither |
# | n/a | the measure does not exist for this model |
#
# Levels are chance, and controls such as the same architecture untrained, or the text shuffled. Intervals come from drawing
# whole texts again, 2,000 times (bootstrap), and those of all levels of a claim hold together with 95 %. A claim that *some* heads do a thing needs at least one head that passes a test
# corrected for all heads on one half of the texts and again on the other half. **Robustness** is the share of settings
# (similarity, share of high pairs, definition of a separator) with the same verdict.
#
# ## By hand
#
# A change of −0.3 with the interval from −0.5 to −0.1 supports a claim that it is below 0; an interval from −0.5 to 0.1 decides
# nothing; and one from 0.1 to 0.5 contradicts it.


# %%
def below(low: float, high: float) -> str:
    """The verdict on the claim that something is below 0."""
    return "supported" if high < 0 else "contradicted" if low > 0 else "undecided"


assert [below(-0.5, -0.1), below(-0.5, 0.1), below(0.1, 0.5)] == [
    "supported",
    "undecided",
    "contradicted",
]

# %% [markdown]
# ## This run
#
# The verdicts on the model and corpus named in the parameters, made here from the survey that the notebooks share.

# %%
data = survey(
    model, corpus, max_tokens=max_tokens, controls=("untrained", "shuffled"), seed=SEED,
    out=Path(OUT) / model.name,
).load()  # fmt: skip
here = {claim: judge(claim, data, seed=SEED) for claim in CLAIMS}
print(f"{data.tokens_read:,} tokens read, {data.tokens_cut:,} cut off; {data.sizes['text']} texts")

# %% [markdown]
# ## The scorecard
#
# The rows of this run replace the stored ones of the same model.

# %%
verdicts = {claim: verdict.as_dict() for claim, verdict in here.items()}
tokens = (data.tokens_read, data.tokens_cut)
n_supported = sum(verdict.verdict == "supported" for verdict in here.values())
shorter = {"S1": "final layers read separators", "S2": "heads detect repetitions", "S3": "heads bind to context",
           "S4": "long range becomes short", "S5": "one sentence is preferred", "S6": "own anchor token"}  # fmt: skip
by_verdict = {
    kind: [claim for claim, verdict in here.items() if verdict.verdict == kind]
    for kind in ("supported", "contradicted", "undecided", "n/a")
}
results_path = save_results(
    OUT,
    "12_read_the_scorecard",
    model=model,
    corpus=corpus,
    settings=settings,
    tokens=tokens,
    seconds=time.perf_counter() - start,
    main={
        "label": f"Of {len(here)} claims, supported are",
        "value": n_supported,
        "interval": None,
        "verdict": "counted",
    },
    finding=" ".join(
        f"**{kind.capitalize()}**: {'; '.join(f'{c} {shorter[c]}' for c in claims)}."
        for kind, claims in by_verdict.items()
        if claims
    ),
    values={"verdicts": verdicts},
)
card = scorecard([*sorted(Path("results").glob("*/*.json")), results_path])
COLOURS = dict(
    zip(("supported", "contradicted", "undecided"), [*sns.color_palette("pastel")[:2], (0.88,) * 3])
)


def draw_card(card: pd.DataFrame, ax) -> None:
    """Claims down, models across: colour, estimate, verdict."""
    models, claims = list(card.model.unique()), list(card.claim.unique())
    for _, row in card.iterrows():
        x, y = models.index(row.model), claims.index(row.claim)
        ax.add_patch(
            plt.Rectangle(
                (x, y),
                1,
                1,
                facecolor=COLOURS.get(row.verdict, "white"),
                edgecolor="white",
                linewidth=3,
            )
        )
        text = (
            "not run"
            if row.verdict == "not run"
            else f"{row.estimate}\n{row.verdict}, robustness {row.robustness}"
        )
        ax.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=10)
    labels = [f"{c}  {card[card.claim == c].statement.iloc[0]}" for c in claims]
    ax.set(xlim=(0, len(models)), ylim=(len(claims), 0))
    ax.set_yticks([i + 0.5 for i in range(len(claims))], labels)
    ax.set_xticks([i + 0.5 for i in range(len(models))], models, weight="bold")
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    sns.despine(ax=ax, left=True, bottom=True)


figure, ax = plt.subplots(figsize=(5.2 + 2.6 * card.model.nunique(), 4.4))
draw_card(card, ax)
figure.tight_layout()
figure_path = save_figure(figure, OUT, model, "12_read_the_scorecard")

# %% [markdown]
# Robustness is the share of settings with the same verdict: a claim that is supported with a low one holds for one way of
# looking only. *Not run* is a cell that nobody has filled yet; the table below says with which command you can. Both
# packaged models are fine-tuned for sentence embeddings, which the paper's BERT-base is not.
#
# ## In full: what each estimate is held against

# %%
pd.set_option("display.max_colwidth", None)
columns = [
    "estimate",
    "levels",
    "untrained",
    "shuffled",
    "heads",
    "texts",
    "verdict",
    "robustness",
    "but",
]
card[card.verdict != "not run"].set_index(["claim", "measured by", "model"])[columns]

# %%
missing = card[card.verdict == "not run"]
Markdown(
    "\n".join(
        f"- `{name}`, not run: {', '.join(rows.claim)}. To fill {'them' if len(rows) > 1 else 'it'} where the model can be had: "
        + ", ".join(dict.fromkeys(rows.but))
        + "."
        for name, rows in missing.groupby("model", sort=False)
    )
    or "Every cell is filled."
)

# %% [markdown]
# *Untrained* and *shuffled* hold the same estimate in the two controls. *Heads* counts those that pass, where the claim is
# about some heads. *But* names levels that the verdict does not need and that the estimate does not exceed: read a
# supported claim together with it.

# %%
lines = [
    f"- **{claim}, {verdict.verdict}.** {verdict.statement}. {verdict.estimate_label[0].upper()}{verdict.estimate_label[1:]}: "
    + (
        f"{verdict.estimate:.3g} [{verdict.low:.3g}, {verdict.high:.3g}]"
        if verdict.verdict != "n/a"
        else "n/a"
    )
    + f"; the same verdict in {verdict.robustness:.0%} of {len(verdict.verdicts)} settings; {verdict.n_texts} texts. "
    + (f"But it is not beyond: {', '.join(verdict.caveats)}. " if verdict.caveats else "")
    + f"Explained in `{CLAIMS[claim].notebook}`."
    for claim, verdict in here.items()
]
Markdown(f"### {model.name}, in words\n\n" + "\n".join(lines))

# %% [markdown]
# ## How fragile is it: every setting of every claim

# %%
sweep = pd.DataFrame(
    [
        {"claim": claim, "setting": setting, "verdict": verdict}
        for claim, found in here.items()
        for setting, verdict in found.verdicts.items()
    ]
)
pd.crosstab(sweep.claim, sweep.verdict)

# %% [markdown]
# ## Claims that wait
#
# *S7: final-layer separator attention segments text. S8: heads with niche roles can be pruned. S9: anchor neighbourhoods are
# useful features. S10: early layers can be frozen in fine-tuning.* No notebook measures them yet.
#
# ## Ask for one claim
#
# Three questions before you choose. Which claim hangs most on the setting? For which does the untrained model already reach
# the estimate? Where do the two models disagree?


# %%
def ask(claim: str, model_name: str) -> None:
    row = card[(card.claim == claim) & (card.model == model_name)].iloc[0]
    print("\n".join(f"{name}: {value}" for name, value in row.items()))


menus = widgets.interact(
    ask,
    claim=list(CLAIMS),
    model_name=widgets.Dropdown(options=list(card.model.unique()), description="model"),
)

# %%
card[card.model == model.name].set_index("claim")[
    ["statement", "estimate", "verdict", "robustness"]
]

# %% [markdown]
# ## Takeaways
#
# - A verdict belongs to a model, a corpus and a setting. Read it with its robustness and its controls.
# - *Contradicted* here means for this model and these texts. The paper studied another model.
#
# **What this does not show.** Whether the paper's own numbers can be had again: its full text, corpus and settings were not
# at hand, and BERT-base needs a model hub: `make run MODEL=bert-base-uncased`.
#
# ## Exercises
#
# **1.** Which claims would be *supported* if the untrained model were no level? Look at the column *levels*.
#
# <details><summary>Solution</summary>
#
# Take a claim that is contradicted, and strike the level *untrained* out: if the estimate lies on the claimed side of all the
# others, the verdict would change. `here["S6"].levels` has both sides of each comparison with their interval.
# </details>

# %%
Markdown("**This run.** " + summary(load_results(results_path)))

# %% [markdown]
# ## References
#
# Halevi et al. (2026), *Self-attention vector output similarities reveal how machines pay attention*, Physica A 686,
# 131363; [arXiv 2512.21956](https://arxiv.org/abs/2512.21956). Versions of all packages are in the results file of each
# notebook.
