"""Kubernetes at the edge: its JSON and YAML in, the core's values out."""
