"""Programs that others wrote, installed as they are, against a real daemon: `make test-clients`."""
