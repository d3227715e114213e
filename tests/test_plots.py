"""Figures: what is drawn is what was given, labels are readable, and none are dropped without a word."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from attnlib import head_map, layer_head_grid, set_style, similarity_map


@pytest.fixture(autouse=True)
def closed_figures():
    set_style()
    yield
    plt.close("all")


def drawn(ax) -> np.ndarray:
    """The numbers behind the colours, NaN where none is drawn."""
    mesh = ax.collections[0]
    return np.ma.filled(mesh.get_array().astype(float), np.nan).reshape(
        mesh.get_coordinates().shape[0] - 1, -1
    )


def labels(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def test_a_head_map_shows_every_weight_under_its_tokens():
    A = torch.tensor([[0.75, 0.25], [0.5, 0.5]])
    ax = head_map(A, ["The", "$5"], title="layer 1, head 1")
    assert np.array_equal(drawn(ax), A.numpy())
    assert labels(ax.xaxis) == labels(ax.yaxis) == ["The", r"\$5"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("token that is read", "token that reads")
    assert ax.get_title() == "layer 1, head 1"


def test_a_head_map_of_some_queries():
    ax = head_map(torch.eye(3)[:2], ["a", "b", "c"], queries=["a", "b"])
    assert labels(ax.yaxis) == ["a", "b"] and labels(ax.xaxis) == ["a", "b", "c"]


def test_a_similarity_map_leaves_the_diagonal_out_and_outlines_pairs():
    S = torch.tensor([[9.0, 1.0, -2.0], [1.0, 9.0, 0.0], [-2.0, 0.0, 9.0]])
    ax = similarity_map(S, list("abc"), pairs=torch.tensor([[0, 1]]), label="dot")
    assert np.isnan(np.diag(drawn(ax))).all()
    assert np.array_equal(drawn(ax)[0, 1:], [1, -2])
    assert ax.collections[0].get_clim() == (-2, 2)  # centred at 0, the diagonal does not count
    assert [patch.get_xy() for patch in ax.patches] == [(1, 0)]
    assert S[0, 0] == 9  # the caller's matrix is untouched
    assert similarity_map(S, list("abc"), limit=1.0).collections[0].get_clim() == (-1, 1)


def test_one_token_can_be_drawn():
    assert drawn(similarity_map(torch.ones(1, 1), ["a"])).shape == (1, 1)


@pytest.mark.parametrize(
    ("n", "note"),
    [
        (64, ""),
        (128, " (every 2nd token is labelled)"),
        (200, " (every 4th token is labelled)"),
        (130, " (every 3rd token is labelled)"),
    ],
)
def test_labels_are_thinned_and_the_axis_says_so(n, note):
    tokens = [f"token{i}" for i in range(n)]
    ax = head_map(torch.full((n, n), 1 / n), tokens)
    step = -(-n // 64)
    assert ax.get_xlabel() == "token that is read" + note
    assert labels(ax.xaxis) == tokens[::step]
    assert all(np.isclose(ax.get_xticks(), np.arange(0, n, step) + 0.5))


def test_labels_of_128_tokens_do_not_overlap():
    ax = head_map(torch.full((128, 128), 1 / 128), ["Zürich"] * 128)
    ax.figure.canvas.draw()
    for axis, side in ((ax.yaxis, "y"), (ax.xaxis, "x")):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        starts = sorted(getattr(box, f"{side}0") for box in boxes)
        height = min(getattr(box, "height" if side == "y" else "width") for box in boxes)
        assert np.diff(starts).min() >= 0.8 * height
        assert axis.get_ticklabels()[0].get_fontsize() >= 5.5


def test_a_grid_counts_from_one_and_marks_a_head():
    values = torch.tensor([[1.0, 2.0, torch.nan], [4.0, 0.0, 1.0]])
    ax = layer_head_grid(values, label="lift", centre=1.0, mark=(1, 0))
    assert labels(ax.xaxis) == ["1", "2", "3"] and labels(ax.yaxis) == ["1", "2"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("head", "layer")
    assert np.isnan(drawn(ax)[0, 2]) and ax.patches[0].get_xy() == (0, 1)
    neutral = ax.collections[0].cmap(ax.collections[0].norm(1.0))
    assert min(neutral[:3]) > 0.9  # chance is drawn in the pale middle colour


def test_a_grid_on_given_axes_with_given_limits():
    _, ax = plt.subplots()
    assert layer_head_grid(np.ones((2, 2)), label="x", limits=(0.0, 2.0), ax=ax) is ax
    assert ax.collections[0].get_clim() == (0, 2)


def test_labels_that_do_not_fit_the_matrix_are_refused():
    with pytest.raises(ValueError, match="2 and 2 token labels for a matrix of 3 x 3"):
        similarity_map(torch.eye(3), ["a", "b"])


def test_half_precision_can_be_drawn():
    head_map(torch.eye(2, dtype=torch.bfloat16), ["a", "b"])
    similarity_map(torch.eye(2, dtype=torch.bfloat16), ["a", "b"])
    layer_head_grid(torch.eye(2, dtype=torch.bfloat16), label="x")
