"""Windows, quantiles, histograms and counters: numbers in, numbers out, no clock of their own."""
