"""From an observation to diffused scores: filters, bases and solvers.

A graph, an observation and a filter enter; scores (n, m) with their residuals leave. The modules
follow the paper: filters and their spectrum, the basis that is taken out, the steps that do the
rest. No module here knows of descriptors, methods or indexes.

To be read in this order: ``filters``, ``observation``; ``block_eigensolver`` and ``spectrum``;
``basis`` and ``coarse_inverse``, then ``galerkin_basis``, ``aggregate_basis``, ``eigen_basis``
and ``basis_kinds``;
``solution``, ``chebyshev``, ``conjugate_gradients``, ``paper_hybrid``, ``diffuse``; ``local``.
"""
