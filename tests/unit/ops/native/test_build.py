import shutil
from pathlib import Path

import pytest

from linnet.ops.native import _is_supported, _tested_library
from linnet.ops.native.build import COMPILERS, load_library

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no compiler")
GOOD = '#include "seven.hpp"\nextern "C" int seven() { return SEVEN; }\n'


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file, its header, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "seven.hpp").write_text("#define SEVEN 7\n")
    (tmp_path / "seven.cpp").write_text(GOOD)
    return tmp_path / "seven.cpp"


def made(source: Path) -> list[Path]:
    return sorted((source.parent / "cache" / "linnet").iterdir())


@needs_compiler
def test_the_library_is_compiled_once(source: Path):
    first = load_library([source], [source.with_suffix(".hpp")])
    assert first is not None
    assert first.seven() == 7
    (library,) = made(source)
    before = library.stat().st_mtime_ns
    assert load_library([source], [source.with_suffix(".hpp")]) is not None
    assert made(source) == [library]
    assert library.stat().st_mtime_ns == before


@needs_compiler
def test_a_changed_header_gives_another_library(source: Path):
    header = source.with_suffix(".hpp")
    load_library([source], [header])
    header.write_text("#define SEVEN 8\n")
    found = load_library([source], [header])
    assert found is not None
    assert found.seven() == 8
    assert len(made(source)) == 2


@needs_compiler
def test_a_compiler_error_is_reported_and_leaves_no_files(source: Path, caplog: pytest.LogCaptureFixture):
    source.write_text("this is no C++")
    assert load_library([source]) is None
    assert made(source) == []
    (said,) = caplog.messages
    assert said.startswith("note: seven.cpp was not compiled for this processor, PyTorch's products are used: ")


def test_without_a_compiler_there_is_one_note_and_no_library(
    source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("PATH", str(source.parent))
    monkeypatch.delenv("CXX", raising=False)
    assert load_library([source]) is None
    assert not (source.parent / "cache").exists()
    (message,) = caplog.messages
    assert message.startswith("note: no C++ compiler (c++, g++, clang++)")


@needs_compiler
def test_a_compiler_without_openmp_builds_for_one_thread(source: Path, monkeypatch: pytest.MonkeyPatch, told):
    compiler = source.parent / "compiler"
    real = next(filter(None, map(shutil.which, COMPILERS)))
    compiler.write_text(f'#!/bin/sh\nfor flag; do [ "$flag" = -fopenmp ] && exit 1; done\nexec {real} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    source.write_text(GOOD + "#ifdef _OPENMP\n#error OpenMP\n#endif\n")
    found = load_library([source], [source.with_suffix(".hpp")])
    assert found is not None and found.seven() == 7
    assert told() == []


@needs_compiler
def test_a_cache_that_cannot_be_written_is_reported(
    source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    (source.parent / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(source.parent / "file"))
    assert load_library([source]) is None
    assert "PyTorch's products are used" in caplog.text


@pytest.mark.parametrize(
    ("system", "machine", "capability", "supported"),
    [
        ("Linux", "x86_64", "AVX2", True),
        ("Linux", "x86_64", "DEFAULT", False),
        ("Linux", "aarch64", "DEFAULT", True),
        ("Darwin", "arm64", "DEFAULT", False),
        ("Windows", "AMD64", "AVX512", False),
    ],
)
def test_where_the_code_is_compiled(system: str, machine: str, capability: str, supported: bool):
    assert _is_supported(system, machine, capability) == supported


def test_elsewhere_pytorch_computes_after_one_note(monkeypatch: pytest.MonkeyPatch, told):
    monkeypatch.setattr("linnet.ops.native.platform.system", lambda: "Darwin")
    assert _tested_library.__wrapped__() is None
    (message,) = told()
    assert "Linux on x86 with AVX2 or on 64-bit ARM, not Darwin" in message
