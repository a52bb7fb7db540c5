"""The front as a process over its real socket, beside a scripted engine."""
