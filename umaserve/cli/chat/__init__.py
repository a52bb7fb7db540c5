"""``umaserve chat``: a conversation in the terminal."""
