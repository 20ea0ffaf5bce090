"""Benchmarks: programs that measure, each against a peer or a bare loop in the same run."""
