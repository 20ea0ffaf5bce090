"""V-IPU controllers over gRPC, and a pretend one for laptops, tests and simulations."""
