"""The learned cost of ticks on this machine, its prediction, and the sizes that follow from it."""
