"""A few fixed rates represent every rate: `exp(-rate s) ~= sum_r phi_r(rate) exp(-mu_r s)`, s from 0 to a length.

The `mu` are Chebyshev points and the `phi` the polynomials that are 1 at one of them and 0 at the others, in the
variable `y`, which is linear in `log(rate + offset)`: so the sum interpolates between the fixed rates, the
coefficients stay below 1.3, and nothing is lost to cancellation. A source enters the bank at an age of more than
`nearest`, so that its error is multiplied by `w = exp(-rate nearest)`; rates above `largest` are treated as `largest`,
because w makes them negligible. `docs/layers/ted.md` derives the bound.

Legend: `R` fixed rates.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from linnet.ops.support import accumulation_dtype, is_exporting, widen

OFFSET = 8
"""`offset * length`: the one of 0.5, 1, 2, 4, 8, 16 that needs the fewest rates (`experiments/LOG.md`)."""

MAX_RATES = 400
MIN_DISTANCE = 1e-14
"""Smallest distance of y from that of a fixed rate; nearer rates take the coefficients of the fixed rate."""
MIN_TOLERANCE, MAX_TOLERANCE = 1e-10, 0.1
"""Below the smallest tolerance the rounding of float64 would dominate."""


@dataclass(frozen=True, eq=False)
class RateBank:
    """Fixed rates, the map to the variable y, and the error bounds found for them.

    rates_R: the fixed rates `mu`, per step, float64.
    bound: largest error of a weight `exp(-rate age)` (1 at age 0), for every rate >= 0 and every age from nearest on.
    gradient_bound: largest error of `rate * d weight / d rate`, divided by the largest value 1 / e of that itself.
    """

    nearest: int
    length: int
    offset: float
    half: float
    rates_R: Tensor
    cardinal_RR: Tensor
    bound: float = math.inf
    gradient_bound: float = math.inf

    @property
    def largest(self) -> float:
        """Larger rates are treated as this one."""
        return self.offset * math.expm1(2 * self.half)


@lru_cache(maxsize=64)
def rate_bank(tolerance: float, nearest: int, length: int) -> RateBank:
    """The smallest bank whose two bounds are at most `tolerance`, for ages from `nearest` to `nearest + length`.

    Raises:
        ValueError: the tolerance lies outside `MIN_TOLERANCE` to `MAX_TOLERANCE`.
    """
    if not MIN_TOLERANCE <= tolerance <= MAX_TOLERANCE:
        raise ValueError(f"tolerance: {tolerance}: must be from {MIN_TOLERANCE} to {MAX_TOLERANCE}")
    with torch.device("cpu"), torch.inference_mode(False):  # whatever the modes are, because the bank is cached
        return _smallest_bank(tolerance, nearest, length)


@lru_cache(maxsize=64)
def bank_on(bank: RateBank, device: torch.device) -> RateBank:
    """The bank with its tensors on a device, copied once: each copy to a GPU waits until the GPU is idle."""
    if bank.rates_R.device == device and bank.rates_R.dtype == accumulation_dtype(device):
        return bank
    with torch.inference_mode(False):
        wide = accumulation_dtype(device)
        tensors = bank.rates_R.to(device, wide), bank.cardinal_RR.to(device, wide)
        return replace(bank, rates_R=tensors[0], cardinal_RR=tensors[1])


def _smallest_bank(tolerance: float, nearest: int, length: int) -> RateBank:
    # Rates of `exponent / nearest` and more may be treated as one: both errors are below the tolerance.
    exponent = 2.0
    while _fast_rate_error(exponent) > tolerance:
        exponent += 0.01
    largest = exponent / nearest
    for count in range(4, MAX_RATES):
        bank = _bank(count, largest, nearest, length)
        if max(_bounds(bank, 2)) > tolerance:  # a cheap check first
            continue
        bound, gradient_bound = _bounds(bank, 16)
        if max(bound, gradient_bound) <= tolerance:
            return replace(bank, bound=bound, gradient_bound=gradient_bound)
    raise AssertionError(f"no bank of {MAX_RATES} rates for a tolerance of {tolerance}")


def _fast_rate_error(exponent: float) -> float:
    """Largest error of the derivative, as in `gradient_bound`, if rates above `exponent / nearest` are treated as one.

    With x = rate nearest, the derivative of w contributes e x e^-x, and that of `exp(-rate s)` at most e^-x. The error
    of weights is at most e^-x.
    """
    return (math.e * exponent + 1) * math.exp(-exponent)


def _bank(count: int, largest: float, nearest: int, length: int) -> RateBank:
    offset = OFFSET / length
    half = math.log1p(largest / offset) / 2
    angles_R = _chebyshev_angles(count)
    orders_R = torch.arange(count, dtype=torch.float64)
    # At the points sum_k' T_k(y_r) T_k(y) / (count / 2) is 1 for y = y_r and 0 for the others; k = 0 counts half.
    norms_R = torch.where(orders_R == 0, 0.5, 1.0).double() * (2 / count)
    cardinal_RR = norms_R[:, None] * torch.cos(orders_R[:, None] * angles_R)
    rates_R = offset * torch.expm1(half * (1 + angles_R.cos()))
    return RateBank(nearest, length, offset, half, rates_R, cardinal_RR)


def _chebyshev_angles(count: int) -> Tensor:
    return (torch.arange(count, dtype=torch.float64) + 0.5) * (math.pi / count)


def _bounds(bank: RateBank, density: int) -> tuple[float, float]:
    """Largest error of a weight and of its derivative, as `RateBank` has them.

    Both are measured at `density * R` Chebyshev points of each variable, log(rate + offset) and log(age + 1 / largest).
    Between these they are larger by at most `1 / cos(pi / 8)` per variable if they are polynomials of degree 4 R and
    the density is 16 (Ehlich and Zeller 1964), which they are except for parts far below the tolerance.
    """
    samples_X = 1 + _chebyshev_angles(density * len(bank.rates_R)).cos()
    rates_X1 = bank.offset * torch.expm1(bank.half * samples_X)[:, None]
    ages_X = torch.expm1(math.log1p(bank.length * bank.largest) / 2 * samples_X) / bank.largest
    coefficients_XR, slopes_XR = coefficients_and_slopes(bank, rates_X1[:, 0])
    fixed_RX, weights_XX = torch.exp(-bank.rates_R[:, None] * ages_X), torch.exp(-rates_X1 * ages_X)
    errors_XX = coefficients_XR @ fixed_RX - weights_XX
    slope_errors_XX = slopes_XR @ fixed_RX + ages_X * weights_XX - bank.nearest * errors_XX
    entry_X1 = torch.exp(-rates_X1 * bank.nearest)
    between = math.cos(math.pi / 8) ** -2
    bound = between * float((entry_X1 * errors_XX).abs().max())
    gradient_bound = between * math.e * float((entry_X1 * rates_X1 * slope_errors_XX).abs().max())
    exponent = bank.largest * bank.nearest
    return max(bound, math.exp(-exponent)), max(gradient_bound, _fast_rate_error(exponent))


def coefficients(bank: RateBank, rates: Tensor) -> Tensor:
    """`phi_r(rate)` in float64, `[..., R]`."""
    if is_exporting():
        # Runtimes for graphs have no arc cosine in float64, so the same numbers come from `barycentric` points and
        # factors: `(c_r / (y - y_r)) / sum_s c_s / (y - y_s)`.
        is_here = rates.device.type == "cpu"
        points_R, factors_R = barycentric(bank) if is_here else _barycentric_on(bank, rates.device)
        distances = _places(bank, rates)[..., None] - points_R
        quotients = factors_R / distances.masked_fill(distances.abs() < MIN_DISTANCE, MIN_DISTANCE)
        coefficients_R: Tensor = quotients / quotients.sum(-1, keepdim=True)
        return coefficients_R
    angles, cardinal_RR = _angles(bank, rates), bank_on(bank, rates.device).cardinal_RR
    orders_R = torch.arange(len(bank.rates_R), dtype=angles.dtype, device=rates.device)
    return torch.cos(orders_R * angles) @ cardinal_RR


def coefficients_and_slopes(bank: RateBank, rates: Tensor) -> tuple[Tensor, Tensor]:
    """`phi_r(rate)` and `d phi_r / d rate` in float64, both `[..., R]`."""
    angles, cardinal_RR = _angles(bank, rates), bank_on(bank, rates.device).cardinal_RR
    orders_R = torch.arange(len(bank.rates_R), dtype=angles.dtype, device=rates.device)
    # d T_k(y) / d y = k sin(k angle) / sin(angle)
    slopes = orders_R * torch.sin(orders_R * angles) / torch.sin(angles)
    inner = (rates < bank.largest) / (bank.half * (widen(rates) + bank.offset))
    return torch.cos(orders_R * angles) @ cardinal_RR, (slopes * inner[..., None]) @ cardinal_RR


def barycentric(bank: RateBank) -> Tensor:
    """The points `y_r` and factors `c_r` of `phi_r(y) = c_r T_R(y) / (y - y_r)`, the zeros of T_R: `[2, R]`.

    The same polynomials as `coefficients`, by one quotient each (Berrut and Trefethen, SIAM Review 46, 2004).
    T_R is the Chebyshev polynomial.
    """
    angles_R = _chebyshev_angles(len(bank.rates_R))
    signs_R = 1 - 2 * (torch.arange(len(angles_R)) % 2)
    return torch.stack([angles_R.cos(), signs_R * angles_R.sin() / len(angles_R)])


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _barycentric_on(bank: RateBank, device: torch.device) -> Tensor:
    """The same on a device, copied once: a recorded step cannot copy it."""
    return barycentric(bank).to(device)


def barycentric_places(bank: RateBank, rates: Tensor) -> Tensor:
    """For each rate: `d y / d rate`, y, `T_R(y)`, its first derivative, half its second, a sixth of its third.

    `[..., 6]` in float64. Near a fixed rate, where the slope of phi_r as a quotient would be 0 / 0, it is `c_r` times
    the fifth minus `y - y_r` times the sixth, up to `(y - y_r)^2`. Both follow from `(1 - y^2) T_2 = y T_1 - R^2 T_0`.
    """
    count, angle = len(bank.rates_R), _angles(bank, rates)[..., 0]
    y, value = angle.cos(), torch.cos(count * angle)
    slope = count * torch.sin(count * angle) / torch.sin(angle)
    one_minus_y2 = (1 - y * y).clamp(min=1e-8)  # at the ends there is no fixed rate
    second = (y * slope - count**2 * value) / one_minus_y2
    third = (3 * y * second + (1 - count**2) * slope) / one_minus_y2
    inner = (rates < bank.largest) / (bank.half * (widen(rates) + bank.offset))
    return torch.stack([inner, y, value, slope, second / 2, third / 6], dim=-1)


def _places(bank: RateBank, rates: Tensor) -> Tensor:
    """y of each rate, from -1 to 1."""
    y = torch.log1p(widen(rates) / bank.offset) / bank.half - 1
    return y.clamp(max=1)


def _angles(bank: RateBank, rates: Tensor) -> Tensor:
    """The angle of `y = cos(angle)`, `[..., 1]`; at a distance from the ends, where its sine would be 0."""
    return _places(bank, rates).acos().clamp(1e-8, math.pi - 1e-8)[..., None]
