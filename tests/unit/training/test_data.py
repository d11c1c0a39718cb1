import pytest

from linnet.core.errors import UserError
from linnet.data.loader import document_windows
from linnet.data.token_data import TokenData
from linnet.training.data import check_data, fit_to_data, training_batches, vocabulary_note
from linnet.training.run import train_run


def test_the_model_gets_the_vocabulary_of_the_data(tiny_run, tiny_data):
    data, asked = TokenData.open(tiny_data), tiny_run()
    asked = asked.model_copy(update={"model": asked.model.replace(vocab_size=5000)})
    run = fit_to_data(asked, data)
    assert run.model.vocab_size == data.tokenizer.vocab_size
    assert run.training.steps and run.training.context_length
    assert "instead of the 5,000 of the description" in vocabulary_note(asked, run)


def test_other_data_than_those_of_a_run_are_refused(tiny_data, tmp_path):
    data = TokenData.open(tiny_data)
    check_data(data.hash, data, tmp_path)
    check_data(None, data, tmp_path)
    with pytest.raises(UserError, match=f"data: {tiny_data}: not the data that {tmp_path} was trained on"):
        check_data("0" * 64, data, tmp_path)


def test_windows_may_begin_with_documents(tmp_path, tiny_run, tiny_data):
    data = TokenData.open(tiny_data)
    run = tiny_run(windows="documents")
    documents, stream = train_run(run, tmp_path / "documents"), train_run(tiny_run(), tmp_path / "stream")
    batches = training_batches(data, run.resolved())
    starts = {
        tuple(row) for number in range(batches.examples_per_epoch) for row in batches.batch(number).tokens.tolist()
    }
    sequence = data.split("train")
    windows = document_windows(sequence, 16).whole_windows(sequence, 16).starts_N
    assert starts == {tuple(sequence.read(int(start), 16).tolist()) for start in windows}
    assert documents.summary["validation"] != stream.summary["validation"]
