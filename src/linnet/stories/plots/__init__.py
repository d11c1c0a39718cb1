"""All plots. A new plot is a function in one of these modules and a line in `PLOTS`."""

from linnet.stories.plots.courage import brave, noise_at_night
from linnet.stories.plots.effort import building, learning, race
from linnet.stories.plots.food import picnic, sharing, too_much
from linnet.stories.plots.house import rainy_day, truth
from linnet.stories.plots.kindness import helping_stranger, new_friend, sick_friend
from linnet.stories.plots.lost import honest_finder, lost_and_found, missing_pet
from linnet.stories.plots.presents import gift, planting
from linnet.stories.plots.toys import borrowed, broken_toy, quarrel, trade
from linnet.stories.stage import StoryPlot

PLOTS: tuple[StoryPlot, ...] = (
    lost_and_found,
    honest_finder,
    missing_pet,
    broken_toy,
    borrowed,
    quarrel,
    trade,
    sharing,
    too_much,
    picnic,
    helping_stranger,
    new_friend,
    sick_friend,
    gift,
    planting,
    brave,
    noise_at_night,
    learning,
    race,
    building,
    rainy_day,
    truth,
)
