"""The two sides, as results and tables call them."""

OURS, THEIRS = "umaserve", "llama-server"
