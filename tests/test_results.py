"""Results files: complete, readable, and the same again."""

import json

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest

from attnlib import load_results, save_figure, save_results, summary, versions
from attnlib.results import main_number

MAIN = {"label": "AUROC", "value": 0.98765, "interval": [0.9812, 0.9934], "verdict": "supported"}


@pytest.fixture
def saved(minilm, passages, tmp_path):
    return save_results(
        tmp_path,
        "99_test",
        model=minilm,
        corpus=passages,
        settings={"MAX_TOKENS": 64},
        tokens=(300, 100),
        seconds=93.21,
        main=MAIN,
        finding="Heads differ.",
        values={"n": 3, "missing": [float("nan"), 1.0]},
    )


def test_results_carry_their_provenance(saved, tmp_path, minilm, passages):
    results = load_results(saved)
    assert saved == tmp_path / "minilm" / "99_test.json"
    assert (
        results["model"]["sha256"] == minilm.provenance["sha256"]
        and results["model"]["n_layers"] == 6
    )
    assert results["corpus"] == passages.provenance | {"tokens_read": 300, "tokens_cut": 100}
    assert results["versions"] == versions()
    assert (results["main"], results["values"], results["seconds"]) == (
        MAIN,
        {"n": 3, "missing": [None, 1.0]},
        93.2,
    )
    assert json.loads(saved.read_text("utf-8"))["settings"] == {"MAX_TOKENS": 64}


def test_a_main_number_needs_all_its_parts(minilm, passages, tmp_path):
    with pytest.raises(ValueError, match="main of 99_test lacks interval, verdict"):
        save_results(
            tmp_path, "99_test", model=minilm, corpus=passages, settings={}, tokens=(1, 0), seconds=0.0,
            main={"label": "x", "value": 1}, finding="", values={},
        )  # fmt: skip


def test_how_a_main_number_reads():
    assert main_number({"main": MAIN}) == "AUROC 0.988 [0.981, 0.993]"
    assert main_number({"main": MAIN | {"interval": None, "value": "0.0e+00"}}) == "AUROC 0.0e+00"
    assert (
        main_number({"main": MAIN | {"interval": [None, None], "value": None}})
        == "AUROC n/a [n/a, n/a]"
    )


def test_how_a_summary_reads(saved):
    text = summary(load_results(saved))
    assert text.startswith("Heads differ.\n\n**AUROC 0.988 [0.981, 0.993]: supported.** Model")
    assert "`minilm` (6 layers × 12 heads, fine-tuned for sentence embeddings)" in text
    assert (
        "24 texts cut to 64 tokens, which leaves 25% of the tokens unread · about 2 min on cpu"
        in text
    )
    assert "make render" in summary(None)


def test_a_figure_is_the_same_file_again(minilm, tmp_path):
    files = []
    for _ in range(2):
        figure, ax = plt.subplots()
        ax.plot([1, 2], [3, 4])
        files.append(save_figure(figure, tmp_path, minilm, "99_test").read_bytes())
        plt.close(figure)
    assert files[0] == files[1] and (tmp_path / "minilm" / "figures" / "99_test.png").exists()
