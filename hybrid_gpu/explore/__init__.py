"""A page to look at rankings: what diffusion moved, and why. Written to a folder, or served."""
