"""The loaded model: what it can do on this device, and what that costs."""
