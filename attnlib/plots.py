"""Figures of heads: each function takes ``ax=None`` and returns the ``Axes``; none loads data or shows anything."""

import math
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor

MAX_LABELS = 64  # more token labels than this on one axis cannot be read


def set_style() -> None:
    """The look shared by all notebooks: opaque background, colours that survive colour-blindness and print."""
    sns.set_theme(style="ticks", palette="colorblind", font_scale=0.9)
    plt.rcParams |= {
        "figure.dpi": 110,
        "savefig.dpi": 150,
        "savefig.bbox": "tight",
        "figure.facecolor": "white",
        "svg.hashsalt": "attnlib",
    }


def head_map(
    A: Tensor,
    tokens: Sequence[str],
    *,
    queries: Sequence[str] | None = None,
    ax: Axes | None = None,
    title: str = "",
) -> Axes:
    """Attention weights of one head: a row for each token that reads, a column for each token that is read.

    Parameters
    ----------
    A : (query, key), each row sums to 1
    tokens : labels of the keys, and of the queries unless ``queries`` names them
    """
    queries = tokens if queries is None else queries
    ax = _heatmap(
        A,
        queries,
        tokens,
        ax,
        cmap="cividis",
        vmin=0,
        label="attention weight (each row sums to 1)",
        title=title,
    )
    ax.set_xlabel("token that is read" + ax.get_xlabel())
    ax.set_ylabel("token that reads" + ax.get_ylabel())
    return ax


def similarity_map(
    S: Tensor,
    tokens: Sequence[str],
    *,
    pairs: Tensor | None = None,
    label: str = "similarity",
    limit: float | None = None,
    ax: Axes | None = None,
    title: str = "",
) -> Axes:
    """Context similarity matrix of one head, colours centred at 0, the diagonal left out (it is not a pair).

    Parameters
    ----------
    S : (token, token)
    tokens : labels of both axes
    pairs : (pair, 2), outlined above the diagonal; such as the high-similarity pairs
    limit : the colour scale runs from -limit to limit; None for the largest |S| off the diagonal
    """
    S = S.float().cpu().numpy().copy()
    np.fill_diagonal(S, np.nan)
    if limit is None:
        limit = float(np.nanmax(np.abs(S))) if len(S) > 1 else 1.0
    ax = _heatmap(
        S, tokens, tokens, ax, cmap="vlag", vmin=-limit, vmax=limit, label=label, title=title
    )
    ax.set_facecolor("0.85")
    for i, j in [] if pairs is None else pairs.tolist():
        ax.add_patch(Rectangle((j, i), 1, 1, fill=False, edgecolor="black", linewidth=0.9))
    return ax


def layer_head_grid(
    values: Tensor | np.ndarray,
    *,
    label: str,
    centre: float | None = None,
    limits: tuple[float, float] | None = None,
    mark: tuple[int, int] | None = None,
    ax: Axes | None = None,
    title: str = "",
) -> Axes:
    """One number for every head: layers down, heads across, both counted from 1.

    Parameters
    ----------
    values : (layer, head); NaN is left grey: the measure does not exist there
    label : what the number is, with its unit
    centre : the chance level, if there is one: colours diverge from it
    limits : lowest and highest colour, to give two grids the same scale; None for those of the values
    mark : (layer, head) counted from 0, outlined
    """
    values = np.asarray(values.float().cpu() if isinstance(values, Tensor) else values, dtype=float)
    n_layers, n_heads = values.shape
    lowest, highest = limits or (None, None)
    if ax is None:
        _, ax = plt.subplots(figsize=(1.6 + 0.42 * n_heads, 1.2 + 0.36 * n_layers))
    sns.heatmap(
        values,
        ax=ax,
        square=True,
        linewidths=0.5,
        xticklabels=[str(head + 1) for head in range(n_heads)],
        yticklabels=[str(layer + 1) for layer in range(n_layers)],
        cmap="viridis" if centre is None else "vlag",
        center=centre,  # the neutral colour; both sides keep the same scale
        vmin=lowest,
        vmax=highest,
        cbar_kws={"label": label, "shrink": 0.8},
    )
    ax.set(xlabel="head", ylabel="layer", title=title, facecolor="0.85")
    ax.tick_params(rotation=0, length=0)
    if mark is not None:
        ax.add_patch(
            Rectangle(
                (mark[1], mark[0]),
                1,
                1,
                fill=False,
                edgecolor="black",
                linewidth=2.5,
                clip_on=False,
            )
        )
    return ax


def _heatmap(
    values,
    rows: Sequence[str],
    columns: Sequence[str],
    ax: Axes | None,
    *,
    label: str,
    title: str,
    **colours,
):
    """Tokens by tokens, with as many labels as can be read; how many were left out stands on the axis."""
    if isinstance(values, Tensor):
        values = values.float().cpu().numpy()
    if tuple(values.shape) != (len(rows), len(columns)):
        raise ValueError(
            f"{len(rows)} and {len(columns)} token labels for a matrix of {values.shape[0]} x {values.shape[1]}: label "
            "the tokens that are in it, for instance only those of out.is_body."
        )
    if ax is None:
        side = min(11.0, max(4.0, 2.2 + 0.17 * len(columns)))
        _, ax = plt.subplots(figsize=(side + 0.8, side * max(0.4, len(rows) / len(columns))))
    sns.heatmap(
        values,
        ax=ax,
        square=True,
        xticklabels=False,
        yticklabels=False,
        cbar_kws={"label": label, "shrink": 0.7},
        **colours,
    )
    for axis, labels in ((ax.xaxis, columns), (ax.yaxis, rows)):
        step = math.ceil(len(labels) / MAX_LABELS)
        shown = range(0, len(labels), step)
        size = float(np.clip(420 / len(labels), 5.5, 9))
        # a dollar sign would start mathematical notation
        axis.set_ticks(
            [position + 0.5 for position in shown],
            [labels[position].replace("$", r"\$") for position in shown],
        )
        axis.set_tick_params(
            labelsize=size, labelrotation=90 if axis is ax.xaxis else 0, length=0, pad=1
        )
        axis.set_label_text(
            ""
            if step == 1
            else f" (every {step}{ {2: 'nd', 3: 'rd'}.get(step, 'th') } token is labelled)"
        )
    ax.set_title(title)
    return ax
