"""The order application and the scenarios that `make demo` and the tests run."""
