import zipfile
from pathlib import Path

import pytest

from linnet.core.errors import UserError
from linnet.interop.tensor_names import read_pth

DAMAGED = [b"\x80\x02a.", b"\x80\x02J\x01", b"\x80\x02.", b"\x80\x02}\x85R.", b"\x80\x02]q", b"\x80\x02K\x01b."]


@pytest.mark.parametrize("content", DAMAGED)
@pytest.mark.parametrize("zipped", [False, True])
def test_a_damaged_pickle_is_refused(content: bytes, zipped: bool, tmp_path: Path):
    path = tmp_path / "weights.pth"
    path.write_bytes(content)
    if zipped:
        with zipfile.ZipFile(path, "w") as archive:
            for name, part in {"data.pkl": content, "version": b"3\n", "byteorder": b"little"}.items():
                archive.writestr(f"archive/{name}", part)
    with pytest.raises(UserError, match=r"weights\.pth: not a file of tensors alone .*; nothing of it was run"):
        read_pth(path)
