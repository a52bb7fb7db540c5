"""``umaserve doctor``: what this machine has, and what to do about what is missing."""
