"""Times of attention on a real GPU, side by side with what else computes it there."""
