"""What one array loses."""
