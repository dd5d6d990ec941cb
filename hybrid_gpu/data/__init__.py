"""Small data sets that are shipped with the package; ATTRIBUTION.md says where they come from."""
