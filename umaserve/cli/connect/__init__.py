"""`umaserve connect`: the editors and agents of this machine, set up for the daemon."""
