"""The fields of messages as tables: types, ranges, defaults, and words for them."""
