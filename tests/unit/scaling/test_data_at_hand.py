"""How far the text at hand goes."""

from pathlib import Path

import pytest

from linnet.core.errors import UserError
from linnet.data.prepare import prepare_texts
from linnet.scaling.data_at_hand import DataAtHand, read_data_at_hand

DATA = DataAtHand(Path("data"), 1_000_000, 3.0, 4096)


def test_epochs_are_passes_over_the_text():
    assert DATA.epochs(2.5e6) == 2.5


def test_repeated_text_is_worth_less_and_less():
    """Muennighoff et al.: nearly as good as new up to 4 epochs, and never more than 16.4 times the text."""
    assert DATA.worth(0.5e6) == 0.5e6
    assert DATA.worth(1e6) == 1e6
    assert DATA.worth(4e6) == pytest.approx(3.7258e6, rel=1e-4)
    assert DATA.worth(16.387756e6) == pytest.approx(1e6 + 15.387756e6 * (1 - 2.718281828**-1))
    assert DATA.worth(1e9) == pytest.approx(16.387756e6)


def test_tokens_bytes_and_vocabulary_are_those_of_the_training_split(tmp_path: Path):
    prepare_texts(["abc"] * 10, ["defg"], tmp_path / "data", tokenizer="bytes")
    found = read_data_at_hand(tmp_path / "data")
    assert found.tokens == 41  # an end token before each document, and one at the end
    assert found.bytes_per_token == pytest.approx(30 / 41)
    assert found.vocab_size == 257


def test_a_folder_without_data_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="not a data folder"):
        read_data_at_hand(tmp_path)
