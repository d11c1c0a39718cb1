"""C++ that is compiled for the processor at hand, once: as `torch.compile` does, but without PyTorch's headers."""

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

from linnet.core.atomic import atomic_path
from linnet.core.errors import UserError
from linnet.core.files import cache_folder
from linnet.core.notes import note

COMPILERS = ("c++", "g++")
FLAGS = (
    "-O3",
    "-std=c++17",
    "-march=native",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp",
    "-shared",
    "-fPIC",
)
"""OpenMP of GCC is the library that PyTorch has loaded, and so its threads are PyTorch's."""
TIMEOUT_S = 120.0


def loaded(sources: Sequence[Path], headers: Sequence[Path] = ()) -> ctypes.CDLL | None:
    """The library made of some files, from the user's cache where it has been made before.

    None without a compiler (`$CXX`, or one of `COMPILERS`), and where it fails; then that is said.
    """
    compiler = shutil.which(os.environ.get("CXX", "")) or next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return None
    try:
        library = cache_folder() / _name([*sources, *headers], compiler)
        if library.is_file() and (found := _opened(library)) is not None:
            return found
        _compile(sources, compiler, library)
        return ctypes.CDLL(str(library))
    except (OSError, RuntimeError, UserError, subprocess.SubprocessError) as error:  # RuntimeError: nobody has a home
        told = error.stderr.strip().splitlines() if isinstance(error, subprocess.CalledProcessError) else [str(error)]
        problem = next(iter(told), compiler)
        note(f"{sources[0].name} was not compiled for this processor, PyTorch's products serve: {problem}")
        return None


def _opened(library: Path) -> ctypes.CDLL | None:
    """What was made before; None for what another system made, so that it is made anew.

    `PermissionError` for what others can write: it would be run.
    """
    for path in (library, library.parent):
        found = path.stat()
        if found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH:
            raise PermissionError(f"{path}: somebody else's, or others can write it")
    try:
        return ctypes.CDLL(str(library))
    except OSError:
        return None


def _compile(sources: Sequence[Path], compiler: str, library: Path) -> None:
    library.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with atomic_path(library) as path:
        command = [compiler, *FLAGS, *map(str, sources), "-o", str(path)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)


def _name(files: Sequence[Path], compiler: str) -> str:
    """Another for other files, another compiler or processor: a home may be shared between machines."""
    cpuinfo = Path("/proc/cpuinfo")
    processor = cpuinfo.read_text(errors="replace").split("\n\n")[0] if cpuinfo.is_file() else platform.processor()
    kept = [line for line in processor.splitlines() if line.startswith(("model name", "flags"))]
    parts = [*(file.read_bytes() for file in files), *(part.encode() for part in (compiler, *FLAGS, *kept))]
    return f"linnet-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}.so"
