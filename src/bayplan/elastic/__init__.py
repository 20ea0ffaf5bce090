"""Elastic jobs: how many workers each may have, and the controller that makes them."""
