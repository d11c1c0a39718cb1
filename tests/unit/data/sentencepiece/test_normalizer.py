import pytest

from linnet.data.sentencepiece.normalizer import Normalizer


@pytest.mark.parametrize(
    ("dummy_prefix", "collapse", "expected"),
    [
        (True, True, ["", "", "▁a", "▁a▁b", "▁\ta", "▁▁a"]),
        (False, True, ["", "", "a", "a▁b", "\ta", "▁a"]),
        (True, False, ["", "▁▁", "▁a", "▁▁a▁▁▁b▁", "▁\ta▁", "▁▁a▁▁"]),
        (False, False, ["", "▁", "a", "▁a▁▁▁b▁", "\ta▁", "▁a▁▁"]),
    ],
)
def test_spaces(dummy_prefix: bool, collapse: bool, expected: list[str]) -> None:
    normalizer = Normalizer(None, [], dummy_prefix, collapse)
    assert [normalizer.normalize(text) for text in ["", " ", "a", " a   b ", "\ta ", "▁a▁ "]] == expected
