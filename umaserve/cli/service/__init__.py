"""`umaserve service`: the daemon as a service that the system starts for this user."""
