"""Files: written so that nothing is lost, read without trust.

Arrays and small JSON come in from a path and leave as checked NumPy arrays, or as an error that
names the file. A folder that is written to is owned under a lock, and every file in it is put in
place in one step. Nothing here knows what a graph or an index is.
"""
