"""Pictures to embeddings: the client half of uma-eyes."""
