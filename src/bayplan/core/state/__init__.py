"""The cluster as columns, the operations on it, and the pods that wait."""
