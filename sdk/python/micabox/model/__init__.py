"""What calls return."""
