"""What is known about the world, as data."""
