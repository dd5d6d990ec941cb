"""The index: built, searched, changed, stored.

Descriptors, lists, graphs or a folder enter; an index or rankings of whole query sets leave. Every
function maps one frozen state to another, or to an answer, and ``DiffusionIndex`` on top is what
users hold. No module here prints, plots or knows a data set.

To be read in this order: ``build``, ``search``, ``update``, ``packing``, ``file_checks``,
``storage``, ``precompute``, ``views``, ``diffusion_index``, ``spreading``, ``replicas``,
``factory``, ``plan``.
"""
