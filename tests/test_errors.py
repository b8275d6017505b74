"""Messages: what was wanted, what came, what to do, in a line that fits on a screen."""

from __future__ import annotations

import pytest

import fpsim as fp
from fpsim.errors import unknown


def message(word: str) -> str:
    with pytest.raises(ValueError, match="unit must be one of") as refused:
        fp.unit(word)
    return str(refused.value)


def test_an_unknown_unit_gives_the_nearest_three_their_number_and_how_to_list_them() -> None:
    assert message("hoper_e4m3_f32") == (
        "unit must be one of the 150 that fp.units() or `fpsim units` lists, such as hopper_e4m3_f32, "
        "hopper_mma_e4m3_f32, hopper_e5m2_f32; got 'hoper_e4m3_f32'. Did you mean 'hopper_e4m3_f32'?"
    )


@pytest.mark.parametrize("arch", ["blackwell", "hopper", "pascal", ""])
def test_an_unknown_unit_is_refused_in_few_words(arch: str) -> None:
    assert len(message(f"{arch}_e9m9_f32")) < 250


def test_a_word_that_starts_a_name_comes_before_those_that_resemble_it() -> None:
    assert "such as blackwell_mxfp4_block32_f32, blackwell_mxfp4_block16_f32, " in message("blackwell_mxfp4")


def test_few_words_are_all_listed() -> None:
    assert str(unknown("mode", "upp", ["up", "down"])) == "mode must be one of up, down; got 'upp'. Did you mean 'up'?"
