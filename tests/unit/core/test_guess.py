from linnet.core.guess import did_you_mean


def test_what_is_close_is_meant():
    assert did_you_mean("tiny-tde", ["tiny-ted", "tiny-pldr"], "presets: two") == "did you mean tiny-ted?"
    assert did_you_mean("something else", ["tiny-ted", "tiny-pldr"], "presets: two") == "presets: two"
