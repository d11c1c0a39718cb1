"""The decaying sum of an endless stream from a state of constant size.

The state is what a chunk of the chunked form reads: the chunk before it and itself so far, token by token, and the R
sums of all that lies further back. So it gives the same numbers as the chunked form, however the stream is cut.

Legend: `B` batch, `T` tokens appended, `N` heads, `H` channels of a head, `R` fixed rates, `W` tokens of two chunks.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor

from linnet.ops.decay.chunked import add_far_sums, entry_ages, near_ages, near_sums, readout, run_on
from linnet.ops.decay.rates import RateBank, coefficients

CHUNKS_AT_ONCE = 64
"""Chunks of a long prompt that are taken together."""


@dataclass
class DecayBank:
    """The state of one stream per row; advanced in place.

    bank: the fixed rates; their bound holds up to an age of `bank.length`. Older sources fade like a mixture of fixed
        rates, which never grows.
    sums_BNRH: what is left of each fixed rate's sum when the current chunk begins.
    rates_BNW, v_BNWH: the chunk before the current one, and the current one.
    position: tokens of the stream so far.
    """

    bank: RateBank
    sums_BNRH: Tensor
    rates_BNW: Tensor
    v_BNWH: Tensor
    position: int = 0

    @classmethod
    def empty(
        cls,
        shape_BNH: tuple[int, int, int],
        bank: RateBank,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> Self:
        """No token yet. `dtype` is that of the quantities; rates are float32 or wider, sums float64.

        In ten million steps a sum is multiplied 300,000 times; rounded to float32 the slowest would stop fading.
        """
        (batch, heads, channels), window = shape_BNH, 2 * bank.nearest
        wide = torch.promote_types(dtype, torch.float32)
        return cls(
            bank,
            torch.zeros(batch, heads, len(bank.rates_R), channels, dtype=torch.float64, device=device),
            torch.zeros(batch, heads, window, dtype=wide, device=device),
            torch.zeros(batch, heads, window, channels, dtype=dtype, device=device),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the state, whatever the position."""
        return self.sums_BNRH.nbytes + self.rates_BNW.nbytes + self.v_BNWH.nbytes

    @torch.no_grad()
    def append(self, rates_BTN: Tensor, v_BTNH: Tensor) -> Tensor:
        """Add tokens to the stream and give their sums, `[B, T, N, H]`."""
        rates_BNT, v_BNTH = rates_BTN.transpose(1, 2), v_BTNH.transpose(1, 2)
        done, outputs = 0, []
        while done < v_BNTH.shape[2]:
            whole, count = self._next_piece(v_BNTH.shape[2] - done)
            piece = slice(done, done + count)
            append = self._append_chunks if whole else self._append_to_chunk
            outputs.append(append(rates_BNT[:, :, piece], v_BNTH[:, :, piece]))
            done += count
        return torch.cat(outputs, dim=2).transpose(1, 2) if outputs else torch.empty_like(v_BTNH)

    def _next_piece(self, tokens: int) -> tuple[bool, int]:
        """Whether the next of so many tokens fill chunks of their own, and how many are taken at once."""
        chunk = self.bank.nearest
        inside = self.position % chunk
        if inside or tokens < 2 * chunk:
            return False, min(tokens, chunk - inside)
        return True, min(tokens // chunk, CHUNKS_AT_ONCE) * chunk

    def _append_chunks(self, rates_BNT: Tensor, v_BNTH: Tensor) -> Tensor:
        """Whole chunks, as the chunked form takes a segment: its first one lies before them."""
        chunk = self.bank.nearest
        streams, channels = v_BNTH.shape[0] * v_BNTH.shape[1], v_BNTH.shape[3]
        rates_PKC = torch.cat([self.rates_BNW[:, :, :chunk], rates_BNT], dim=2).view(streams, -1, chunk)
        v_PKCH = torch.cat([self.v_BNWH[:, :, :chunk], v_BNTH], dim=2).view(streams, -1, chunk, channels)
        out_PKCH = near_sums(rates_PKC, v_PKCH).double()
        sums_PRH = self.sums_BNRH.flatten(0, 1)
        sums_PRH.copy_(add_far_sums(out_PKCH, self.bank, rates_PKC, v_PKCH.double(), sums_PRH.clone()))
        self.rates_BNW[:, :, :chunk] = rates_BNT[:, :, -chunk:]
        self.v_BNWH[:, :, :chunk] = v_BNTH[:, :, -chunk:]
        self.position += v_BNTH.shape[2]
        return out_PKCH.flatten(1, 2).view(v_BNTH.shape).to(v_BNTH.dtype)

    def _append_to_chunk(self, rates_BNT: Tensor, v_BNTH: Tensor) -> Tensor:
        chunk, length = self.bank.nearest, rates_BNT.shape[2]
        start = self.position % chunk
        here, end = slice(start, start + length), chunk + start + length
        self.rates_BNW[:, :, end - length : end], self.v_BNWH[:, :, end - length : end] = rates_BNT, v_BNTH
        minus_ages_CW, readout_CR = _tables(self.bank, rates_BNT.dtype, rates_BNT.device)
        weights = (self.rates_BNW[:, :, None, :end] * minus_ages_CW[here, :end]).exp_()
        if length > 1:
            weights = weights.tril_(chunk + start)
        near_BNTH = weights.to(v_BNTH.dtype) @ self.v_BNWH[:, :, :end]
        far_BNTH = readout_CR[here] @ self.sums_BNRH
        self.position += length
        if self.position % chunk == 0:
            self._begin_chunk()
        return near_BNTH + far_BNTH.to(v_BNTH.dtype)

    def _begin_chunk(self) -> None:
        """The chunk before the last one goes into the sums, the last one takes its place."""
        chunk = self.bank.nearest
        rates_BNC = self.rates_BNW[:, :, :chunk]
        entry_BNC = torch.exp(-rates_BNC.double() * entry_ages(chunk, rates_BNC.device))
        entries_BNCR = (coefficients(self.bank, rates_BNC) * entry_BNC[..., None]).to(self.sums_BNRH)
        entered = entries_BNCR.mT @ self.v_BNWH[:, :, :chunk].to(self.sums_BNRH)
        run_on((self.sums_BNRH, entered), self.bank)
        self.sums_BNRH.copy_(entered)
        self.rates_BNW[:, :, :chunk] = self.rates_BNW[:, :, chunk:]
        self.v_BNWH[:, :, :chunk] = self.v_BNWH[:, :, chunk:]


@lru_cache(maxsize=16)
def _tables(bank: RateBank, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """What every step of decoding needs again: ages of the near tokens, times -1, `[C, W]`, and the readout."""
    with torch.inference_mode(False):
        like = torch.empty(0, dtype=torch.float64, device=device)
        return -near_ages(bank.nearest, device).to(dtype), readout(bank, like)
