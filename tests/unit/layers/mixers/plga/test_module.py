from linnet.layers.contract import Place
from linnet.layers.mixers.plga import PlgaSpec


def test_the_matrices_of_the_operator_have_weight_decay():
    """As in the paper; biases and norms have none."""
    mixer = PlgaSpec(heads=2, metric_hidden=6, residual_units=1).build(Place(16, 64))
    no_weight_decay = {id(parameter) for parameter in mixer.no_weight_decay()}
    free = {name for name, parameter in mixer.named_parameters() if id(parameter) in no_weight_decay}
    decayed = {name for name, _ in mixer.named_parameters()} - free
    assert {"operator.metric_weight", "operator.power", "operator.curvature_weight", "out.weight"} <= decayed
    assert {"operator.metric_bias", "operator.curvature_bias", "operator.norm.weight", "out.bias"} <= free
    assert mixer.penalties.keys() == {"dag"}


def test_only_the_operators_network_has_a_lower_learning_rate():
    mixer = PlgaSpec(heads=2, metric_hidden=6, residual_units=1).build(Place(16, 64))
    sensitive = {id(parameter) for parameter in mixer.low_lr_parameters()}
    names = {name for name, parameter in mixer.named_parameters() if id(parameter) in sensitive}
    assert names == {name for name, _ in mixer.named_parameters() if name.startswith("operator.")}
    assert not list(PlgaSpec(heads=2, operator="fixed").build(Place(16, 64)).low_lr_parameters())
