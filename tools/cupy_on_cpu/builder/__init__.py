"""How the stand-in is built: see ``layout.py`` for what goes where."""
