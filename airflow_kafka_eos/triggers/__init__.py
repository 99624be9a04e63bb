"""What the sensors wait with, in the triggerer."""
