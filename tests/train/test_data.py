"""Data: batches are functions of their arguments, and what is kept for validation is never trained with."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fpsim.train.data import (
    Corpus,
    Data,
    Examples,
    _table_of_digits,
    corpus,
    digits,
    examples,
    indices,
    teacher_student,
)

TEXT = "".join(chr(65 + i % 7) + chr(0x1F600 + i % 11) for i in range(500))  # 1,000 characters


@pytest.fixture
def text(tmp_path: Path) -> Corpus:
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT.encode())
    return corpus(path)


def read(text: Corpus, tokens: Any) -> str:
    return "".join(text.vocabulary[token] for token in np.ravel(tokens))


# ---- texts


def test_tokens_are_the_characters_of_the_file_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes("b\r\na\ufeff\0é".encode())
    found = corpus(str(path))
    assert found.vocabulary == "\0\n\rabé\ufeff"
    assert read(found, [*found.train, *found.held_out]) == "b\r\na\ufeff\0é"
    assert found.digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_last_tenth_is_for_validation(text: Corpus) -> None:
    assert (read(text, text.train), read(text, text.held_out)) == (TEXT[:900], TEXT[900:])


def test_the_default_text_is_the_help_topics_of_this_python() -> None:
    from pydoc_data.topics import topics

    found = corpus(None)
    joined = "\n".join(topics[name] for name in sorted(topics))
    assert found.digest == hashlib.sha256(joined.encode()).hexdigest()
    assert read(found, found.train) + read(found, found.held_out) == joined


def test_targets_follow_their_inputs_in_the_text(text: Corpus) -> None:
    inputs, targets = text.batch(3, 1, batch=40, context=20)
    for tokens, following in zip(inputs, targets, strict=True):
        assert read(text, tokens) + read(text, following[-1:]) in TEXT[:900]
        assert (tokens[1:] == following[:-1]).all()


def test_the_places_of_a_batch_are_those_of_the_documented_words(text: Corpus) -> None:
    words = np.random.Philox(key=[5, 0], counter=[0, 0, 2, 9]).random_raw(64)
    places = [(int(word) >> 32) * (900 - 20) >> 32 for word in words]
    inputs, _ = text.batch(5, 9, 2, batch=64, context=20)
    assert [read(text, tokens) for tokens in inputs] == [TEXT[place : place + 20] for place in places]


def test_another_seed_step_or_micro_batch_gives_another_batch(text: Corpus) -> None:
    found = {text.batch(*where, batch=8, context=4)[0].tobytes() for where in np.ndindex(3, 3, 3)}
    assert len(found) == 27


def test_validation_takes_pieces_from_the_first_to_the_last_one_each_of_them_once(text: Corpus) -> None:
    pairs = text.validation(5, 16, 20)
    assert [inputs.shape for inputs, _ in pairs] == [(16, 20)] * 5
    pieces = [read(text, tokens) + read(text, last[-1:]) for pair in pairs for tokens, last in zip(*pair, strict=True)]
    assert pieces == [TEXT[900 + i : 921 + i] for i in range(80)]
    [(inputs, _)] = text.validation(1, 2, 49)
    assert [read(text, tokens) for tokens in inputs] == [TEXT[900:949], TEXT[950:999]]


def test_a_text_too_short_is_refused_with_the_length_that_it_must_have(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("ab" * 119 + "c")
    words = (
        "text must have at least 240 characters for passages of 8: its last tenth must hold 16 of them for validation; "
    )
    with pytest.raises(ValueError, match=f"{words}got 239. Take a longer text, or a smaller context or batch."):
        corpus(path).validation(2, 8, 8)
    path.write_text("ab" * 120)
    assert len(corpus(path).validation(2, 8, 8)) == 2
    with pytest.raises(ValueError, match="text must have at least 250 characters for passages of 24: its"):
        corpus(path).batch(0, 0, batch=4, context=24)
    assert corpus(path).batch(0, 0, batch=4, context=23)[0].shape == (4, 23)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "text must be a file that can be read; got '.*': No such file or directory. Name another."),
        (b"", "text must be a file of some characters; got '.*', which is empty. Name another."),
        (b"abc\xff", r"text must be a file in UTF-8; got '.*', where byte 3 \(0xff\) is invalid. Convert it"),
    ],
)
def test_a_file_that_is_no_text_is_refused_in_a_sentence(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        corpus(path)


def test_what_is_no_path_or_a_folder_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"text must be a text or a pathlib.Path; got 3."):
        corpus(3)
    with pytest.raises(
        ValueError, match=r"text must be a file that can be read; got .*: Is a directory. Name another."
    ):
        corpus(tmp_path)
    with pytest.raises(ValueError, match=r"text must be a file that can be read; got .*: embedded null byte. Name"):
        corpus("a\0b")


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"seed": -1}, "seed must be an integer >= 0; got -1."),
        ({"step": 2**64}, r"step must be an integer in 0 .. 2\*\*64 - 1; got 18446744073709551616."),
        ({"micro": 0.5}, "micro must be an integer; got 0.5."),
        ({"batch": 0}, "batch must be an integer >= 1; got 0."),
        ({"context": True}, "context must be an integer; got True."),
    ],
)
def test_arguments_that_are_no_counts_are_refused(text: Corpus, keywords: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        text.batch(**{"seed": 0, "step": 0, "micro": 0, "batch": 1, "context": 1, **keywords})


def test_a_python_without_its_help_topics_asks_for_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ImportError, match="pass text=, a path of your own"):
        corpus(None)


# ---- vectors with a class


def found_digits(seed: int = 0) -> Examples:
    if importlib.util.find_spec("sklearn") is None:
        pytest.skip("the digits are scikit-learn's")
    return digits(seed)


@pytest.fixture
def unread_digits() -> Iterator[None]:
    """As at the start of a process."""
    _table_of_digits.cache_clear()
    yield
    _table_of_digits.cache_clear()


DIGITS = "6046638392bde9af35258392baefa093d4b0174390c9f1908a676d3f2db0d365"  # by load_digits() of scikit-learn 1.9.1


@pytest.mark.usefixtures("unread_digits")
def test_digits_are_read_without_an_import_that_takes_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fpsim.train.data.load", None)
    assert found_digits().digest == DIGITS


@pytest.mark.usefixtures("unread_digits")
def test_digits_that_lie_elsewhere_are_asked_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    found_digits()
    table = _table_of_digits().astype(np.float64)
    _table_of_digits.cache_clear()
    digits_of = types.SimpleNamespace(data=table[:, :-1], target=table[:, -1])
    loaded = types.SimpleNamespace(load_digits=lambda: digits_of)
    monkeypatch.setattr("fpsim.train.data.load", lambda module, purpose: loaded)
    monkeypatch.setattr(Path, "is_file", lambda path: False)
    assert found_digits().digest == DIGITS


@pytest.mark.parametrize("make", [found_digits, teacher_student])
def test_a_set_is_a_function_of_its_seed(make: Any) -> None:
    assert make(1).digest == make(1).digest != make(2).digest


@pytest.mark.parametrize("make", [found_digits, teacher_student])
def test_examples_come_with_their_own_class_and_validation_is_never_trained_with(make: Any) -> None:
    data = make(0)
    kept = [(x.tobytes(), c) for x, c in zip(data.train, data.train_classes, strict=True)]
    inputs, classes = data.batch(0, 0, batch=500)
    assert (inputs.dtype, inputs.shape, classes.dtype, classes.shape) == ("float32", (500, 128), "int64", (500,))
    assert {(x.tobytes(), c) for x, c in zip(inputs, classes, strict=True)} <= set(kept)
    shown = [x.tobytes() for pair in data.validation(2, 50) for x in pair[0]]
    assert len(set(shown)) == 100
    assert not set(shown) & {x for x, _ in kept}


def test_digits_are_standardised_by_the_part_to_train_with() -> None:
    data = found_digits()
    assert (data.kind, data.train.shape, data.held_out.shape) == ("digits", (1618, 128), (179, 128))
    deviations = data.train.std(axis=0, dtype=np.float64)
    assert np.abs(data.train.mean(axis=0, dtype=np.float64)).max() < 1e-7
    assert set(np.round(deviations, 6)) == {0.0, 1.0}
    assert (data.train[:, :64] == data.train[:, 64:]).all()


def test_every_class_of_the_synthetic_set_is_a_twentieth_at_least() -> None:
    data = teacher_student(3)
    assert np.bincount(data.train_classes, minlength=10).min() > len(data.train) / 20


def test_more_examples_than_are_kept_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"batches \* batch must be at most 819, the teacher_student kept .*got 9 \* 100"
    ):
        teacher_student(0).validation(9, 100)


@pytest.mark.usefixtures("unread_digits")
def test_without_scikit_learn_the_synthetic_set_stands_in_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert examples(0).kind == "teacher_student"
    with pytest.raises(ImportError, match="needs scikit-learn, which is not installed: pip install scikit-learn"):
        digits(0)


def test_texts_and_examples_are_asked_in_the_same_words(text: Corpus) -> None:
    sets: list[Data] = [text, teacher_student(0)]
    for data in sets:
        (inputs, targets), [(held_inputs, held_targets)] = (
            data.batch(0, 1, batch=4, context=8),
            data.validation(1, 4, 8),
        )
        assert (inputs.shape, targets.shape) == (held_inputs.shape, held_targets.shape)
        assert len(data.digest) == 64


def test_every_place_to_train_at_is_drawn_and_none_behind_it() -> None:
    drawn = indices(0, 0, 0, 4000, 200)
    assert set(drawn.tolist()) == set(range(200))
