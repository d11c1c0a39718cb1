from linnet.core.errors import UserError


def test_a_user_error_is_one_line():
    assert str(UserError("file.yaml: heads:\n  5\tmust   divide")) == "file.yaml: heads: 5 must divide"


def test_a_user_error_is_a_value_error():
    """So that Python users catch what they expect."""
    assert isinstance(UserError("x"), ValueError)


def test_the_line_is_made_of_its_parts():
    error = UserError("is a file", field="out", value="a.txt", accepted="a folder")
    assert str(error) == "out: a.txt: is a file; expected a folder"
    assert (error.field, error.value, error.accepted) == ("out", "a.txt", "a folder")
    assert str(UserError(field="top_p", value=2, accepted="at most 1")) == "top_p: 2: expected at most 1"
    assert str(UserError("missing", field="spec")) == "spec: missing"
    assert UserError("damaged").field is None


OPTIONS = {"top_p": "--top-p", "out": "--out", "kv_cache": "--kv-cache"}


def test_fields_may_be_named_as_they_are_typed():
    assert UserError(field="top_p", value=2, accepted="less").said(OPTIONS) == "--top-p 2: expected less"
    assert UserError("missing", field="top_p").said(OPTIONS) == "--top-p: missing"
    assert UserError("is none", field="lr", value=0).said(OPTIONS) == "lr: 0: is none"
    assert UserError("/x: choose another `out`, not `in`").said(OPTIONS) == "/x: choose another --out, not `in`"


def test_a_switch_is_named_without_its_value():
    assert UserError("is of no use", field="kv_cache", value=True).said(OPTIONS) == "--kv-cache: is of no use"
    assert UserError("is of no use", field="kv_cache", value=False).said(OPTIONS) == "--no-kv-cache: is of no use"
