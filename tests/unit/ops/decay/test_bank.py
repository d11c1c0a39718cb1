from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from linnet.ops.decay.bank import DecayBank
from linnet.ops.decay.chunks import accumulate_
from linnet.ops.decay.rates import rate_bank
from linnet.ops.decay.reference import decay_reference
from linnet.ops.decay.sums import CHUNK, decay_chunked


def stream(length: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rates = 10 ** (-7 + 8.477 * torch.rand(2, length, 2, dtype=torch.float64, generator=generator))
    v = torch.randn(2, length, 2, 3, dtype=torch.float64, generator=generator)
    return rates.to(torch.promote_types(dtype, torch.float32)), v.to(dtype)


def empty(
    shape: tuple[int, int, int], length: int, chunk: int = CHUNK, dtype: torch.dtype = torch.float32
) -> DecayBank:
    return DecayBank.empty(shape, rate_bank(1e-5, chunk, length), dtype)


def feed(bank: DecayBank, rates: Tensor, v: Tensor, cuts: list[int]) -> Tensor:
    bounds = [0, *sorted(cuts), rates.shape[1]]
    return torch.cat([bank.append(rates[:, a:b], v[:, a:b]) for a, b in pairwise(bounds)], dim=1)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 70), st.integers(1, 9), st.lists(st.integers(0, 70), max_size=8), st.integers(0, 2**31))
def test_a_stream_in_any_pieces_equals_the_chunked_form(length, chunk, cuts, seed):
    rates, v = stream(length, seed)
    bank = empty((2, 2, 3), 1 << (length - 1).bit_length(), chunk, torch.float64)
    actual = feed(bank, rates, v, [min(cut, length) for cut in cuts])
    torch.testing.assert_close(actual, decay_chunked(rates, v, length, 1e-5, chunk), rtol=1e-10, atol=1e-10)


def nbytes(bank: DecayBank) -> int:
    return sum(tensor.nbytes for tensor in (bank.entries_BNEH, bank.rates_BNF, bank.low_BNRH))


def test_its_bytes_are_constant_and_stated():
    rates, v = stream(200, dtype=torch.bfloat16)
    bank = empty((2, 2, 3), 65_536, dtype=torch.bfloat16)
    before = nbytes(bank)
    bank.append(rates, v)
    assert nbytes(bank) == before == 2 * 2 * ((38 + 64) * (3 + 1) + 38 * 3) * 4


def test_bfloat16_and_float32_streams_keep_their_precision():
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2**-7)):
        rates, v = stream(300, dtype=dtype)
        bank = empty((2, 2, 3), 512, dtype=dtype)
        out = feed(bank, rates, v, [100, 101, 250])
        error = (out.double() - decay_reference(rates.double(), v.double(), 300)).abs()
        assert out.dtype == dtype
        assert (error <= tolerance * v.double().abs().cumsum(1)).all()


def test_ages_of_ten_million_steps():
    """The sums decay chunk by chunk as often as in the stream, so that rounding accumulates in the same way."""
    chunk, chunks = CHUNK, 312_500
    bank = empty((1, 1, 6), chunk * chunks + 1000)
    rates = torch.tensor([1e-9, 1e-7, 3e-7, 1e-6, 1e-4, 30.0])
    bank.append(rates[None, :, None], torch.eye(6)[None, :, None])
    nothing = torch.zeros(1, 100, 1, 6)
    bank.append(torch.ones(1, 100, 1), nothing)
    later = torch.zeros(10, *bank.low_BNRH.shape, dtype=torch.float64)
    for _ in range(chunks // len(later)):
        accumulate_([bank._exact_sums(), *later.zero_()], bank.bank)
        bank._keep_sums(later[-1])
    bank.position += chunk * chunks
    out = bank.append(torch.ones(1, 1, 1), nothing[:, :1])[0, 0, 0]
    ages = bank.position - 1 - torch.arange(6)
    assert ages.min() > 10**7
    torch.testing.assert_close(out, torch.exp(-rates.double() * ages).float(), rtol=0, atol=1e-5)


def test_no_weight_grows_beyond_the_length_of_the_bank():
    bank = empty((1, 1, 1), 64, 4)
    bank.append(torch.full((1, 64, 1), 1e-7), torch.ones(1, 64, 1, 1))
    for _ in range(30):
        out = bank.append(torch.ones(1, 64, 1), torch.zeros(1, 64, 1, 1))
    assert out.abs().max() <= 64


@pytest.mark.parametrize("in_place", [False, True])
def test_a_token_at_a_tensor_position_equals_one_at_an_integer_position(in_place: bool):
    rates, v = stream(3 * 4 + 2)
    plain, in_graph = (empty((2, 2, 3), 64, chunk=4, dtype=torch.float64) for _ in range(2))
    for place in range(rates.shape[1]):
        token = rates[:, place : place + 1], v[:, place : place + 1]
        out = in_graph.append_token(*token, torch.tensor([place, place]), in_place=in_place)
        if in_place and (place + 1) % 4 == 0:
            in_graph.begin_chunk()
        torch.testing.assert_close(out, plain.append(*token), atol=1e-12, rtol=0)
    sums = slice(plain.low_BNRH.shape[2])
    torch.testing.assert_close(in_graph.entries_BNEH[:, :, sums], plain.entries_BNEH[:, :, sums])
