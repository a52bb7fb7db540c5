"""What ticks cost on this machine, learned, and what follows for their size."""
