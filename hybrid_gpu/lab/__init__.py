"""What measures and shows: data sets, comparisons, the paper's experiments, charts and reports.

Data sets and settings enter; measurements, figures and reports leave. It uses the library as a user
does, through indexes and their searches. Nothing outside of it and of the command line may depend
on it.
"""
