"""Sentences that a status can carry."""

import pytest

from serving_adapter.sentences import MAX_SENTENCE_BYTES, bounded, printable


def test_a_sentence_that_fits_stays_as_it_is():
    assert bounded("x" * MAX_SENTENCE_BYTES) == "x" * MAX_SENTENCE_BYTES


@pytest.mark.parametrize("character", ["x", "ä", "\N{GRINNING FACE}", "\ud800"])
def test_a_longer_one_ends_in_dots_and_has_no_broken_character(character: str):
    told = bounded(character * 10 * MAX_SENTENCE_BYTES)
    assert told.endswith(" ...")
    assert len(told.encode()) <= MAX_SENTENCE_BYTES + len(" ...")


def test_half_a_character_is_told_as_a_question_mark():
    assert bounded("a\ud800") == "a?"


def test_what_moves_the_cursor_is_not_printed():
    assert printable("a\x1b[2J\tb\r\nä\u202e") == "a\ufffd[2J\tb\ufffd\nä\ufffd"
