"""Texts to read with a model: bundled, from installed packages, or from your own files."""

import bz2
import glob
import hashlib
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from sentencex import get_sentence_boundaries


@dataclass(frozen=True)
class Text:
    """One text; ``sentences`` are (start, end) character positions in ``text``, ``source`` says where it is from."""

    text: str
    sentences: tuple[tuple[int, int], ...]
    source: str


@dataclass(frozen=True)
class Corpus(Sequence):
    """A named, ordered collection of texts."""

    name: str
    texts: tuple[Text, ...]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Text:
        return self.texts[index]

    @property
    def provenance(self) -> dict:
        """What identifies the texts: name, number of texts, and the SHA-256 of all of them in order."""
        digest = hashlib.sha256()
        for text in self.texts:
            digest.update(hashlib.sha256(text.text.encode()).digest())
        return {"name": self.name, "n_texts": len(self), "sha256": digest.hexdigest()}


def split_sentences(text: str, language: str = "en") -> tuple[tuple[int, int], ...]:
    """(start, end) character positions of the sentences of ``text``, without the white space around them.

    The boundaries are those of the ``sentencex`` package.

    >>> split_sentences("It rains. Does Dr. Ode mind?")
    ((0, 9), (10, 28))
    """
    spans = []
    for boundary in get_sentence_boundaries(language, text):
        piece = text[boundary["start_index"] : boundary["end_index"]]
        if piece.strip():
            start = boundary["start_index"] + len(piece) - len(piece.lstrip())
            spans.append((start, start + len(piece.strip())))
    return tuple(spans)


def as_text(text: str | Text, source: str = "given by the caller") -> Text:
    """A string as a ``Text``, split into sentences; a ``Text`` as it is.

    Raises ValueError for a text that is empty or all white space.
    """
    if isinstance(text, str):
        text = Text(text, split_sentences(text), source)
    if not isinstance(text, Text):
        raise ValueError(
            f"A text must be a string or a Text, not {type(text).__name__}: {text!r:.40}."
        )
    if not text.text.strip():
        raise ValueError(
            f"The text ({text.source}) is empty or only white space: give at least one word."
        )
    return text


def _passages() -> Iterator[Text]:
    with (Path(__file__).parent / "passages.toml").open("rb") as file:
        for passage in tomllib.load(file)["passage"]:
            yield as_text(passage["text"].strip(), source=passage["name"])


def _lee() -> Iterator[Text]:
    """300 English news items (Australian Broadcasting Corporation, 2000-2002), as gensim ships them, one a line."""
    from gensim.test.utils import datapath

    with open(datapath("lee_background.cor"), encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            yield as_text(line.strip(), source=f"lee {number}")


def _wikipedia() -> Iterator[Text]:
    """English Wikipedia articles of the dump excerpt that gensim ships, mark-up and headings removed."""
    from gensim.corpora.wikicorpus import extract_pages, filter_wiki
    from gensim.test.utils import datapath

    dump = datapath("enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2")
    with bz2.open(dump) as file:
        for title, markup, _ in extract_pages(file, filter_namespaces=("0",)):
            body = re.split(
                r"==\s*(?:See also|References|Notes|Further reading|External links)",
                filter_wiki(markup),
            )[0]
            lines = (
                line.replace("'''", "").replace("''", "").strip(" *#:;'")
                for line in body.split("\n")
            )
            prose = [
                " ".join(line.split()) for line in lines if line.endswith((".", "!", "?", '"'))
            ]
            prose = [
                line for line in prose if " " in line and not line.startswith(("=", "|", "!", "{"))
            ]
            if prose:  # redirects have none
                yield as_text("\n".join(prose), source=f"Wikipedia: {title}")


CORPORA: dict[str, Callable[[], Iterable[Text]]] = {
    "passages": _passages,
    "lee": _lee,
    "wikipedia": _wikipedia,
}


def _files(name: str) -> list[Path]:
    """The text files that a path, a folder or a glob stands for, in alphabetical order."""
    path = Path(name).expanduser()
    if path.is_dir():
        files, kind = sorted(path.rglob("*.txt")), "folder holds no .txt file"
    elif glob.has_magic(name):
        files, kind = (
            sorted(Path(found) for found in glob.glob(str(path), recursive=True)),
            "glob matches no file",
        )
    else:
        files, kind = [path] if path.exists() else [], "is no known corpus and no file"
    files = [file for file in files if file.is_file()]
    if not files:
        raise ValueError(
            f"corpus={name!r}: {kind}; give one of {', '.join(CORPORA)}, or the path of an existing UTF-8 text file, "
            "of a folder with .txt files, or a glob such as 'texts/*.txt'."
        )
    return files


def _read(file: Path) -> Text:
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file} is not UTF-8 text (byte {error.start}): convert it first, for instance with "
            f"'iconv -f latin1 -t utf-8 {file.name} > new.txt'."
        ) from error
    if not text.strip():
        raise ValueError(
            f"{file} is empty or only white space: remove it from the corpus or give it some text."
        )
    return as_text(text, source=str(file))


def load_corpus(name: str | Path, *, limit: int | None = None) -> Corpus:
    """Load a corpus by name or from files.

    Parameters
    ----------
    name : "passages" (24 short English texts written for this repository), "lee" (300 English news items) or
        "wikipedia" (English articles), the last two from gensim's data; or a UTF-8 text file, a folder of .txt
        files, or a glob: one text a file, in alphabetical order
    limit : keep only the first ``limit`` texts; None for all

    Raises ValueError that names the input for an unknown name, a missing, empty or undecodable file, a glob or
    folder without a file, or a ``limit`` below 1.

    >>> corpus = load_corpus("passages", limit=2)
    >>> len(corpus), len(corpus[0].sentences) > 3
    (2, True)
    """
    name = str(name)
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit}: keep at least 1 text, or all with limit=None.")
    texts = CORPORA[name]() if name in CORPORA else map(_read, _files(name))
    return Corpus(name, tuple(islice(texts, limit)))
