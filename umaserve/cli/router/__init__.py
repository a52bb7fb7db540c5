"""``umaserve router``: configurations of load balancers for several daemons."""
