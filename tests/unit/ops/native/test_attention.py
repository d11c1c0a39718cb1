import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.ops.native import library
from linnet.ops.native.attention import attention_past, attention_row, head_matrices_row

COMPILED = library(torch.device("cpu"))
pytestmark = pytest.mark.skipif(COMPILED is None, reason="no compiler, or another processor")


@settings(max_examples=60, deadline=None)
@given(
    heads=st.integers(1, 3),
    shared=st.integers(1, 3),
    width=st.integers(1, 75),
    position=st.integers(0, 40),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_attention_row_equals_softmax_over_the_tokens_so_far(
    heads: int, shared: int, width: int, position: int, dtype: torch.dtype
):
    draw = torch.Generator().manual_seed(heads + shared + width + position)
    keys, values = (torch.randn(heads, 45, width, generator=draw).to(dtype) for _ in range(2))
    behind = keys[:, position + 1 :].clone()
    q = torch.randn(heads, shared, width, generator=draw) * 3
    k, v = (torch.randn(heads, width, generator=draw) for _ in range(2))
    found = attention_row(COMPILED, keys, values, 0.3)(q, k, v, position)
    assert torch.equal(keys[:, position], k.to(dtype))
    assert torch.equal(values[:, position], v.to(dtype))
    assert torch.equal(keys[:, position + 1 :], behind)
    seen, read = keys[:, : position + 1].double(), values[:, : position + 1].double()
    expected = (q.double() @ seen.transpose(1, 2) * 0.3).softmax(dim=2) @ read
    torch.testing.assert_close(found, expected.float().view(1, -1), rtol=2e-5, atol=2e-5)


@settings(max_examples=60, deadline=None)
@given(
    seen=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    heads=st.integers(1, 3),
    shared=st.integers(1, 3),
    width=st.integers(1, 75),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_each_stream_reads_up_to_its_length(seen: list[int], heads: int, shared: int, width: int, dtype: torch.dtype):
    draw = torch.Generator().manual_seed(sum(seen) + heads + shared + width)
    room = [torch.randn(len(seen), heads, 45, width, generator=draw).to(dtype) for _ in range(2)]
    keys, values = (x[:, :, :40] for x in room)
    q = torch.randn(len(seen), heads, shared, width, generator=draw) * 3
    found = attention_past(COMPILED, q, keys, values, 0.3, torch.tensor(seen))
    for stream, tokens in enumerate(seen):
        past, read = (x[stream, :, :tokens].double() for x in (keys, values))
        expected = (q[stream].double() @ past.transpose(1, 2) * 0.3).softmax(dim=2) @ read
        torch.testing.assert_close(found[stream], expected.float(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("seen", [[0, 3], [3, 9], [3], [1.0, 2.0]])
def test_lengths_beyond_the_capacity_are_refused(seen: list[int]):
    keys = torch.zeros(2, 1, 8, 4).bfloat16()
    with pytest.raises(ValueError, match="1 to 8 tokens of 2 streams"):
        attention_past(COMPILED, torch.ones(2, 1, 1, 4), keys, keys, 1.0, torch.tensor(seen))


def test_keys_and_values_of_streams_must_have_the_same_layout():
    keys, q = torch.zeros(2, 1, 8, 4).bfloat16(), torch.ones(2, 1, 1, 4)
    one = torch.ones(2, dtype=torch.int64)
    for values in (keys.float(), keys[:, :, 1:], keys.transpose(2, 3), keys[:1], keys.half()):
        pair = (values, values) if values.dtype == torch.half else (keys, values)
        with pytest.raises(ValueError, match="1 heads of 4, alike"):
            attention_past(COMPILED, q, *pair, 1.0, one)


def test_scores_of_any_size():
    keys, values = torch.zeros(1, 20, 8), torch.randn(1, 20, 8)
    keys[0, :9] = torch.randn(9, 8) * 1e4
    q = torch.randn(1, 1, 8) * 1e3
    found = attention_row(COMPILED, keys, values, 1.0)(q, torch.zeros(1, 8), torch.ones(1, 8), 9)
    expected = (q @ keys[:, :10].transpose(1, 2)).softmax(dim=2) @ values[:, :10]
    torch.testing.assert_close(found, expected.view(1, -1))


def test_nan_is_propagated():
    keys, values = torch.zeros(1, 20, 8), torch.randn(1, 20, 8)
    keys[0, 3] = torch.nan
    read = attention_row(COMPILED, keys, values, 1.0)
    assert read(torch.ones(1, 1, 8), torch.zeros(1, 8), torch.zeros(1, 8), 12).isnan().all()


def test_a_position_beyond_the_capacity_is_refused():
    read = attention_row(COMPILED, torch.zeros(1, 4, 8), torch.zeros(1, 4, 8), 1.0)
    with pytest.raises(ValueError, match="room"):
        read(torch.ones(1, 1, 8), torch.zeros(1, 8), torch.zeros(1, 8), 4)


@pytest.mark.parametrize(("heads", "shared", "width"), [(1, 1, 1), (2, 1, 13), (3, 2, 64)])
def test_head_matrices_row_multiplies_queries_with_the_operator(heads: int, shared: int, width: int):
    q, operator = torch.randn(heads, shared, width), torch.randn(heads, width, width)
    torch.testing.assert_close(head_matrices_row(COMPILED, operator)(q), q @ operator, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=f"{heads} heads of {width}"):
        head_matrices_row(COMPILED, operator)(q[..., 1:])
