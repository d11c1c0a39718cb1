import numpy as np

from linnet.data.epochs import Epochs


def test_an_epochs_draw_is_its_own_and_the_last_two_are_kept():
    calls = []

    def draw(random: np.random.Generator) -> np.ndarray:
        calls.append(random)
        return random.permutation(100)

    epochs = Epochs(3)
    drawn = [epochs.drawn(epoch, draw).tolist() for epoch in (0, 1, 0, 1, 2, 1, 0)]
    assert len(calls) == 4
    assert drawn[0] == drawn[2] == drawn[6] and drawn[1] == drawn[3] == drawn[5]
    assert len({tuple(order) for order in (*drawn, Epochs(4).drawn(0, draw).tolist())}) == 4
