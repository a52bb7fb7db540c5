"""The learned cost of ticks on this machine, and the sizes that follow from it."""
