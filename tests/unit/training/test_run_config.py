"""What a caller asks for where a run folder is there already."""

import pytest

from linnet.core.errors import UserError
from linnet.training.run import resolve_run_config, train

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def begun(tmp_path, tiny_model, tiny_data):
    training = {"steps": 4, "batch_size": 2, "threads": 1, "evaluate": {"tokens": 64}}
    train(tmp_path / "run", model=tiny_model(vocab_size=99), data=tiny_data, training=training)
    return tmp_path / "run"


def test_the_folder_alone_describes_the_run(begun):
    assert train(begun).summary["steps"] == 4
    assert train(begun, training={"steps": 6}).summary["step"] == 6
    assert train(begun, training={"tokens": 8 * 2 * 16}).summary["step"] == 8
    assert resolve_run_config(begun, assignments=["training.tokens=320"]).steps == 10
    assert train(begun, data=train(begun).summary["data"]["path"]).finished


def test_a_described_run_is_not_read_from_the_folder(begun, tmp_path):
    with pytest.raises(UserError, match="data: missing"):
        resolve_run_config(begun, model="tiny-ted")
    with pytest.raises(UserError, match="model: missing"):
        resolve_run_config(tmp_path / "nothing", data=tmp_path)


def test_an_error_names_its_file(begun):
    (begun / "config.yaml").write_text("model: 3\n")
    with pytest.raises(UserError, match=r"config\.yaml"):
        resolve_run_config(begun)
