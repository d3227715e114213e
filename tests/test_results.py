"""Results files: complete, readable, and the same again."""

import json

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest

from attnlib import (
    load_results,
    save_figure,
    save_results,
    scorecard,
    summary,
    versions,
    with_other_models,
)
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


# --- scorecard ------------------------------------------------------------------------------------


def verdict(estimate, **changed):
    level = dict(ours=estimate, level=0.5, difference=0.1, low=0.05, high=0.15, decides=True)
    return (
        dict(
            verdict="supported",
            estimate=estimate,
            low=0.5,
            high=0.7,
            levels={"chance": level, "input": level | {"level": 0.9, "decides": False}},
            caveats=["input"],
            controls={"untrained": 0.51, "shuffled": None},
            robustness=2 / 3,
            n_texts=40,
            heads={},
        )
        | changed
    )


def write(folder, model, notebook, verdicts):
    path = folder / f"{model}-{notebook}.json"
    path.write_text(json.dumps({"model": {"name": model}, "values": {"verdicts": verdicts}}))
    return path


def test_the_scorecard_says_what_the_results_say(tmp_path):
    heads = {"passing": 3, "of": 72, "best": [1, 2]}
    old = write(tmp_path, "minilm", "old", {"S3": verdict(0.55)})
    new = write(tmp_path, "minilm", "new", {"S3": verdict(0.6, heads=heads)})
    mine = write(
        tmp_path, "mine", "new", {"S1": verdict(0.2), "S6": verdict(None, low=None, high=None)}
    )
    card = scorecard([old, new, mine]).set_index(["claim", "model"])
    row = card.loc["S3", "minilm"]
    assert (
        row.estimate == "0.6 [0.5, 0.7]" and row.verdict == "supported" and row.heads == "3 of 72"
    )
    assert row.levels == "chance: 0.5" and row.but == "not beyond input: 0.9"
    assert (row.untrained, row.shuffled, row.robustness, row.texts) == ("0.51", "n/a", "67%", "40")
    assert (
        card.loc["S1", "mine"].heads == "-" and card.loc["S6", "mine"].estimate == "n/a [n/a, n/a]"
    )
    missing = card.loc["S4", "mpnet"]
    assert missing.verdict == "not run" and missing.but == "`make render NB=05 MODEL=mpnet`"
    assert len(card) == 6 * 4  # every claim for the models with a short name, and the one found


def test_a_level_about_another_quantity_shows_both_sides(tmp_path):
    level = dict(ours=0.3, level=0.1, difference=0.2, low=0.1, high=0.3, decides=True)
    path = write(tmp_path, "minilm", "06", {"S6": verdict(0.6, levels={"kept": level}, caveats=[])})
    assert (
        scorecard([path]).set_index(["claim", "model"]).levels["S6", "minilm"]
        == "kept: 0.3 against 0.1"
    )


def test_a_run_stands_before_those_of_other_models_and_replaces_its_own(tmp_path):
    for name, said in (("minilm", "stored"), ("mpnet", "stored"), ("zeta", "stored")):
        (tmp_path / name).mkdir()
        text = json.dumps({"model": {"name": name}, "finding": said})
        (tmp_path / name / "99_test.json").write_text(text)
    run = tmp_path / "99_test.json"
    run.write_text(json.dumps({"model": {"name": "mpnet"}, "finding": "new"}))
    found = with_other_models(run, tmp_path)
    assert [(each["model"]["name"], each["finding"]) for each in found] == [
        ("mpnet", "new"),
        ("minilm", "stored"),
        ("zeta", "stored"),
    ]
    assert len(with_other_models(run, tmp_path / "nowhere")) == 1
