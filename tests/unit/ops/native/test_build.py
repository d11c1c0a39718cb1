import shutil
from pathlib import Path

import pytest

from linnet.ops.native.build import COMPILERS, loaded

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
def test_it_is_compiled_once(source: Path):
    first = loaded([source], [source.with_suffix(".hpp")])
    assert first is not None
    assert first.seven() == 7
    (library,) = made(source)
    before = library.stat().st_mtime_ns
    assert loaded([source], [source.with_suffix(".hpp")]) is not None
    assert made(source) == [library]
    assert library.stat().st_mtime_ns == before


@needs_compiler
def test_another_header_is_another_library(source: Path):
    header = source.with_suffix(".hpp")
    loaded([source], [header])
    header.write_text("#define SEVEN 8\n")
    found = loaded([source], [header])
    assert found is not None
    assert found.seven() == 8
    assert len(made(source)) == 2


@needs_compiler
def test_what_does_not_compile_is_said_and_leaves_nothing(source: Path, caplog: pytest.LogCaptureFixture):
    source.write_text("this is no C++")
    assert loaded([source]) is None
    assert made(source) == []
    (said,) = caplog.messages
    assert said.startswith("note: seven.cpp was not compiled for this processor, PyTorch's products serve: ")


def test_without_a_compiler_there_is_none(source: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(source.parent))
    monkeypatch.delenv("CXX", raising=False)
    assert loaded([source]) is None
    assert not (source.parent / "cache").exists()


@needs_compiler
def test_a_cache_that_cannot_be_written_is_said(
    source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    (source.parent / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(source.parent / "file"))
    assert loaded([source]) is None
    assert "PyTorch's products serve" in caplog.text
