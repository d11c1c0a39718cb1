"""The gate with Transformers: it passes for the same model, fails for another, and reads folders without a network."""

import json
import sys
from pathlib import Path

import pytest
import torch
from small_originals import tokenizer, write

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.interop import optional_package, parity
from linnet.interop.transformers_convert import check_with_transformers, encoder, import_transformers, load_original

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "STEPS", 12)


def test_the_same_model_agrees_token_by_token(tmp_path: Path):
    write(tmp_path / "theirs", "llama")
    theirs, tokens = load_original(tmp_path / "theirs")
    ours, _ = import_transformers(tmp_path / "theirs", tmp_path / "ours")
    found = check_with_transformers(ours, theirs, "theirs")
    assert found.by == "Transformers" and found.steps == found.same == 12 and 0 < found.error < found.accepted
    assert theirs.dtype == torch.float32 and not theirs.training
    assert encoder(tokens)("a bird") == tokens("a bird", add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("shape", [(2, 64), (1, 1)], ids=["in one pass", "with a cache"])
def test_another_model_is_refused(shape: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also one that differs only in texts of random tokens, or once it goes on from a cache."""
    write(tmp_path / "theirs", "llama")
    theirs, _ = load_original(tmp_path / "theirs")
    ours, _ = import_transformers(tmp_path / "theirs", tmp_path / "ours")
    forward = theirs.forward

    def changed(tokens, **given):
        out = forward(tokens, **given)
        if tokens.shape == shape:
            out.logits = out.logits + 0.1
        return out

    monkeypatch.setattr(theirs, "forward", changed)
    with pytest.raises(
        UserError, match=r"^theirs: after .* tokens logits by Transformers differ by .* expected at most"
    ):
        check_with_transformers(ours, theirs, "theirs")


def test_a_folder_that_it_cannot_read_is_named_and_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match=rf"^{tmp_path}/none: Transformers cannot read it \(.+\)$"):
        load_original(tmp_path / "none")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text('{"model_type": "none such"}')
    with pytest.raises(UserError, match=r"^mine: Transformers cannot read it \(.*none such") as caught:
        load_original(tmp_path / "odd", origin="mine")
    assert "\n" not in str(caught.value)
    given = []
    monkeypatch.setattr(
        transformers.AutoModelForCausalLM,
        "from_pretrained",
        lambda *_, **here: given.append(here) or torch.nn.Linear(1, 1),
    )
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **here: given.append(here))
    load_original(tmp_path / "odd")
    assert (
        all(one["local_files_only"] is True and one["trust_remote_code"] is False for one in given) and len(given) == 2
    )


@pytest.mark.parametrize("drawn", [True, False])
def test_its_bars_are_as_they_were(drawn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    logging, seen = transformers.utils.logging, []
    (logging.enable_progress_bar if drawn else logging.disable_progress_bar)()
    try:
        monkeypatch.setattr(
            transformers.AutoModelForCausalLM,
            "from_pretrained",
            lambda *_, **__: seen.append(logging.is_progress_bar_enabled()) or torch.nn.Linear(1, 1),
        )
        monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: None)
        load_original(tmp_path)
        assert seen == [False] and logging.is_progress_bar_enabled() is drawn
    finally:
        logging.enable_progress_bar()


def test_the_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"check: needs transformers: pip install 'linnet\[transformers\]'"):
        optional_package("transformers", "check")


@pytest.mark.parametrize("special", [False, True])
def test_an_added_token_behind_a_gap_is_told(tmp_path: Path, special: bool, caplog: pytest.LogCaptureFixture):
    """Its id is that of the file, and another one in Transformers; an ordinary one fails the gate."""
    write(tmp_path / "theirs", "llama")
    path = tmp_path / "theirs" / "tokenizer.json"
    written = json.loads(tokenizer(vocab_size=280).to_str())
    fields = {**written["added_tokens"][0], "normalized": False, "special": special}
    written["added_tokens"] += [{**fields, "content": name, "id": 284 + n} for n, name in enumerate(("<think>", "<c>"))]
    path.write_text(json.dumps(written))
    assert transformers.AutoTokenizer.from_pretrained(path.parent).convert_tokens_to_ids("<think>") == 280
    if special:
        import_transformers(path.parent, tmp_path / "ours", check=True)
    else:
        with pytest.raises(UserError, match=r"'Say <think>, .* \[280, .* by Transformers: expected \[284, "):
            import_transformers(path.parent, tmp_path / "ours", check=True)
        import_transformers(path.parent, tmp_path / "ours")
        assert Tokenizer.load(tmp_path / "ours").encode("<think><c>") == [284, 285]
    problem = "id 284 stands behind ids without a token and is kept; Transformers makes it 280 (and 1 more)"
    assert f"note: {path}: added_tokens: '<think>': {problem}" in caplog.messages
