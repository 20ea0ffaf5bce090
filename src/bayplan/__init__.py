"""Bayplan: which pod gets which node, and which devices.

Nothing is imported here, so that a small part of it stays small.
"""
