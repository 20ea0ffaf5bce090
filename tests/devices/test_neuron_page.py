"""docs/neuron.md says what the class says."""

import re
from pathlib import Path

from bayplan.core.model.vendors import NEURON

PAGE = (Path(__file__).parents[2] / "docs" / "neuron.md").read_text()


def test_the_table_is_that_of_the_class() -> None:
    rows = re.findall(r"^\| `(\w+\.\w+)` \| (\d+) \| (\d+) \| (\w+) \|$", PAGE, re.M)
    known = [(each.type, each.devices, each.cores, each.shape) for each in NEURON.instances]

    assert [
        (name, int(devices), int(cores), shape) for name, devices, cores, shape in rows
    ] == known


def test_every_resource_and_its_variable_are_named() -> None:
    variables = {NEURON.environment, *(each.environment for each in NEURON.resources)} - {""}
    for word in (*variables, *(each.name for each in NEURON.resources)):
        assert f"`{word}" in PAGE
