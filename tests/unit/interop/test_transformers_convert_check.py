"""The gate with Transformers: it passes for the same model, fails for another, and reads folders without a network."""

import sys
from pathlib import Path

import pytest
import torch
from small_originals import write

from linnet.core.errors import UserError
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
