"""The device models: for a pool of devices, which of them a request gets, and what that costs."""
