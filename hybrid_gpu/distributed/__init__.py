"""Query sets that outgrow one process: a re-ranker that travels, and files worked off in shards.

Every process holds the whole index, mapped from the same files, and answers some of the queries.
"""
