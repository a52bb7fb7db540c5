"""Requests from their arrival to their last event."""
