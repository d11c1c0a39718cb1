from linnet.core.errors import UserError


def test_a_user_error_is_one_line():
    assert str(UserError("file.yaml: heads:\n  5\tmust   divide")) == "file.yaml: heads: 5 must divide"


def test_a_user_error_is_a_value_error():
    """So that Python users catch what they expect."""
    assert isinstance(UserError("x"), ValueError)
