"""The C++ code, built by several compilers and for several processors, against definitions (`check_functions.cpp`)."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from linnet.ops.native import SOURCES
from linnet.ops.native.build import FLAGS

HERE = Path(__file__).parent
ON_X86 = platform.machine() == "x86_64"
OPTIONS = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")]
ARM = "aarch64-linux-gnu-g++"
TARGETS = {
    "gcc": (["g++", "-march=native", "-fopenmp"], []),
    "gcc with AVX2 alone": (["g++", "-march=haswell", "-fopenmp"], []),
    "gcc without AVX2": (["g++", "-DLINNET_PORTABLE", "-march=native", "-Wno-psabi", "-fopenmp"], []),
    "gcc without OpenMP": (["g++", "-march=native"], []),
    "clang": (["clang++", "-march=native"], []),
    "clang without AVX2": (["clang++", "-DLINNET_PORTABLE", "-march=native", "-Wno-psabi"], []),
    "ARM": ([ARM, "-static", "-march=armv8-a", "-Wno-psabi", "-fopenmp"], ["qemu-aarch64"]),
    "ARM with products of bytes": ([ARM, "-static", "-march=armv8.2-a+dotprod", "-Wno-psabi"], ["qemu-aarch64"]),
}


def test_a_compiler_without_openmp_accepts_the_sources():
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    command = ["g++", "-std=c++17", "-fsyntax-only", "-DLINNET_PORTABLE", "-Wno-psabi", *SOURCES]
    check = subprocess.run(command, capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_functions_equal_their_definitions(target: str, tmp_path: Path):
    compiler, emulator = TARGETS[target]
    for program in (compiler[0], *emulator):
        if shutil.which(program) is None:
            pytest.skip(f"no {program}")
    if not emulator and not ON_X86:
        pytest.skip("another processor")
    check, program = tmp_path / "check.o", tmp_path / "check"
    include = f"-I{SOURCES[0].parent}"
    # The definitions are not optimized: GCC 12 fails on them for ARM.
    commands = [
        [*compiler, "-std=c++17", "-O1", "-c", include, HERE / "check_functions.cpp", "-o", check],
        [*compiler, *OPTIONS, *SOURCES, check, "-o", program],
    ]
    for command in commands:
        build = subprocess.run(command, capture_output=True, text=True, check=False)
        assert build.returncode == 0, build.stderr[-3000:]
    run = subprocess.run([*emulator, program], capture_output=True, text=True, check=False, timeout=300)
    assert (run.returncode, run.stdout) == (0, "")
