"""How each event may be told, where the plot does not say it in words of its own."""

from linnet.stories.events import Feel, Say, StoryEvent
from linnet.stories.phrases.doing import DOING
from linnet.stories.phrases.feeling import feeling_phrasings
from linnet.stories.phrases.having import HAVING
from linnet.stories.phrases.speech import LINES, spoken

_BY_TYPE = {**HAVING, **DOING}


def phrasings_for(event: StoryEvent) -> tuple[str, ...]:
    """The default phrasings of an event; KeyError where it has none and the plot has to give its own."""
    if isinstance(event, Feel):
        return feeling_phrasings(event.feeling, event.because)
    if isinstance(event, Say):
        return spoken(LINES[event.act], event.act, event.hearer is not None)
    return _BY_TYPE[type(event)]
