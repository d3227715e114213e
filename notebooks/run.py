"""Run the notebooks: ``make run`` into build/, ``make render`` to publish outputs and results in this folder.

The .py files next to this one are the source.  A rendered .ipynb is made from one of them and carries its hash.
"""

import argparse
import hashlib
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable
from glob import has_magic
from pathlib import Path
from queue import Empty

import jupytext
import nbformat
import papermill
from jupyter_client import AsyncKernelClient, AsyncKernelManager
from jupyter_client.channels import AsyncZMQSocketChannel
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from papermill.exceptions import PapermillExecutionError
from traitlets import Type

from attnlib.corpus import CORPORA
from attnlib.models import PUBLISHED, short_name
from attnlib.results import load_results, main_number, scorecard

NOTEBOOKS = Path(__file__).resolve().parent
REPOSITORY = NOTEBOOKS.parent
BUILD = REPOSITORY / "build"
PUBLISHED_MODEL = "minilm"  # the model whose outputs are shown in the rendered notebooks
CELL_TIMEOUT_S = 3600
QUIET = ["--log-level=40"]  # no warnings of the kernel about its transport on the terminal
PROGRESS_BAR = re.compile(r"\d+%\|")


class PatientChannel(AsyncZMQSocketChannel):
    """A channel that looks for its message every second.

    The client answers slider widgets on the same socket on which it waits for the kernel, and then the wait
    can miss the kernel's message: the notebook would stand still until the cell's time is up.
    """

    async def get_msg(self, timeout: float | None = None) -> dict:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = 1.0 if end is None else min(1.0, max(0.0, end - time.monotonic()))
            try:
                return await super().get_msg(timeout=left)
            except Empty:
                if end is not None and time.monotonic() >= end:
                    raise


class PatientClient(AsyncKernelClient):
    shell_channel_class = Type(PatientChannel)


class PatientManager(AsyncKernelManager):
    client_factory = Type(PatientClient, klass=AsyncKernelClient)


def sources() -> list[Path]:
    """The notebooks, in the order they are read."""
    return sorted(NOTEBOOKS.glob("[0-9][0-9]_*.py"))


def source_hash(source: Path) -> str:
    return hashlib.sha256(source.read_bytes()).hexdigest()


def read(source: Path) -> NotebookNode:
    """The notebook in a .py file, with cell names that stay the same from run to run."""
    notebook = jupytext.read(source)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02d}"
    return notebook


def title(source: Path) -> str:
    """The first heading of a notebook."""
    return next(
        line.removeprefix("# # ")
        for line in source.read_text("utf-8").splitlines()
        if line.startswith("# # ")
    )


def parameter_cell(notebook: NotebookNode) -> str:
    """The code of the cell that papermill's parameters replace."""
    return next(
        cell.source for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])
    )


def execute(source: Path, target: Path, parameters: dict) -> NotebookNode:
    """Execute a notebook with papermill, after checking that it has every parameter that it is given.

    Raises ValueError for a parameter the notebook does not have: papermill itself would only warn.
    """
    notebook = read(source)
    known = set(re.findall(r"^([A-Z_]+) *=", parameter_cell(notebook), re.M))
    if unknown := set(parameters) - known:
        raise ValueError(
            f"{source.name} has no parameter {', '.join(sorted(unknown))}: it has {', '.join(sorted(known))}."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    return papermill.execute_notebook(
        notebook,
        target,
        parameters=parameters,
        kernel_name="python3",
        kernel_manager_class=PatientManager,
        cwd=NOTEBOOKS,
        execution_timeout=CELL_TIMEOUT_S,
        extra_arguments=QUIET,
        progress_bar={"desc": source.stem, "ncols": 88},
    )


def rendered(executed: NotebookNode, source: Path) -> NotebookNode:
    """An executed notebook as it is published: outputs kept, everything that changes from run to run removed."""
    notebook = read(source)
    code = [
        cell
        for cell in executed.cells
        if cell.cell_type == "code" and "injected-parameters" not in cell.metadata.get("tags", [])
    ]
    for cell, done in zip(
        (cell for cell in notebook.cells if cell.cell_type == "code"), code, strict=True
    ):
        cell.execution_count = done.execution_count
        cell.outputs = [output for output in done.outputs if not _only_live(output)]
        for output in cell.outputs:
            if output.output_type == "stream":
                output.pop("metadata", None)
    notebook.metadata = {
        "kernelspec": {
            "display_name": "Python 3 (ipykernel)",
            "language": "python",
            "name": "python3",
        },
        "language_info": {"name": "python"},
        "attnlib": {"source_sha256": source_hash(source)},
    }
    return notebook


def _only_live(output: NotebookNode) -> bool:
    """Progress bars and widgets mean nothing without a kernel; each widget has a static twin in the next cell."""
    if output.output_type == "stream":
        progress = PROGRESS_BAR.search(output.text) or not output.text.strip()
        return output.name == "stderr" and bool(progress)
    return "application/vnd.jupyter.widget-view+json" in output.get("data", {})


def outputs_of(cell: NotebookNode) -> list[NotebookNode]:
    """What a cell that needs no other cell shows now."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.source, id=cell.id)])
    NotebookClient(
        notebook,
        kernel_name="python3",
        extra_arguments=QUIET,
        resources={"metadata": {"path": NOTEBOOKS}},
    ).execute()
    return notebook.cells[0].outputs


def publish(source: Path, executed: NotebookNode, folder: Path) -> None:
    """Copy what a run left in ``folder`` to where it is published; pages and pictures only for the published model."""
    results = folder / f"{source.stem}.json"
    target = NOTEBOOKS / "results" / folder.name / results.name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(results, target)
    if folder.name == PUBLISHED_MODEL:
        notebook = rendered(executed, source)
        # the page opens with its published results, which are new only now
        opening = next(cell for cell in notebook.cells if cell.cell_type == "code")
        opening.outputs = outputs_of(opening)
        nbformat.write(notebook, source.with_suffix(".ipynb"))
        for figure in sorted((folder / "figures").glob(f"{source.stem}*.png")):
            (NOTEBOOKS / "figures").mkdir(exist_ok=True)
            shutil.copyfile(figure, NOTEBOOKS / "figures" / figure.name)


def run_one(source: Path, folder: Path, parameters: dict, render: bool) -> dict:
    """Execute one notebook; returns its row of the closing table."""
    start = time.perf_counter()
    target = folder / f"{source.stem}.ipynb"
    row = {"notebook": source.stem, "where": str(target.relative_to(REPOSITORY))}
    try:
        executed = execute(source, target, parameters | {"OUT": str(folder.parent)})
        if render:
            publish(source, executed, folder)
        results = load_results(folder / f"{source.stem}.json")
        row |= {"main": main_number(results), "verdict": results["main"]["verdict"]}
    except (PapermillExecutionError, DeadKernelError, CellTimeoutError) as error:
        kind = getattr(error, "ename", type(error).__name__)
        reason = getattr(error, "evalue", str(error))
        print(f"\n{source.name} failed:\n{kind}: {reason}\n", file=sys.stderr)
        row |= {"main": f"{kind}: {textwrap.shorten(reason, 60)}", "verdict": "failed"}
    return row | {"seconds": time.perf_counter() - start}


def table(rows: list[dict]) -> str:
    """The closing table of a run, as plain text."""
    lines = [("notebook", "seconds", "main number", "verdict", "where to look")]
    lines += [
        (row["notebook"], f"{row['seconds']:.0f}", row["main"], row["verdict"], row["where"])
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines
    )


def readme_table() -> str:
    """The README's table of notebooks with its caption, from their titles and published results."""
    lines = [
        "| notebook | what you'll find | read | minutes | main number | verdict |",
        "|---|---|---|---|---|---|",
    ]
    model = None
    for source in sources():
        results = load_results(NOTEBOOKS / "results" / PUBLISHED_MODEL / f"{source.stem}.json")
        cells = ("-", "-", "not run: `make render`", "-")
        if results:
            model, corpus = results["model"], results["corpus"]
            minutes = f"{results['seconds'] / 60:.1f}" if results["seconds"] >= 30 else "< 0.5"
            read = f"{corpus['n_texts']} × `{corpus['name']}`, at most {results['settings']['MAX_TOKENS']} tokens"
            cells = (read, minutes, main_number(results), results["main"]["verdict"])
        link = f"[{source.stem}](notebooks/{source.stem}.ipynb)"
        lines.append(f"| {link} | {title(source)} | {' | '.join(cells)} |")
    if model:
        lines += [
            "",
            f"*Model {model['id']} ({model['n_layers']} layers × {model['n_heads']} heads, fine-tuned for "
            f"{model['fine_tuned_for']}); minutes on {model['device']}; intervals are 95 %.*",
        ]
    return "\n".join(lines)


def readme_scorecard() -> str:
    """The README's scorecard: each claim and each model, from the published results."""
    card = scorecard(sorted((NOTEBOOKS / "results").glob("*/*.json")))
    models = list(card.model.unique())
    lines = [f"| claim | {' | '.join(models)} |", "|---" * (1 + len(models)) + "|"]
    for claim, rows in card.groupby("claim"):
        cells = [
            "not run"
            if row.verdict == "not run"
            else f"**{row.verdict}**: {row.estimate}; untrained {row.untrained}, shuffled {row.shuffled}; "
            f"robustness {row.robustness}" + (f"; but {row.but}" if row.but else "")
            for _, row in rows.iterrows()
        ]
        statement, measure = rows[["statement", "measured by"]].iloc[0]
        lines.append(f"| **{claim}** {statement}: {measure} | {' | '.join(cells)} |")
    return "\n".join(lines)


def with_tables(readme: str) -> str:
    """The README with its table of notebooks and its scorecard made anew."""
    for name, made in (("results", readme_table()), ("scorecard", readme_scorecard())):
        start, end = f"<!-- {name}: made by `make render` -->\n", f"\n<!-- end of {name} -->"
        before, rest = readme.split(start)
        readme = before + start + made + end + rest.split(end)[1]
    return readme


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model",
        default=PUBLISHED_MODEL,
        help="minilm, mpnet, bert-base-uncased, a hub id or a folder",
    )
    parser.add_argument(
        "--corpus", default="lee", help="passages, lee, wikipedia, a file, a folder or a glob"
    )
    parser.add_argument("--only", default="", help="the number of one notebook, such as 02")
    parser.add_argument("--texts", type=int, help="read only the first so many texts")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument(
        "--render", action="store_true", help="publish outputs and results next to the sources"
    )
    return parser.parse_args(argv)


def parameters(options: argparse.Namespace) -> dict:
    """The notebook parameters that differ from the published settings; paths are made absolute."""

    def absolute(name: str, known: Iterable[str]) -> str:
        path = Path(name).expanduser()
        is_path = name not in known and (path.exists() or has_magic(name))
        return str(path.absolute()) if is_path else name

    chosen = {
        "MODEL": (absolute(options.model, PUBLISHED), PUBLISHED_MODEL),
        "CORPUS": (absolute(options.corpus, CORPORA), "lee"),
        "N_TEXTS": (options.texts, None),
        "DEVICE": (options.device, "auto"),
        "DTYPE": (options.dtype, "auto"),
    }
    return {name: value for name, (value, published) in chosen.items() if value != published}


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    chosen = [source for source in sources() if source.stem.startswith(options.only)]
    if not chosen:
        print(
            f"NB={options.only}: no notebook starts with that; there are {', '.join(s.stem[:2] for s in sources())}."
        )
        return 2
    changed = parameters(options)
    if options.render and (other := sorted(set(changed) - {"MODEL", "DEVICE"})):
        print(f"make render publishes at the published settings: leave out {', '.join(other)}.")
        return 2
    folder = BUILD / short_name(options.model)
    if options.render and folder.name == PUBLISHED_MODEL != options.model:
        print(f"MODEL={options.model} would be published as {PUBLISHED_MODEL}: rename the folder.")
        return 2
    rows = [run_one(source, folder, changed, options.render) for source in chosen]
    if options.render:
        readme = REPOSITORY / "README.md"
        readme.write_text(with_tables(readme.read_text("utf-8")), "utf-8")
    print(f"\n{table(rows)}")
    return int(any(row["verdict"] == "failed" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
