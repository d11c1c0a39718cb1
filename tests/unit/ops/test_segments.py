import pytest

from linnet.ops import segments
from linnet.ops.segments import segment_length, segment_slices


def test_a_segment_is_as_many_whole_chunks_as_have_so_many_numbers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(segments, "SEGMENT_NUMBERS", 1000)
    monkeypatch.setattr(segments, "SEGMENT_NUMBERS_DEVICE", 4000)
    assert segment_length(2, 5, 8) == 8 * (1000 // 80)
    assert segment_length(2, 5, 8, "cuda") == 8 * (4000 // 80)
    assert segment_length(100, 100, 8) == 8


@pytest.mark.parametrize("length", [1, 7, 8, 9, 24])
def test_segments_follow_each_other_to_the_end(length: int):
    places = segment_slices(length, 8)
    assert [place for part in places for place in range(length)[part]] == list(range(length))
    assert all(part.stop - part.start == 8 for part in places[:-1])
