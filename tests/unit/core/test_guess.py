from linnet.core.guess import meant


def test_what_is_close_is_meant():
    assert meant("tiny-tde", ["tiny-ted", "tiny-pldr"], "presets: two") == "did you mean tiny-ted?"
    assert meant("something else", ["tiny-ted", "tiny-pldr"], "presets: two") == "presets: two"
