"""See how transformer heads pay attention: capture head output vectors and compare tokens by them."""

from attnlib.capture import HeadOutputs, capture, head_outputs, iter_head_outputs
from attnlib.corpus import Corpus, Text, load_corpus
from attnlib.inference import head_roles, interval, judge
from attnlib.models import Model, load_model
from attnlib.plots import head_map, layer_head_grid, set_style, similarity_map
from attnlib.results import (
    load_results,
    save_figure,
    save_results,
    scorecard,
    summary,
    versions,
    with_other_models,
)
from attnlib.similarity import (
    decompose,
    pair_auroc,
    relative_distance,
    repetition_auroc,
    same_sentence_lift,
    similarity,
    top_pairs,
)
from attnlib.survey import survey

__all__ = [
    "Corpus",
    "HeadOutputs",
    "Model",
    "Text",
    "capture",
    "decompose",
    "head_map",
    "head_outputs",
    "head_roles",
    "interval",
    "iter_head_outputs",
    "judge",
    "layer_head_grid",
    "load_corpus",
    "load_model",
    "load_results",
    "pair_auroc",
    "relative_distance",
    "repetition_auroc",
    "same_sentence_lift",
    "save_figure",
    "save_results",
    "scorecard",
    "set_style",
    "similarity",
    "similarity_map",
    "summary",
    "survey",
    "top_pairs",
    "versions",
    "with_other_models",
]
