"""All plots. A new plot is a function in one of these modules and a line in `PLOTS`."""

from linnet.data.stories.plots.courage import brave, noise_at_night
from linnet.data.stories.plots.effort import building, learning, race
from linnet.data.stories.plots.food import picnic, sharing, too_much
from linnet.data.stories.plots.house import rainy_day, truth
from linnet.data.stories.plots.kindness import helping_stranger, new_friend, sick_friend
from linnet.data.stories.plots.lost import honest_finder, lost_and_found, missing_pet
from linnet.data.stories.plots.presents import gift, planting
from linnet.data.stories.plots.toys import borrowed, broken_toy, quarrel, trade
from linnet.data.stories.setting import Plot

PLOTS: tuple[Plot, ...] = (
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
