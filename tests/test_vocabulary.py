import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models

from specworker.vocabulary import Comparison, compare, is_in

WORDS = [f"w{index}" for index in range(200)]


def tokenizer(folder: Path, words: Iterable[str], *added: str) -> Path:
    """Write a tokenizer.json whose ids are the places of the words."""
    folder.mkdir(parents=True, exist_ok=True)
    own = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, "w0"))
    own.add_special_tokens([AddedToken(token, special=True) for token in added])
    own.save(str(folder / "tokenizer.json"))
    return folder


def files(folder: Path, contents: Mapping[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (folder / name).write_text(text)
    return folder


def test_two_copies_of_a_tokenizer_are_the_same(tmp_path: Path) -> None:
    first, second = (tokenizer(tmp_path / name, WORDS, "<end>") for name in "ab")
    assert compare(first, second) == Comparison()


def test_the_same_vocabulary_in_other_files_is_the_same(tmp_path: Path) -> None:
    first, second = (tokenizer(tmp_path / name, WORDS, "<end>") for name in "ab")
    (second / "tokenizer.json").write_text((second / "tokenizer.json").read_text() + "\n")
    assert compare(first, second) == Comparison(201, 201)


def test_tokens_that_only_one_has_make_no_difference(tmp_path: Path) -> None:
    first = tokenizer(tmp_path / "a", WORDS, "<end>", "<tool>")
    second = tokenizer(tmp_path / "b", WORDS, "<end>")
    assert compare(first, second) == Comparison(201, 201)
    assert compare(second, first) == Comparison(201, 201)


def test_another_tokenizer_of_the_same_size_differs_with_an_example(tmp_path: Path) -> None:
    first = tokenizer(tmp_path / "a", WORDS)
    second = tokenizer(tmp_path / "b", ["w0", *reversed(WORDS[1:])])
    found = compare(first, second)
    assert found == Comparison(200, 2, (1, "w1", "w199"))
    assert not found.alike


def test_added_tokens_count(tmp_path: Path) -> None:
    first = tokenizer(tmp_path / "a", WORDS, "<end>")
    second = tokenizer(tmp_path / "b", WORDS, "<stop>")
    assert compare(first, second) == Comparison(201, 200, (200, "<end>", "<stop>"))


@pytest.mark.parametrize(("renamed", "alike"), [(1, True), (2, True), (3, False)])
def test_up_to_one_id_in_a_hundred_may_mean_another_token(
    tmp_path: Path, renamed: int, alike: bool
) -> None:
    first = tokenizer(tmp_path / "a", WORDS)
    second = tokenizer(tmp_path / "b", [*WORDS[:-renamed], *(f"x{n}" for n in range(renamed))])
    found = compare(first, second)
    assert found is not None
    assert found.example is not None
    assert found.alike == alike


def test_a_vocabulary_of_words_is_read_with_what_was_added(tmp_path: Path) -> None:
    first = {"vocab.json": '{"a": 0, "b": 1}', "added_tokens.json": '{"<end>": 2}'}
    second = {"vocab.json": '{"a": 0, "b": 1, "<stop>": 2}'}
    found = compare(files(tmp_path / "a", first), files(tmp_path / "b", second))
    assert found == Comparison(3, 2, (2, "<end>", "<stop>"))


def test_one_layout_is_compared_with_another(tmp_path: Path) -> None:
    first = tokenizer(tmp_path / "a", ["w0", "w1"])
    second = files(tmp_path / "b", {"vocab.json": json.dumps({"w0": 0, "w2": 1})})
    assert compare(first, second) == Comparison(2, 1, (1, "w1", "w2"))


def test_files_that_cannot_be_read_are_the_same_where_their_content_is(tmp_path: Path) -> None:
    first = files(tmp_path / "a", {"tokenizer.model": "model", "vocab.txt": "one"})
    second = files(tmp_path / "b", {"tokenizer.model": "model", "vocab.txt": "other"})
    found = compare(first, second)
    assert found is not None
    assert found.example is None
    assert found.alike


@pytest.mark.parametrize(
    "other",
    [
        {"tokenizer.model": "another"},
        {"spiece.model": "model"},
        {"vocab.json": '{"a": 0}'},
        {"tokenizer.json": "{}"},
        {"tokenizer.json": "no tokenizer"},
        {"vocab.json": "{bad"},
        {"config.json": "{}"},
        {},
    ],
)
def test_nothing_is_said_of_what_cannot_be_compare(
    tmp_path: Path, other: Mapping[str, str]
) -> None:
    own = files(tmp_path / "a", {"tokenizer.model": "model"})
    assert compare(own, files(tmp_path / "b", other)) is None


def test_a_broken_tokenizer_leaves_the_other_files_to_be_compare(tmp_path: Path) -> None:
    first = files(tmp_path / "a", {"tokenizer.json": "{}", "tokenizer.model": "model"})
    second = files(tmp_path / "b", {"tokenizer.model": "model"})
    assert compare(first, second) == Comparison()


@pytest.mark.parametrize(("name", "is_one"), [("config.json", False), ("tekken.json", True)])
def test_a_tokenizer_is_known_by_its_files(tmp_path: Path, name: str, is_one: bool) -> None:
    assert is_in(files(tmp_path / "a", {name: "{}"})) == is_one
    assert not is_in(tmp_path / "nowhere")
