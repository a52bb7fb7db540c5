"""KV cells: who holds how many of them, who may get some, who has to give some back."""
