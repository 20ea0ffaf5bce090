"""An embedded Kubernetes API and pretend nodes, for laptops, tests and simulations."""
