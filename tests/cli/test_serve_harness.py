"""The LM Evaluation Harness gives a served model the scores that linnet's own adapter gives it."""

from pathlib import Path

import pytest
import torch
from asked_by_harness import SENTENCES, harness_scores, question_task

import linnet
from linnet.data.tokenizer import Tokenizer
from linnet.model.store import write_model
from serve_models import CHATML, serving

pytest.importorskip("lm_eval", reason="the extra tasks is not installed")
pytest.importorskip("tenacity", reason="lm-eval[api] is not installed")

pytestmark = pytest.mark.slow

MEASURES = {"multiple_choice": ["acc", "acc_norm"], "loglikelihood_rolling": ["bits_per_byte"]}
GENERATION = {"until": ["c", "`", "sA"], "max_gen_toks": 12, "do_sample": False}
CONTEXT = 64


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A process that serves a model, the folder of the model, and one that Transformers reads its tokenizer from."""
    from harness_models import _transformers_tokenizer, both

    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("harness")
    tokenizer = Tokenizer.train("bpe", SENTENCES, 300)
    model, _ = both(tokenizer, 32, 2, 4, CONTEXT, torch.float32, spread=40)
    (template := root / "template.jinja").write_text(CHATML)
    write_model(root / "bird", model.decoder, tokenizer, {}, {"chat_template.jinja": template})
    _transformers_tokenizer(tokenizer).save_pretrained(root / "tokenizer")
    with serving(root / "bird") as (_, url):
        yield url, root / "bird", root / "tokenizer"


def _task(folder: Path, output_type: str, **more: object) -> dict[str, object]:
    return question_task(folder, output_type, MEASURES.get(output_type, ["exact_match"]), **more)


def _own(folder: Path, chat: bool = False) -> object:
    from linnet.evaluation.tasks.harness import HarnessModel

    model = linnet.load(folder)
    return HarnessModel(model.parsing_special() if chat else model)


def _remote(served, **arguments: object) -> dict[str, object]:
    url, folder, tokenizer = served
    # The harness counts the token that it has generated as part of the length.
    about = {"base_url": f"{url}/v1/completions", "model": folder.name, "tokenizer": str(tokenizer)}
    about |= {"tokenizer_backend": "huggingface", "add_bos_token": True, "max_length": CONTEXT + 2, "max_retries": 1}
    return {"model_args": about | arguments}


@pytest.mark.parametrize("arguments", [{}, {"num_concurrent": 4, "batch_size": 3}], ids=["one by one", "several"])
def test_multiple_choice(served, tmp_path, arguments):
    task = _task(tmp_path, "multiple_choice", doc_to_choice="{{choices}}", doc_to_target="gold")
    ours, theirs = (
        harness_scores(_own(served[1]), task),
        harness_scores("local-completions", task, **_remote(served, **arguments)),
    )
    assert ours[0] == theirs[0] and 0 < ours[0]["acc,none"] < 1
    for one, other in zip(ours[1], theirs[1], strict=True):
        assert [greedy for _, greedy in one] == [greedy for _, greedy in other]
        assert [sums for sums, _ in one] == pytest.approx([sums for sums, _ in other], rel=1e-4)


def test_rolling(served, tmp_path):
    """The harness puts the end token before a whole text by itself."""
    task = _task(tmp_path, "loglikelihood_rolling", doc_to_text="", doc_to_target="{{question}}")
    ours = harness_scores(_own(served[1]), task)
    theirs = harness_scores("local-completions", task, **_remote(served, add_bos_token=False))
    assert theirs[0] == pytest.approx(ours[0], rel=1e-5)


def test_generation(served, tmp_path):
    prompt = {"doc_to_text": "{{question[:9 + 3 * gold]}}", "doc_to_target": "{{choices[gold]}}"}
    task = _task(tmp_path, "generate_until", generation_kwargs=GENERATION, **prompt)
    ours = harness_scores(_own(served[1]), task)
    assert harness_scores("local-completions", task, **_remote(served)) == ours
    assert len({len(answer) for (answer,) in ours[1]}) > 3


def test_chat(served, tmp_path):
    prompt = {"doc_to_text": "{{question[:9 + 3 * gold]}}", "doc_to_target": "{{choices[gold]}}"}
    task = _task(tmp_path, "generate_until", generation_kwargs=GENERATION, **prompt)
    about = {"base_url": f"{served[0]}/v1/chat/completions", "model": served[1].name, "max_retries": 1}
    ours = harness_scores(_own(served[1], chat=True), task, apply_chat_template=True)
    theirs = harness_scores("local-chat-completions", task, model_args=about, apply_chat_template=True)
    assert ours == theirs and ours != harness_scores(_own(served[1]), task)
