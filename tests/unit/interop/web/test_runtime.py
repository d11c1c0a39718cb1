"""The runtime for pages: one version, checked, from npm, a package or a folder."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from linnet.core.errors import UserError
from linnet.interop.web import runtime
from linnet.interop.web.runtime import FILES, PACKED, VERSION, copy_runtime


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "onnxruntime-web"
    (made / "dist").mkdir(parents=True)
    (made / "package.json").write_text(json.dumps({"version": VERSION}))
    for name in (*FILES, "other.js"):
        (made / "dist" / name).write_text(name)
    return made


@pytest.fixture
def package(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as file:
        file.add(folder, "package")
    (tmp_path / "some.tgz").write_bytes(content.getvalue())
    monkeypatch.setattr(runtime, "INTEGRITY", runtime._integrity(content.getvalue()))
    return tmp_path / "some.tgz"


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What answers in the place of npm: a script that is yet to be written; and an empty cache."""
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return program


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def names_in(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir())


def test_from_a_folder_only_what_is_needed(folder: Path, tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    assert copy_runtime(out, folder) == list(FILES)
    assert names_in(out) == sorted(FILES)


def test_from_a_package(package: Path, tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    copy_runtime(out, package)
    assert {path.name: path.read_text() for path in out.iterdir()} == {name: name for name in FILES}


def test_from_npm_once(package: Path, npm: Path, tmp_path: Path):
    write_program(npm, f'cp {package} "$4/{PACKED}" && echo once >> {tmp_path}/calls')
    for number in range(2):
        out = tmp_path / f"out{number}"
        out.mkdir()
        copy_runtime(out)
        assert names_in(out) == sorted(FILES)
    assert (tmp_path / "calls").read_text() == "once\n"
    (tmp_path / "cache" / "linnet" / PACKED).write_text("damaged")
    copy_runtime(out)
    assert (tmp_path / "calls").read_text() == "once\nonce\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda folder: (folder / "package.json").write_text('{"version": "1.2.3"}'),
            "version 1.2.3; expected onnxrun",
        ),
        (lambda folder: (folder / "dist" / FILES[1]).unlink(), f"dist/{FILES[1]}: missing"),
        (lambda folder: (folder / "package.json").unlink(), "package.json: missing"),
    ],
)
def test_another_folder_is_refused(change, message: str, folder: Path, tmp_path: Path):
    change(folder)
    with pytest.raises(UserError) as caught:
        copy_runtime(tmp_path, folder)
    assert str(caught.value).startswith(f"runtime: {folder}: ") and message in str(caught.value)


def test_another_package_is_refused(package: Path, tmp_path: Path):
    package.write_bytes(package.read_bytes() + b"x")
    with pytest.raises(UserError, match=r"runtime: .*some\.tgz: its SHA-512 differs; expected a folder of"):
        copy_runtime(tmp_path, package)
    with pytest.raises(UserError, match=r"runtime: .*none: no such file or folder"):
        copy_runtime(tmp_path, tmp_path / "none")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ('echo "npm error network" >&2; exit 1', r"npm cannot fetch onnxruntime-web@[\d.]+ \(npm error network\)"),
        (f'echo other > "$4/{PACKED}"', "its SHA-512 differs"),
        ("exit 0", r"npm cannot fetch .*No such file"),
    ],
)
def test_failures_of_npm_are_one_line(script: str, message: str, npm: Path, tmp_path: Path):
    write_program(npm, script)
    with pytest.raises(UserError, match=message) as caught:
        copy_runtime(tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_without_npm(npm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(npm.parent))
    with pytest.raises(
        UserError, match=r"comes from npm, which is not installed; expected a folder of onnxruntime-web"
    ):
        copy_runtime(tmp_path)
