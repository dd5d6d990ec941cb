"""Files: written so that nothing is lost, read without trust.

Reading gives NumPy arrays and plain values that were checked, or an error that names the file. A
writer locks its folder, and puts every file in place in one step. Nothing here knows what a graph
or an index is.
"""
