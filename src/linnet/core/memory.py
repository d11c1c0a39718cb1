"""How much memory there is, asked before it is taken."""

import resource
from pathlib import Path

import psutil
import torch

_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(device: torch.device) -> int:
    """Bytes that this process can still take on a device: of the machine, and of what it was given of it."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return min(int(psutil.virtual_memory().available), _left_of_address_space(), _left_of_group())


def _left_of_address_space() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return 1 << 62 if limit == resource.RLIM_INFINITY else max(0, limit - psutil.Process().memory_info().vms)


def _left_of_group() -> int:
    """Of a container's share (cgroup 2), where there is one; files that the system keeps at hand give way."""
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        counts = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except OSError:
        return 1 << 62
    at_hand = sum(int(counts.get(name, 0)) for name in ("active_file", "inactive_file"))
    return 1 << 62 if limit == "max" else max(0, int(limit) - int(used) + at_hand)
