"""Devices through resourceClaims, which nobody here allocates."""

from collections.abc import Sequence

from bayplan.core.model.verdicts import Reason
from bayplan.core.plugins.hooks import Ask, Filter, Reads, Reject
from bayplan.core.state.arrays import Codes
from bayplan.core.state.cluster import Cluster
from bayplan.core.state.view import View


class DynamicResources:
    """Refuses pods with resourceClaims: bound without an allocation, they would never start."""

    name = "DynamicResources"
    reads = Reads.STATIC

    def reject(self, ask: Ask, cluster: Cluster) -> Reason | None:
        if not ask.row.resource_claims:
            return None
        text = "pod uses resourceClaims, which this scheduler does not allocate"
        return Reason(text, False, frozenset())

    def refuse(self, ask: Ask, view: View) -> Codes | None:
        return None

    def reasons(self, ask: Ask) -> Sequence[Reason]:
        return ()


_: type[Filter] = DynamicResources
__: type[Reject] = DynamicResources
