"""Values: what the cluster is made of, as plain immutable structs.

No NumPy here, so that a node agent can use these values without it.
"""
