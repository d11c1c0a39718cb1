from linnet.stories.template import BREAK, Slot, compiled


def test_a_template_is_cut_into_text_slots_and_sentences() -> None:
    assert compiled('{who} ran. {who.his} hat fell. "{item}!" said {who}.') == (
        Slot("who", "", starts=False, spoken=False),
        " ran. ",
        BREAK,
        Slot("who", "his", starts=True, spoken=False),
        " hat fell. ",
        BREAK,
        '"',
        Slot("item", "", starts=True, spoken=True),
        '!" said ',
        Slot("who", "", starts=False, spoken=False),
        ".",
    )
    assert BREAK not in compiled('"Who is it? Is it {who}?" {who} asked.')
    assert BREAK in compiled('"Go!" And off they ran.')
