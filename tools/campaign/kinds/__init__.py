"""The kinds of trials: every module here has a tuple `KINDS`."""
