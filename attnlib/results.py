"""Write and read the numbers of a notebook, together with everything needed to get them again."""

import json
import math
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from attnlib.corpus import Corpus
from attnlib.inference import CLAIMS
from attnlib.models import PUBLISHED, Model

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "scipy", "gensim", "sentencex")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that the numbers depend on.

    >>> versions()["torch"].split("+")[0]
    '2.13.0'
    """
    return {"python": platform.python_version()} | {
        package: metadata.version(package) for package in PACKAGES
    }


def save_results(
    out: str | Path,
    notebook: str,
    *,
    model: Model,
    corpus: Corpus,
    settings: dict,
    tokens: tuple[int, int],
    seconds: float,
    main: dict,
    finding: str,
    values: dict,
) -> Path:
    """Write the results of one notebook to ``out/<model>/<notebook>.json`` and return that path.

    Parameters
    ----------
    out : folder, made if it is missing
    notebook : its file name without ending, such as "02_compare_tokens"
    settings : the notebook's parameters, as they took effect
    tokens : how many tokens of the texts were read, and how many were cut off
    seconds : how long the notebook ran
    main : its main number: "label", "value", "interval" (lower, upper, 95 %; or None), "verdict"
    finding : one to three sentences with the numbers in them, shown at the top of the notebook
    values : every other number; plain Python types, NaN for what does not exist

    The model's and the corpus's provenance, package versions and the time are added.
    """
    missing = {"label", "value", "interval", "verdict"} - set(main)
    if missing:
        raise ValueError(
            f"main of {notebook} lacks {', '.join(sorted(missing))}: give all of label, value, interval, verdict."
        )
    results = {
        "notebook": notebook,
        "main": main,
        "finding": finding,
        "values": values,
        "settings": settings,
        "model": model.provenance
        | {"n_layers": model.n_layers, "n_heads": model.n_heads, "d_head": model.d_head},
        "corpus": corpus.provenance | {"tokens_read": tokens[0], "tokens_cut": tokens[1]},
        "versions": versions(),
        "seconds": round(seconds, 1),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    path = Path(out) / model.name / f"{notebook}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_plain(results), indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def _plain(value):
    """Without numbers that JSON does not know: one that is not finite does not exist, and becomes null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def save_figure(figure: Figure, out: str | Path, model: Model, name: str) -> Path:
    """Write a figure to ``out/<model>/figures/<name>.png`` and return that path."""
    path = Path(out) / model.name / "figures" / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})  # the same picture gives the same bytes
    return path


def load_results(path: str | Path) -> dict | None:
    """The results in a file that ``save_results`` wrote; None if there is no such file.

    >>> load_results("nowhere.json") is None
    True
    """
    path = Path(path)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def with_other_models(path: str | Path, stored: str | Path = "results") -> list[dict]:
    """The results in a file that ``save_results`` wrote, and those of the same notebook with other models.

    ``stored`` is the folder with those, as ``<model>/<notebook>.json``; in a notebook the one with published results.

    >>> [each["model"]["name"] for each in with_other_models("notebooks/results/mpnet/02_compare_tokens.json", "none")]
    ['mpnet']
    """
    this_run = load_results(path)
    others = map(load_results, sorted(Path(stored).glob(f"*/{Path(path).name}")))
    return [
        this_run,
        *(each for each in others if each["model"]["name"] != this_run["model"]["name"]),
    ]


def main_number(results: dict) -> str:
    """The main number as people read it, with its 95 % interval if it has one.

    >>> main_number({"main": {"label": "AUROC", "value": 0.98241, "interval": [0.97, 0.99], "verdict": "supported"}})
    'AUROC 0.982 [0.97, 0.99]'
    """
    main = results["main"]

    def text(value) -> str:
        return "n/a" if value is None else value if isinstance(value, str) else f"{value:.3g}"

    interval = "" if main["interval"] is None else f" [{', '.join(map(text, main['interval']))}]"
    return f"{main['label']} {text(main['value'])}{interval}"


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3g}"


def scorecard(paths: Iterable[str | Path]) -> pd.DataFrame:
    """Every claim and every model: what was found, from the results of the finding notebooks.

    Parameters
    ----------
    paths : results files; a later one replaces what an earlier one says about the same claim and model

    Returns one row for each claim and each model that has results or a short name here, with columns of text: claim,
    statement, model, measured by, estimate (with its 95 % interval), levels (those that the estimate is held against,
    with their values), untrained, shuffled, heads (how many pass, of a claim about some heads), verdict, robustness,
    texts, but (levels that do not decide and that the estimate does not exceed).  Where there was no run the verdict is
    "not run" and ``but`` has the command that fills the row.

    >>> scorecard([]).verdict.unique().tolist()
    ['not run']
    """
    found: dict[str, dict[str, dict]] = {}
    for results in map(load_results, paths):
        verdicts = results["values"].get("verdicts", {})
        found.setdefault(results["model"]["name"], {}).update(verdicts)
    others = [model for model, verdicts in found.items() if verdicts and model not in PUBLISHED]
    rows = []
    for claim, about in CLAIMS.items():
        for model in (*PUBLISHED, *others):
            row = {"claim": claim, "statement": about.statement, "model": model}
            verdict = found.get(model, {}).get(claim)
            row |= {"measured by": about.estimate} | (
                _not_run(model, about.notebook) if verdict is None else _row(verdict)
            )
            rows.append(row)
    return pd.DataFrame(rows)


def _not_run(model: str, notebook: str) -> dict:
    columns = ("estimate", "levels", "untrained", "shuffled", "heads", "robustness", "texts")
    command = f"make render NB={notebook[:2]} MODEL={model}"
    return dict.fromkeys(columns, "-") | {"verdict": "not run", "but": f"`{command}`"}


def _row(verdict: dict) -> dict:
    """The cells of one verdict, as text."""
    heads, levels = verdict["heads"], verdict["levels"]

    def against(level: dict) -> str:
        # some levels are about another quantity than the estimate
        other = level["ours"] is not None and not math.isclose(
            level["ours"], verdict["estimate"], rel_tol=0.02
        )
        return (f"{_number(level['ours'])} against " if other else "") + _number(level["level"])

    low, high = _number(verdict["low"]), _number(verdict["high"])
    controls = {name: _number(verdict["controls"].get(name)) for name in ("untrained", "shuffled")}
    return {
        "estimate": f"{_number(verdict['estimate'])} [{low}, {high}]",
        "levels": "; ".join(
            f"{name}: {against(level)}" for name, level in levels.items() if level["decides"]
        ),
        **controls,
        "heads": f"{heads['passing']} of {heads['of']}" if heads else "-",
        "verdict": verdict["verdict"],
        "robustness": f"{verdict['robustness']:.0%}",
        "texts": str(verdict["n_texts"]),
        "but": "; ".join(
            f"not beyond {name}: {against(levels[name])}" for name in verdict["caveats"]
        ),
    }


def summary(results: dict | None) -> str:
    """A Markdown paragraph with the finding, its main number and verdict, and what they were measured on."""
    if results is None:
        return "*No published results yet: `make render` writes them.*"
    model, corpus, minutes = results["model"], results["corpus"], round(results["seconds"] / 60)
    share_cut = corpus["tokens_cut"] / (corpus["tokens_read"] + corpus["tokens_cut"])
    return (
        f"{results['finding']}\n\n**{main_number(results)}: {results['main']['verdict']}.** Model `{model['name']}` "
        f"({model['n_layers']} layers × {model['n_heads']} heads, fine-tuned for {model['fine_tuned_for']}) · corpus "
        f"`{corpus['name']}`, {corpus['n_texts']} text{'s' * (corpus['n_texts'] != 1)} cut to "
        f"{results['settings']['MAX_TOKENS']} tokens, which leaves {share_cut:.0%} of the tokens unread · "
        f"{f'about {minutes} min' if minutes else 'less than a minute'} on {model['device']} · {results['date'][:10]}"
    )
