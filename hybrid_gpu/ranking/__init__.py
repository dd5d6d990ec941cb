"""From first-stage results to a ranking: what each method does with one batch of queries.

The state of an index, what a first stage found and what was asked enter; scores and then the best
items leave. All of it is in the index's own order of items, until the last step gives the user's
ids back. No module here reads files, cuts query sets into batches, or changes an index.

To be read in this order: ``columns``, ``state``, ``query_expansion``, ``first_stage``,
``top_items``, ``request``, ``local_ranking``, ``methods``, ``asking``.
"""
