"""Work beside the requests: embeddings, and log-probabilities of prompts."""
