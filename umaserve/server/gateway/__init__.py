"""The HTTP gateway as the front sees it: the addresses it listens at, and its process."""
