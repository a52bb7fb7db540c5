"""KV cells: who holds how many, where they lie, who gives some back."""
