"""What measures and shows: data sets, comparisons, the paper's experiments, charts and reports.

It takes data sets and settings, and gives measurements, figures and reports. It uses the library as
a user does, through indexes and their searches. Only the command line and the public module
``hybrid_gpu.datasets`` import from it.
"""
