import json
from pathlib import Path

import pytest

import linnet
from linnet.core.errors import UserError
from linnet.model.folder import model_folder, read_description


@pytest.mark.parametrize("read", [linnet.load, model_folder, read_description, linnet.ModelSpec.load])
def test_a_folder_of_transformers_names_the_command_that_imports_it(read, tmp_path: Path, caplog):
    (tmp_path / "qwen").mkdir()
    (tmp_path / "qwen" / "config.json").write_text(json.dumps({"model_type": "qwen2", "hidden_size": 8}))
    command = f"linnet import transformers {tmp_path / 'qwen'} --out models/qwen"
    with pytest.raises(UserError) as refused:
        read(tmp_path / "qwen")
    assert str(refused.value) == f"{tmp_path / 'qwen'}: a model of Transformers (qwen2); `{command}` imports it"
    assert caplog.text == ""
