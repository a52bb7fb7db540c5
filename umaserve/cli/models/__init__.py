"""`umaserve models` and `umaserve pull`: what models are there, which to serve, getting more."""
