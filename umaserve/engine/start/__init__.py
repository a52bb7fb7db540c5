"""What happens before the first request, and while nobody asks: proof, touch, measurements."""
