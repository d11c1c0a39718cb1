import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from linnet.data.shards import Shard, TokenSequence
from linnet.data.windows import document_windows

END = 9


def sequence_of(text: str, shards: int = 2) -> TokenSequence:
    """Each character a token; a full stop is the end between documents."""
    tokens = np.array([END if character == "." else 1 for character in text], dtype=np.uint16)
    return TokenSequence("text", [Shard(part) for part in np.array_split(tokens, shards)])


def cut(text: str, context: int) -> list[tuple[int, int]]:
    windows = document_windows(sequence_of(text), END, context)
    return list(zip(windows.starts.tolist(), windows.fresh.tolist(), strict=True))


def test_a_window_ends_with_the_last_document_that_fits() -> None:
    #    0   4   8   12
    assert cut(".aaa.bbb.ccc.", 9) == [(0, 8), (8, 4)]
    assert cut(".aaa.bbb.ccc.", 8) == [(0, 8), (8, 4)]
    assert cut(".aaa.bbb.ccc.", 7) == [(0, 4), (4, 4), (8, 4)]


def test_a_long_document_fills_windows_and_its_rest_shares_one() -> None:
    assert cut(".aaaaaaaaaa.b.cccccc.", 5) == [(0, 5), (5, 5), (10, 3), (13, 5), (18, 2)]


def test_a_text_without_ends_is_cut_evenly() -> None:
    assert cut("aaaaaaaaaaaa", 5) == [(0, 5), (5, 5), (10, 1)]
    assert cut("a", 5) == []


@given(text=st.text(alphabet="ab.", max_size=80), context=st.integers(1, 20))
def test_windows_join_and_break_off_a_document_only_where_it_does_not_fit(text: str, context: int) -> None:
    windows = cut(text, context)
    assert sum(fresh for _, fresh in windows) == max(0, len(text) - 1)
    for (start, fresh), (following, _) in itertools.pairwise(windows):
        assert following == start + fresh and 1 <= fresh <= context
        assert text[following] == "." or (fresh == context and "." not in text[start + 1 : following + 1])


def test_whole_windows_have_room_for_their_last_target() -> None:
    sequence = sequence_of(".aaa.bbb.ccc.")
    windows = document_windows(sequence, END, 8)
    assert windows.whole(sequence, 8).tolist() == [0, 4]  # [8] has no room: the end is read from 4
    assert windows.whole(sequence, 4).tolist() == [0, 8]
    assert windows.whole(sequence, 11).tolist() == [0, 1]


@given(text=st.text(alphabet="ab.", min_size=1, max_size=40), shards=st.integers(1, 5))
def test_positions_are_found_across_shards(text: str, shards: int) -> None:
    assert sequence_of(text, shards).positions(END).tolist() == [i for i, c in enumerate(text) if c == "."]
