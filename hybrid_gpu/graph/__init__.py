"""From descriptors to the graph that diffusion runs on.

Descriptors, k-NN lists or an affinity enter; a normalized graph, its groups and the order in which
its items lie close together in memory leave. Everything is numbered as the caller numbers it. No
module here knows of queries, filters or rankings.

To be read in this order: ``neighbors``, ``affinity`` (with ``csr`` below it), ``aggregation``.
"""
