"""Compile the C++ sources for the processor at hand, once: as `torch.compile` does, but without PyTorch's headers."""

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
from linnet.core.errors import UserError, note
from linnet.core.files import cache_folder

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O3", "-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
OPENMP = "-fopenmp"
"""GCC's OpenMP is the library that PyTorch has loaded, so that both share their threads. A compiler without OpenMP
builds a library that computes with one thread."""
TIMEOUT_S = 120.0


def load_library(sources: Sequence[Path], headers: Sequence[Path] = ()) -> ctypes.CDLL | None:
    """The shared library of some sources, from the user's cache if it was built before.

    None, after a note, without a compiler (`$CXX`, or one of `COMPILERS`) and where compiling fails.
    """
    compiler = find_compiler()
    if compiler is None:
        note(f"no C++ compiler ({', '.join(COMPILERS)}): decoding uses PyTorch's products, which are slower")
        return None
    try:
        # The name has a hash of files, compiler and processor: several machines may share a home folder.
        parts = [file.read_bytes() for file in (*sources, *headers)]
        parts += [part.encode() for part in (compiler, *FLAGS, OPENMP, *processor_features())]
        library = cache_folder() / f"linnet-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}.so"
        if library.is_file() and (found := _open_cached(library)) is not None:
            return found
        _compile(sources, compiler, library)
        return ctypes.CDLL(str(library))
    except (OSError, UserError, subprocess.SubprocessError) as error:
        lines = error.stderr.strip().splitlines() if isinstance(error, subprocess.CalledProcessError) else [str(error)]
        problem = next(iter(lines), compiler)
        note(f"{sources[0].name} was not compiled for this processor, PyTorch's products are used: {problem}")
        return None


def find_compiler() -> str | None:
    """The path of the C++ compiler: `$CXX`, or one of `COMPILERS`."""
    return shutil.which(os.environ.get("CXX", "")) or next(filter(None, map(shutil.which, COMPILERS)), None)


def processor_features() -> list[str]:
    """Lines that distinguish processors for which a compiler makes different code."""
    cpuinfo = Path("/proc/cpuinfo")
    processor = cpuinfo.read_text(errors="replace").split("\n\n")[0] if cpuinfo.is_file() else platform.processor()
    features = ("model name", "flags", "Features", "CPU implementer", "CPU part", "CPU variant")
    return [line for line in processor.splitlines() if line.startswith(features)]


def check_owner(file: Path) -> None:
    """`PermissionError` if others own or can write a file with code, or its folder: the code would be run."""
    for path in (file, file.parent):
        found = path.stat()
        if found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH:
            raise PermissionError(f"{path}: owned by another user, or writable by others")


def _open_cached(library: Path) -> ctypes.CDLL | None:
    """A library that was built before; None for one of another system. `PermissionError` as from `check_owner`."""
    check_owner(library)
    try:
        return ctypes.CDLL(str(library))
    except OSError:
        return None


def _compile(sources: Sequence[Path], compiler: str, library: Path) -> None:
    library.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with atomic_path(library) as path:
        target = "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"
        command = [compiler, *FLAGS, target, *map(str, sources), "-o", str(path)]
        run = subprocess.run([*command, OPENMP], check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
        if run.returncode != 0:  # the compiler may have no OpenMP, as Apple's
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
