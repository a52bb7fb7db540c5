"""What tests share: drivers, harnesses, patches, data.  No test imports another test."""
