"""What people and files are told in numbers."""
