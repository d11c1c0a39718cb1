from pathlib import Path

from linnet.cli.main import main


def test_help_tells_what_can_be_imported(capsys):
    assert main(["import", "--help"]) == 0
    assert "pldr" in capsys.readouterr().out
    assert main(["import", "pldr", "--help"]) == 0
    assert "Example: linnet import pldr checkpoint.pth" in capsys.readouterr().out


def test_a_missing_tokenizer_is_one_line(tmp_path: Path, capsys):
    arguments = ["--spec", "pldr-v51-110m-1", "--out", str(tmp_path / "out")]
    assert main(["import", "pldr", str(tmp_path / "none.pth"), *arguments]) == 2
    assert capsys.readouterr().err == (
        "error: --tokenizer: missing; expected the SentencePiece .model that the checkpoint was trained with\n"
    )
