"""Engine processes as the front sees them: their start, their life, their end."""
