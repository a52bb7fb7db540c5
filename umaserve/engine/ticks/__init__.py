"""The compiled ticks: plan, fill, decode, sample, settle, publish."""
