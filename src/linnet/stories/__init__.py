"""The built-in corpus: an endless supply of short, simple English stories whose facts stay consistent.

    from linnet.stories import story, texts
    print(story(seed=0, index=7).text)
    for text in texts(10_000, seed=0, split="train"): ...

How a story comes about. A *plot* (`plots/`) is a function that tells a story on a *stage* (`stage.Stage`). The stage
holds the *world* (`world`: who is where, who holds and owns what, what is lost or broken, who feels how), the cast and
the dice. The plot never writes text by itself: it tells typed *events* (`events/`: Lose, Find, Give, Say, Go, ...).
Each event checks that it can happen in the world (nobody gives what he does not hold, nobody speaks to somebody who is
elsewhere, a lost thing is found where it lies, and once), changes the world, is recorded in `Story.events`, and is
written by the *narrator* in one of several phrasings (`phrases/`, or the plot's own). Phrasings have slots, and
*references* (`reference`) fill them: names, "her friend Ben", "a red ball" and then "the ball", and pronouns only where
they can mean but one (`mentions`). Openings and endings (`openings`, `endings`) are shared by the plots.

What is disjoint between the splits. Each plot lists every *setting* that it can have: the place, the things and the
topic (a skill, a fear, a mishap). The *signature* of a story is (plot, place, things..., topic), and a stable hash of
the signature alone decides whether it belongs to training (nine in ten) or to validation. So no validation story, under
any seed, tells a plot in a setting that occurs in a training story under any seed, whoever plays in it: the names and
the turns that the plot takes are drawn afresh and are not part of the signature, hence changing the names of a training
story never gives a validation story. The vocabulary is shared: every word of the validation split occurs in training.

How to add a plot. Write `def my_plot(stage): ...` in a module of `plots/`, decorated with `@plot(combine(places,
things, topics=...))`; cast with `stage.hero()` and `stage.friend(hero)`, bring them to the place with `openings.begin`,
tell events with `stage.tell`, let them speak with `stage.say`, finish with `endings.close`, and add the function to
`plots.PLOTS`. A phrasing given to `tell` may use the fields of its event and the roles of the stage. Let every slot
that may be said in several ways be a slot; the tests replay the facts and check the language of whatever you add.
"""

from linnet.stories.casting import names_of
from linnet.stories.corpus import Story, signatures, stories, story, texts
from linnet.stories.stage import Split

__all__ = ["Split", "Story", "names_of", "signatures", "stories", "story", "texts"]
