"""Coroutines run on asyncio's own loop and on uvloop, as the tests of the network do."""

from tests.kube_net.conftest import ca, pytest_generate_tests, pytest_pyfunc_call, runner

__all__ = ["ca", "pytest_generate_tests", "pytest_pyfunc_call", "runner"]
