"""The node agent: a device plugin that follows the scheduler's choice, and tells what came of it.

Imports `kube` and `core.model` only, and runs without NumPy.
"""
