"""Texts: what is bundled, what packages carry, a person's own files, and what is refused."""

import pytest

from attnlib import Text, load_corpus
from attnlib.corpus import as_text, split_sentences


def test_the_passages_are_what_the_readme_says(passages):
    assert len(passages) == 24
    assert len({text.source for text in passages}) == 24
    for text in passages:
        assert 100 <= len(text.text.split()) <= 250, text.source
        assert len(text.sentences) >= 5 and "\n" not in text.text, text.source


def test_lee_is_three_hundred_news_items():
    corpus = load_corpus("lee")
    assert len(corpus) == 300
    assert corpus.provenance == {
        "name": "lee",
        "n_texts": 300,
        "sha256": "38c4c31941aaa4349deaae9e20ab51137f5df91cfad69eb5fc4de699910225de",
    }
    assert load_corpus("lee", limit=3).texts == corpus.texts[:3]


def test_wikipedia_is_prose():
    corpus = load_corpus("wikipedia", limit=20)
    assert len(corpus) == 20
    for text in corpus:
        assert text.source.startswith("Wikipedia: ")
        assert not any(mark in text.text for mark in ("[[", "{{", "'''", "=="))


def test_sentences_are_where_they_are_said_to_be(passages):
    for text in passages:
        pieces = [text.text[a:b] for a, b in text.sentences]
        assert all(piece == piece.strip() != "" for piece in pieces)
        assert " ".join(pieces) == text.text
    assert split_sentences("") == split_sentences(" \n ") == ()
    assert split_sentences("One.\r\n\r\nTwo.") == ((0, 4), (8, 12))


def test_a_text_stays_as_it_is():
    text = Text("One. Two.", ((0, 9),), "mine")
    assert as_text(text) is text


def test_files_folders_and_globs(tmp_path, monkeypatch):
    (tmp_path / "b.txt").write_bytes("\ufeffBank. Zürich.\r\n".encode())
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.txt").write_text("River.", "utf-8")
    (tmp_path / "notes.md").write_text("not read", "utf-8")
    one = load_corpus(str(tmp_path / "b.txt"))
    assert one[0].text == "Bank. Zürich.\r\n" and one[0].source == str(tmp_path / "b.txt")
    assert [text.text for text in load_corpus(tmp_path)] == ["Bank. Zürich.\r\n", "River."]
    assert len(load_corpus(str(tmp_path / "**" / "*.txt"))) == 2
    assert len(load_corpus(str(tmp_path), limit=1)) == 1
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(load_corpus("~/*.txt")) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"", "empty.txt is empty or only white space"),
        ("blank.txt", b" \r\n", "blank.txt is empty or only white space"),
        (
            "latin.txt",
            "Zürich".encode("latin1"),
            r"latin.txt is not UTF-8 text \(byte 1\): convert it",
        ),
        (
            "wide.txt",
            "Zürich".encode("utf-16"),
            r"wide.txt is not UTF-8 text \(byte 0\): convert it",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    for corpus in (tmp_path / name, tmp_path, tmp_path / "*.txt"):
        with pytest.raises(ValueError, match=message):
            load_corpus(str(corpus))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "leee",
            "corpus='leee': is no known corpus and no file; give one of passages, lee, wikipedia",
        ),
        ("no/such/file.txt", "corpus='no/such/file.txt': is no known corpus and no file"),
        ("nothing/*.txt", "glob matches no file"),
    ],
)
def test_a_corpus_that_is_not_there_is_named(name, message):
    with pytest.raises(ValueError) as error:
        load_corpus(name)
    assert message in str(error.value)


def test_a_folder_without_texts_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"folder holds no \.txt file"):
        load_corpus(str(tmp_path))


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit):
    with pytest.raises(ValueError, match=rf"limit={limit}: keep at least 1 text"):
        load_corpus("passages", limit=limit)
