"""onnxruntime-web in one fixed version, from npm or a local copy; a page needs two of its files."""

import base64
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from linnet.core.atomic import atomic_path
from linnet.core.errors import UserError
from linnet.core.files import cache_folder, parse_json

NAME, VERSION = "onnxruntime-web", "1.30.0"
INTEGRITY = "sha512-q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
"""Integrity of the package, as npm writes it."""

FILES = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")
"""Files that a page loads: the interface, and the runtime for one thread and for many."""

PACKED = f"{NAME}-{VERSION}.tgz"
NPM_SECONDS = 300


def copy_runtime(out: Path, source: str | Path | None = None) -> list[str]:
    """Write the files into a folder and return their names.

    source: a folder of the package (`node_modules/onnxruntime-web`), or the result of its `npm pack`; None: the user's
    cache, or npm if it is not there. `UserError` if there is no such package.
    """
    package = _packed() if source is None else Path(source)
    files = _from_folder(package) if package.is_dir() else _from_package(package)
    for name, content in files.items():
        (out / name).write_bytes(content)
    return list(files)


def _packed() -> Path:
    """Return the package in the user's cache; it is fetched if it is missing or damaged."""
    package = cache_folder() / PACKED
    if not (package.is_file() and _integrity(package.read_bytes()) == INTEGRITY):
        _fetch(package)
    return package


def _from_folder(folder: Path) -> dict[str, bytes]:
    description = folder / "package.json"
    paths = {name: folder / "dist" / name for name in FILES}
    for path in (description, *paths.values()):
        if not path.is_file():
            raise UserError(f"{path}: missing", field="runtime", value=folder, accepted=f"a folder of {NAME} {VERSION}")
    plain = parse_json(description.read_text(encoding="utf-8"), str(description))
    version = plain.get("version") if isinstance(plain, dict) else None
    if version != VERSION:
        raise UserError(f"version {version}", field="runtime", value=folder, accepted=f"{NAME} {VERSION}")
    return {name: path.read_bytes() for name, path in paths.items()}


def _from_package(path: Path) -> dict[str, bytes]:
    accepted = f"a folder of {NAME} {VERSION}, or the result of `npm pack {NAME}@{VERSION}`"
    if not path.is_file():
        raise UserError("no such file or folder", field="runtime", value=path, accepted=accepted)
    content = path.read_bytes()
    if _integrity(content) != INTEGRITY:
        raise UserError("its SHA-512 differs", field="runtime", value=path, accepted=accepted)
    contents = {}
    with tarfile.open(path) as package:
        for name in FILES:
            file = package.extractfile(f"package/dist/{name}")
            assert file is not None, "the hash is that of a package with this file"
            contents[name] = file.read()
    return contents


def _integrity(content: bytes) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()


def _fetch(target: Path) -> None:
    """Fetch the package from npm into the cache."""
    npm, package = shutil.which("npm"), f"{NAME}@{VERSION}"
    accepted = f"a folder of {NAME} {VERSION}, or the result of `npm pack {package}`"
    if npm is None:
        raise UserError(f"{package} comes from npm, which is not installed", field="runtime", accepted=accepted)
    with tempfile.TemporaryDirectory() as folder:
        try:
            command = [npm, "pack", package, "--pack-destination", folder]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=NPM_SECONDS)
            content = (Path(folder) / PACKED).read_bytes()
        except (subprocess.SubprocessError, OSError) as error:
            message = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            reason = message[-1] if message else type(error).__name__
            raise UserError(f"npm cannot fetch {package} ({reason})", field="runtime", accepted=accepted) from error
    if _integrity(content) != INTEGRITY:
        raise UserError(f"npm's {package}: its SHA-512 differs", field="runtime", accepted=accepted)
    with atomic_path(target) as temporary:
        temporary.write_bytes(content)
