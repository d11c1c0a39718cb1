"""The decaying sum of an endless stream with a state of constant size.

The state is what a chunk of the chunked form reads: the chunk before it and its own tokens so far, one by one, and the
R sums of everything further back. So it gives the same numbers as the chunked form, however the stream is cut. A sum is
read like one more token: it decays at its fixed rate from the moment at which the current chunk began. With keys there
are M sums for each fixed rate, and what is read of each is multiplied by an element of the query (`chunks.py`).

Legend: `B` batch, `T` tokens appended, `N` heads, `H` channels of a head, `M` width of a key (1: there are none), `R`
fixed rates, `P` rows times heads, `C` tokens of a chunk, `K` chunks, `E` entries: R M sums, then the 2 C tokens of two
chunks; `F`: R fixed rates, then the 2 C tokens.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor

from linnet.ops.decay.chunks import accumulate_, add_far_sums, by_key, entry_factors, exp_, near_ages, near_sums
from linnet.ops.decay.rates import RateBank
from linnet.ops.decay.reference import Keys
from linnet.ops.support import widen

CHUNKS_AT_ONCE = 64
"""Chunks of a long prompt that are computed together."""


@dataclass
class DecayBank:
    """The state of one stream per row; advanced in place.

    bank: the fixed rates; their bound holds up to an age of `bank.length`. Older sources decay like a mixture of fixed
        rates, which never grows.
    entries_BNEH, rates_BNF: the sums when the current chunk began, with the fixed rates; then the tokens of the chunk
        before the current one, and of the current one. float32 or wider.
    keys_BNCM: the keys of the tokens of the two chunks; None without keys.
    low_BNRH: the rounding errors of the sums. In ten million steps a sum is multiplied 300,000 times; without them the
        slowest sum would stop decaying.
    position: tokens of the stream so far.
    """

    bank: RateBank
    entries_BNEH: Tensor
    rates_BNF: Tensor
    low_BNRH: Tensor
    position: int = 0
    keys_BNCM: Tensor | None = None

    @classmethod
    def empty(
        cls,
        shape_BNH: tuple[int, int, int],
        bank: RateBank,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        key: int = 0,
    ) -> Self:
        """A stream without tokens. The state is in `dtype`, float32 or wider; `key`: width of a key, 0 for none."""
        (batch, heads, channels), count = shape_BNH, len(bank.rates_R)
        near, sums, wide = 2 * bank.nearest, count * max(1, key), torch.promote_types(dtype, torch.float32)
        rates_BNF = torch.zeros(batch, heads, count + near, dtype=wide, device=device)
        rates_BNF[:, :, :count] = bank.rates_R
        entries_BNEH = torch.zeros(batch, heads, sums + near, channels, dtype=wide, device=device)
        keys_BNCM = torch.zeros(batch, heads, near, key, dtype=wide, device=device) if key else None
        return cls(bank, entries_BNEH, rates_BNF, torch.zeros_like(entries_BNEH[:, :, :sums]), keys_BNCM=keys_BNCM)

    @torch.no_grad()
    def append(self, rates_BTN: Tensor, v_BTNH: Tensor, keys: Keys | None = None) -> Tensor:
        """Add tokens to the stream and return their sums, `[B, T, N, H]`; keys: those of the tokens, if the bank has
        keys.
        """
        rates_BNT, v_BNTH = rates_BTN.transpose(1, 2), v_BTNH.transpose(1, 2)
        done, outputs = 0, []
        while done < v_BNTH.shape[2]:
            # Whole chunks together if the stream is at a chunk's beginning and two chunks follow; else within a chunk.
            tokens, chunk = v_BNTH.shape[2] - done, self.bank.nearest
            inside = self.position % chunk
            if inside or tokens < 2 * chunk:
                append, count = self._append_to_chunk, min(tokens, chunk - inside)
            else:
                append, count = self._append_chunks, min(tokens // chunk, CHUNKS_AT_ONCE) * chunk
            piece = slice(done, done + count)
            piece_keys = None
            if keys is not None:
                piece_keys = Keys(*(each_BTNM[:, piece].transpose(1, 2).to(rates_BTN.dtype) for each_BTNM in keys))
            outputs.append(append(rates_BNT[:, :, piece], v_BNTH[:, :, piece], piece_keys))
            done += count
        return torch.cat([v_BNTH[:, :, :0], *outputs], dim=2).transpose(1, 2).to(v_BTNH.dtype)

    def _append_to_chunk(self, rates_BNT: Tensor, v_BNTH: Tensor, keys: Keys | None) -> Tensor:
        chunk, length = self.bank.nearest, rates_BNT.shape[2]
        fixed, sums = len(self.bank.rates_R), self.low_BNRH.shape[2]
        start = self.position % chunk
        near = slice(chunk + start, chunk + start + length)
        self.rates_BNF[:, :, fixed:][:, :, near] = rates_BNT
        self.entries_BNEH[:, :, sums:][:, :, near] = v_BNTH
        end = fixed + near.stop
        minus_ages_CF = _minus_ages(self.bank, rates_BNT.dtype, rates_BNT.device)
        weights_BNTE = exp_(self.rates_BNF[:, :, None, :end] * minus_ages_CF[start : start + length, :end])
        if length > 1:
            weights_BNTE = weights_BNTE.tril_(fixed + near.start)
        if keys is not None:
            assert self.keys_BNCM is not None
            self.keys_BNCM[:, :, near] = keys.keys
            far_BNTR, near_BNTC = torch.split(weights_BNTE, [fixed, near.stop], dim=-1)
            scores_BNTC = keys.queries @ self.keys_BNCM[:, :, : near.stop].mT
            weights_BNTE = torch.cat([by_key(far_BNTR, keys.queries), near_BNTC * scores_BNTC], dim=-1)
        self.position += length
        out_BNTH = weights_BNTE @ self.entries_BNEH[:, :, : sums + near.stop]
        if self.position % chunk == 0:
            self.begin_chunk()
        return out_BNTH

    def append_token(
        self, rates_B1N: Tensor, v_B1NH: Tensor, clock_B: Tensor, keys: Keys | None = None, *, in_place: bool = False
    ) -> Tensor:
        """`append` of one token whose position in each stream is a tensor: for graphs, which take it as an input.

        As `_append_to_chunk`, over all places, with the empty ones masked. in_place: the token is written into the
        tensors, and `begin_chunk` after the last token of a chunk is left to the caller. Otherwise the tensors are
        replaced; the next chunk is begun at every token, and the result is used after the last one of a chunk.
        """
        chunk, fixed, device = self.bank.nearest, len(self.bank.rates_R), v_B1NH.device
        start_B = clock_B % chunk
        place_B = chunk + start_B
        add_token = _write_token if in_place else _with_token
        self.rates_BNF = add_token(self.rates_BNF, rates_B1N.mT, place_B, fixed)
        self.entries_BNEH = add_token(self.entries_BNEH, v_B1NH.transpose(1, 2), place_B, self.low_BNRH.shape[2])
        filled_BF = torch.arange(fixed + 2 * chunk, device=device) <= (fixed + chunk + start_B)[:, None]
        minus_ages_CF = _minus_ages.__wrapped__(self.bank, self.rates_BNF.dtype, device)  # a graph's is not cached
        minus_ages_B1F = minus_ages_CF.index_select(0, start_B)[:, None]
        weights_BN1F = (exp_(self.rates_BNF * minus_ages_B1F) * filled_BF[:, None])[:, :, None]
        if keys is not None:
            assert self.keys_BNCM is not None
            keys = Keys(*(each_B1NM.transpose(1, 2).to(rates_B1N.dtype) for each_B1NM in keys))
            self.keys_BNCM = add_token(self.keys_BNCM, keys.keys, place_B, 0)
            far_BN1R, near_BN1W = torch.split(weights_BN1F, [fixed, 2 * chunk], dim=-1)
            scores_BN1W = keys.queries @ self.keys_BNCM.mT
            weights_BN1F = torch.cat([by_key(far_BN1R, keys.queries), near_BN1W * scores_BN1W], dim=-1)
        out_BN1H = weights_BN1F @ self.entries_BNEH
        if not in_place:
            self._begin_chunk_if(start_B + 1 == chunk)
        return out_BN1H.transpose(1, 2).to(v_B1NH.dtype)

    def _begin_chunk_if(self, is_full_B: Tensor) -> None:
        """Begin the next chunk on copies, and select them where this one is full."""
        names = ("entries_BNEH", "rates_BNF", "low_BNRH", "keys_BNCM")
        before = {name: tensor for name in names if (tensor := getattr(self, name)) is not None}
        for name, tensor in before.items():
            setattr(self, name, tensor.clone())
        self.begin_chunk()
        for name, tensor in before.items():
            is_full = is_full_B.view(-1, *(1,) * (tensor.dim() - 1))
            setattr(self, name, torch.where(is_full, getattr(self, name), tensor))

    def _append_chunks(self, rates_BNT: Tensor, v_BNTH: Tensor, keys: Keys | None) -> Tensor:
        """Append whole chunks, as the chunked form takes a segment, whose first chunk is the one before them."""
        fixed, sums = len(self.bank.rates_R), self.low_BNRH.shape[2]
        rates_PKC = self._append_to_previous(self.rates_BNF[:, :, fixed:, None], rates_BNT[..., None])[..., 0]
        v_PKCH = self._append_to_previous(self.entries_BNEH[:, :, sums:], v_BNTH)
        if keys is not None:
            assert self.keys_BNCM is not None
            q_PKCM = keys.queries.reshape(len(rates_PKC), -1, self.bank.nearest, keys.queries.shape[-1])
            keys = Keys(q_PKCM, self._append_to_previous(self.keys_BNCM, keys.keys))
        out_PKCH = widen(near_sums(rates_PKC, v_PKCH, keys))
        keys = None if keys is None else Keys(widen(keys.queries), widen(keys.keys))
        sums_PRH = add_far_sums(out_PKCH, self.bank, rates_PKC, widen(v_PKCH), self._exact_sums().flatten(0, 1), keys)
        self._keep_sums(sums_PRH.view_as(self.low_BNRH))
        self.position += v_BNTH.shape[2]
        return out_PKCH.flatten(1, 2).view(v_BNTH.shape).to(self.entries_BNEH.dtype)

    def _append_to_previous(self, stored_BNCH: Tensor, new_BNTH: Tensor) -> Tensor:
        """New chunks after the one before them, `[P, K + 1, C, H]`; the last of them is stored as the one before."""
        chunk = self.bank.nearest
        both_BNSH = torch.cat([stored_BNCH[:, :, :chunk], new_BNTH.to(stored_BNCH)], dim=2)
        stored_BNCH[:, :, :chunk] = new_BNTH[:, :, -chunk:]
        return both_BNSH.view(both_BNSH.shape[0] * both_BNSH.shape[1], -1, chunk, both_BNSH.shape[3])

    def begin_chunk(self) -> None:
        """Move the chunk before the last one into the sums; the last one takes its place."""
        chunk = self.bank.nearest
        rates_BNC, v_BNCH = (
            self.rates_BNF[:, :, len(self.bank.rates_R) :],
            self.entries_BNEH[:, :, self.low_BNRH.shape[2] :],
        )
        factors_BNCR = entry_factors(self.bank, rates_BNC[:, :, :chunk])
        if self.keys_BNCM is not None:
            factors_BNCR = by_key(factors_BNCR, widen(self.keys_BNCM[:, :, :chunk]))
        entered_BNRH = factors_BNCR.mT @ widen(v_BNCH[:, :, :chunk])
        accumulate_((self._exact_sums(), entered_BNRH), self.bank)
        self._keep_sums(entered_BNRH)
        for stored in (rates_BNC, v_BNCH, self.keys_BNCM):
            if stored is not None:
                stored[:, :, :chunk] = stored[:, :, chunk:]

    def _exact_sums(self) -> Tensor:
        return widen(self.entries_BNEH[:, :, : self.low_BNRH.shape[2]]) + self.low_BNRH

    def _keep_sums(self, exact_BNRH: Tensor) -> None:
        rounded_BNRH = exact_BNRH.to(self.low_BNRH.dtype)
        self.entries_BNEH[:, :, : self.low_BNRH.shape[2]] = rounded_BNRH
        self.low_BNRH.copy_(exact_BNRH - rounded_BNRH)


def _with_token(old_BNEH: Tensor, new_BN1H: Tensor, place_B: Tensor, before: int) -> Tensor:
    """A copy with a new token at a place of each row, counted from `before`; `[..., E]` or `[..., E, H]`."""
    if old_BNEH.dim() == 3:
        return _with_token(old_BNEH[..., None], new_BN1H[..., None], place_B, before)[..., 0]
    is_here_BW = torch.arange(old_BNEH.shape[2] - before, device=place_B.device) == place_B[:, None]
    near_BNWH = torch.where(is_here_BW[:, None, :, None], new_BN1H.to(old_BNEH.dtype), old_BNEH[:, :, before:])
    return torch.cat([old_BNEH[:, :, :before], near_BNWH], dim=2)


def _write_token(tensor_BNEH: Tensor, new_BN1H: Tensor, place_B: Tensor, before: int) -> Tensor:
    """The same in place; returns the tensor."""
    rows_B = torch.arange(place_B.shape[0], device=place_B.device)
    tensor_BNEH[rows_B, :, before + place_B] = new_BN1H[:, :, 0].to(tensor_BNEH.dtype)
    return tensor_BNEH


@lru_cache(maxsize=16)
def _minus_ages(bank: RateBank, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Minus the age of every entry for each reader of a chunk, `[C, F]`; the age of a sum is the time in the chunk."""
    with torch.inference_mode(False):
        steps_C1 = torch.arange(bank.nearest, device=device)[:, None].expand(-1, len(bank.rates_R))
        return -torch.cat([steps_C1, near_ages(bank.nearest, device)], dim=1).to(dtype)
