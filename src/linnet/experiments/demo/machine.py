"""The machine that a demo ran on, and the programs, by name: a speed means nothing without them."""

import os
import platform
from pathlib import Path

import torch

from linnet import __version__
from linnet.present import numbers


def describe_machine(device: torch.device, precision: str) -> dict[str, str]:
    """Facts for people. `precision`: of the products in training."""
    facts = {
        "processor": _processor(),
        "cores": f"{os.cpu_count()}, of which PyTorch uses {torch.get_num_threads()}",
        "memory": numbers.binary(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
    }
    if device.type == "cuda":
        facts["GPU"] = torch.cuda.get_device_name(device)
    return facts | {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "precision": precision if precision == "float32" else f"{precision} products in training, else float32",
        "linnet": __version__,
        "PyTorch": torch.__version__,
        "Python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(named), platform.processor() or platform.machine())
