from linnet.stories.phrases.speech import spoken


def test_lines_are_set_into_sentences() -> None:
    statements = spoken(("I see.",), "act", True)
    assert '"I see," said {speaker.np}.' in statements
    assert '{speaker} said, "I see."' in statements
    assert '{speaker} said to {hearer.him}, "I see."' in statements
    assert '{speaker} asked, "Who?"' in spoken(("Who?",), "act", False)
    assert not any("{hearer.him}" in sentence for sentence in spoken(("Hi, {hearer.name}!",), "act", True))
