"""What decides between two forms of an operation on a CPU, beside sizes and dtypes."""

import platform
from pathlib import Path

import torch


def _is_intel() -> bool:
    """Whether Intel made the processor: MKL asks the same question before it chooses its code."""
    cpuinfo = Path("/proc/cpuinfo")
    named = cpuinfo.read_text(errors="replace") if cpuinfo.is_file() else platform.processor()
    return "GenuineIntel" in named


HAS_MKL = bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]
"""Whether this PyTorch calls MKL, the library behind its products in float32."""

MKL_IS_FAST = HAS_MKL and _is_intel()
"""Whether MKL runs its best code here; on other processors small and thin products take several times as long."""
