"""The running scheduler: it feeds the engine from the API server and carries out its effects."""
