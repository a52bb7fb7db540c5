"""Results of ``llama_decode``, by name; below 0 are errors.

``GIVEN_UP`` is also the status of a chunk of a prompt that we have not let it finish.
"""

DECODED = 0
NO_KV_SLOT = 1  # the KV cache has no cells for the batch
GIVEN_UP = 2  # the abort callback said so, or the backend
NO_LOGITS = 1 << 20  # none of its: llama_get_logits_ith has none of a decoded batch
