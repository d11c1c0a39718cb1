import pytest

from linnet.ops import processor as module


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [("vendor_id\t: GenuineIntel\n", True), ("vendor_id\t: AuthenticAMD\n", False), (None, False)],
)
def test_the_maker_of_the_processor(cpuinfo, expected, tmp_path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        path.write_text(cpuinfo)
    monkeypatch.setattr(module, "Path", lambda _: path)
    monkeypatch.setattr(module.platform, "processor", lambda: "AMD64 Family 25 Model 97, AuthenticAMD")
    assert module._is_intel() == expected
