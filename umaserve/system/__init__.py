"""Files, folders, processes and peers, as the operating system has them."""
