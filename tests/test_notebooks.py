"""Notebooks: each runs at small settings, its parameters take effect, and its rendered copy belongs to its source."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest

from attnlib import load_corpus, load_results, scorecard

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
sys.path.insert(0, str(NOTEBOOKS))
import run  # noqa: E402

SOURCES = run.sources()
SMALL = {"N_TEXTS": 6, "MAX_TOKENS": 48, "SEED": 3, "DEVICE": "cpu"}
each_notebook = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)


def outputs_as_text(notebook) -> str:
    """All that the outputs of a notebook say, pictures left out."""
    parts = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            parts.append(output.get("text", ""))
            parts += [
                value for kind, value in output.get("data", {}).items() if kind.startswith("text/")
            ]
    return "\n".join(parts)


# --- running ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_runs(tmp_path_factory):
    """Execute a notebook once at small settings; returns (executed notebook, results)."""
    done = {}

    def execute(source: Path):
        if source not in done:
            out = tmp_path_factory.mktemp(source.stem)
            executed = run.execute(source, out / f"{source.stem}.ipynb", SMALL | {"OUT": str(out)})
            done[source] = executed, load_results(out / "minilm" / f"{source.stem}.json")
        return done[source]

    return execute


@each_notebook
def test_it_runs_and_its_parameters_take_effect(small_runs, source):
    _, results = small_runs(source)
    taken = results["settings"]
    assert {"MAX_TOKENS", "SEED", "DEVICE"} <= set(taken)
    assert {name: taken[name] for name in SMALL if name in taken}.items() <= SMALL.items()
    assert results["model"]["name"] == "minilm" and results["model"]["sha256_is_published"]
    expected = {"00_start_here": ("passages: two_banks", 1)}.get(source.stem, ("lee", 6))
    assert (results["corpus"]["name"], results["corpus"]["n_texts"]) == expected
    n_special = 2
    assert results["corpus"]["tokens_read"] == expected[1] * (SMALL["MAX_TOKENS"] - n_special)
    assert results["main"]["verdict"] in (
        "ready",
        "holds",
        "counted",
        "n/a",
        "supported",
        "contradicted",
        "undecided",
    )
    assert results["finding"] and results["values"]


NO_LAYER_AND_HEAD = {
    "12_read_the_scorecard": "it is about claims, and has menus for claim and model"
}


@each_notebook
def test_no_error_hides_in_a_widget(small_runs, source):
    executed, _ = small_runs(source)
    state = (
        executed.metadata.get("widgets", {})
        .get("application/vnd.jupyter.widget-state+json", {})
        .get("state", {})
    )
    sliders = [item for item in state.values() if item["model_name"] == "IntSliderModel"]
    if source.stem not in NO_LAYER_AND_HEAD:
        assert len(sliders) >= 2  # layer and head
    outputs = [output for item in state.values() for output in item["state"].get("outputs", [])]
    assert outputs and not [output for output in outputs if output["output_type"] == "error"]


@each_notebook
def test_other_settings_give_other_results(small_runs, source):
    """A parameter that is written down but not used would leave the published numbers."""
    published = load_results(NOTEBOOKS / "results" / run.PUBLISHED_MODEL / f"{source.stem}.json")
    _, results = small_runs(source)
    assert results["values"] != published["values"]


@each_notebook
@pytest.mark.parametrize("family", ["mpnet", "gpt2"])
def test_it_runs_on_another_model_other_texts_and_in_half_precision(
    source, family, tiny_folder, passages, tmp_path
):
    for text in passages.texts[:5]:
        (tmp_path / f"{text.source}.txt").write_text(text.text, "utf-8")
    changed = {
        "MODEL": str(tiny_folder(family)),
        "CORPUS": str(tmp_path / "*.txt"),
        "DTYPE": "bfloat16",
        "DEVICE": "cpu",
        "OUT": str(tmp_path / "out"),
    }
    if "SHARE =" in run.parameter_cell(run.read(source)):
        changed["SHARE"] = 0.05
    run.execute(source, tmp_path / "executed.ipynb", changed)
    results = load_results(tmp_path / "out" / family / f"{source.stem}.json")
    assert (results["model"]["name"], results["model"]["dtype"]) == (family, "bfloat16")
    assert (results["model"]["n_layers"], results["model"]["n_heads"]) == (3, 4)
    if source.stem != "00_start_here":
        assert results["corpus"]["name"] == changed["CORPUS"] and results["corpus"]["n_texts"] == 5
    assert results["settings"].get("SHARE", 0.05) == 0.05


def test_capture_is_exact(small_runs):
    _, results = small_runs(NOTEBOOKS / "01_capture_head_outputs.py")
    assert results["values"]["largest_difference"] <= 1e-5
    assert results["values"]["output_unchanged"]


# --- the rendered copies ------------------------------------------------------------------------


@each_notebook
def test_the_rendered_copy_belongs_to_its_source(source):
    notebook = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    assert notebook.metadata.attnlib.source_sha256 == run.source_hash(source), "run make render"
    again = run.read(source)
    assert [cell.source for cell in notebook.cells] == [cell.source for cell in again.cells], (
        "run make render"
    )


@each_notebook
def test_saving_in_jupyter_leaves_the_source_as_it_is(source):
    settings = jupytext.config.load_jupytext_config(str(source))
    written = jupytext.writes(jupytext.read(source), fmt="py:percent", config=settings)
    assert written == source.read_text("utf-8")


@each_notebook
def test_the_rendered_copy_can_be_read_anywhere(source):
    path = source.with_suffix(".ipynb")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stat().st_size <= 2**20
    assert "widgets" not in notebook.metadata and notebook.metadata.kernelspec.name == "python3"
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    assert "widget-view" not in path.read_text("utf-8") and str(Path.home()) not in path.read_text(
        "utf-8"
    )
    for name in re.findall(r"\]\((figures/[^)]+)\)", source.read_text("utf-8")):
        assert (NOTEBOOKS / name).exists()


@each_notebook
def test_it_is_published_at_the_published_settings(source):
    results = load_results(NOTEBOOKS / "results" / run.PUBLISHED_MODEL / f"{source.stem}.json")
    defaults = {}
    exec(run.parameter_cell(run.read(source)), defaults)
    assert all(results["settings"][name] == defaults[name] for name in results["settings"])
    assert results["finding"] in outputs_as_text(
        nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    )


@each_notebook
def test_other_peoples_texts_are_not_shown(source):
    """Of the news items only numbers and single words may appear: no four words in a row."""
    words = re.findall(
        r"\w+", outputs_as_text(nbformat.read(source.with_suffix(".ipynb"), as_version=4)).lower()
    )
    shown = {tuple(words[i : i + 4]) for i in range(len(words))}
    own = {tuple(run4) for text in load_corpus("passages") for run4 in runs_of_four(text.text)}
    theirs = {tuple(run4) for text in load_corpus("lee") for run4 in runs_of_four(text.text)}
    assert (
        not {four for four in (shown & theirs) - own if not all(word.isdigit() for word in four)}
        - PLAIN
    )


def runs_of_four(text: str) -> list[list[str]]:
    words = re.findall(r"\w+", text.lower())
    return [words[i : i + 4] for i in range(len(words) - 3)]


PLAIN = {  # phrases that anybody writes
    ("at", "the", "end", "of"),
    ("but", "it", "is", "not"),
    ("the", "head", "of", "the"),
}


# --- the runner ---------------------------------------------------------------------------------


def test_a_misspelt_parameter_is_refused(tmp_path):
    with pytest.raises(
        ValueError,
        match=r"01_.* has no parameter MAXTOKENS: it has CORPUS, DEVICE",
    ):
        run.execute(
            NOTEBOOKS / "01_capture_head_outputs.py", tmp_path / "x.ipynb", {"MAXTOKENS": 3}
        )


def test_only_what_differs_from_the_published_settings_is_passed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    assert run.parameters(run.arguments([])) == {}
    options = [
        "--model",
        "a",
        "--corpus",
        "*.txt",
        "--texts",
        "5",
        "--device",
        "cpu",
        "--dtype",
        "float16",
    ]
    assert run.parameters(run.arguments(options)) == {
        "MODEL": str(tmp_path / "a"),
        "CORPUS": str(tmp_path / "*.txt"),
        "N_TEXTS": 5,
        "DEVICE": "cpu",
        "DTYPE": "float16",
    }
    (tmp_path / "mpnet").mkdir()  # a known name stays one
    assert run.parameters(run.arguments(["--model", "mpnet"])) == {"MODEL": "mpnet"}
    assert run.parameters(run.arguments(["--model", "someone/some-model"])) == {
        "MODEL": "someone/some-model"
    }


def test_a_run_ends_with_a_table_and_leaves_the_work_tree_clean(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "BUILD", run.BUILD / "test")
    before = subprocess.run(
        ["git", "status", "--porcelain"], capture_output=True, text=True, cwd=run.REPOSITORY
    ).stdout
    assert run.main(["--only", "00", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].split() == [
        "notebook",
        "seconds",
        "main",
        "number",
        "verdict",
        "where",
        "to",
        "look",
    ]
    assert lines[-1].startswith("00_start_here") and lines[-1].endswith(
        "build/test/minilm/00_start_here.ipynb"
    )
    assert "Heads captured 72" in lines[-1] and "ready" in lines[-1]
    after = subprocess.run(
        ["git", "status", "--porcelain"], capture_output=True, text=True, cwd=run.REPOSITORY
    ).stdout
    assert before == after


def test_a_failed_notebook_is_named_and_the_rest_goes_on(monkeypatch, capsys):
    monkeypatch.setattr(run, "BUILD", run.BUILD / "test")
    assert run.main(["--only", "00", "--model", "no-such-model"]) == 1
    out, err = capsys.readouterr()
    assert "00_start_here.py failed" in err and "'no-such-model'" in err and "minilm, mpnet" in err
    assert "failed" in out.splitlines()[-1]


def test_a_notebook_that_is_not_there(capsys):
    assert run.main(["--only", "77"]) == 2
    assert "NB=77: no notebook starts with that; there are 00, 01, 02" in capsys.readouterr().out


def test_rendering_keeps_the_published_settings(capsys):
    assert run.main(["--render", "--texts", "3"]) == 2
    assert "leave out N_TEXTS" in capsys.readouterr().out


def test_another_model_is_not_published_under_the_published_name(tmp_path, capsys):
    (tmp_path / "minilm").mkdir()
    assert run.main(["--render", "--model", str(tmp_path / "minilm")]) == 2
    assert "would be published as minilm: rename the folder" in capsys.readouterr().out


def test_rendering_drops_what_only_a_kernel_can_show(small_runs):
    source = NOTEBOOKS / "02_compare_tokens.py"
    executed, _ = small_runs(source)
    text = nbformat.writes(executed)
    assert "widget-view" in text and "%|" in text
    text = nbformat.writes(run.rendered(executed, source))
    assert "widget-view" not in text and "%|" not in text and "image/png" in text


def test_publishing_copies_results_page_and_pictures(small_runs, tmp_path, monkeypatch):
    source = NOTEBOOKS / "02_compare_tokens.py"
    executed, results = small_runs(source)
    folder = tmp_path / "build" / "minilm"
    (folder / "figures").mkdir(parents=True)
    (folder / "02_compare_tokens.json").write_text(json.dumps(results))
    (folder / "figures" / "02_compare_tokens.png").write_bytes(b"picture")
    copy = tmp_path / "notebooks" / source.name
    copy.parent.mkdir()
    copy.write_bytes(source.read_bytes())
    monkeypatch.setattr(run, "NOTEBOOKS", copy.parent)
    run.publish(copy, executed, folder)
    assert load_results(copy.parent / "results" / "minilm" / "02_compare_tokens.json") == results
    assert (copy.parent / "figures" / "02_compare_tokens.png").exists() and copy.with_suffix(
        ".ipynb"
    ).exists()
    copy.with_suffix(".ipynb").unlink()
    run.publish(copy, executed, Path(folder.rename(tmp_path / "build" / "mpnet")))
    assert (copy.parent / "results" / "mpnet" / "02_compare_tokens.json").exists()
    assert not copy.with_suffix(".ipynb").exists()  # only the published model's pages are kept


def test_the_readme_tables_are_those_that_the_results_give():
    readme = (run.REPOSITORY / "README.md").read_text("utf-8")
    assert run.readme_table() in readme and run.readme_scorecard() in readme, "run make render"
    assert run.with_tables(readme) == readme


def test_the_scorecard_has_every_claim_for_the_published_models():
    card = scorecard(sorted((NOTEBOOKS / "results").glob("*/*.json")))
    filled = card[card.model.isin(["minilm", "mpnet"])]
    assert len(filled) == 12 and not (filled.verdict == "not run").any()
    assert (filled.estimate.str.count(",") == 1).all() and (filled.untrained != "n/a").all()


# --- the repository -----------------------------------------------------------------------------


def test_every_public_function_is_used_by_a_notebook():
    import attnlib

    text = "\n".join(source.read_text("utf-8") for source in SOURCES)
    code = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    functions = [name for name in attnlib.__all__ if name[0].islower()]
    assert not [name for name in functions if not re.search(rf"\b{name}\(", code)]
