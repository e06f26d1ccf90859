"""Rows on a Dask cluster: only parameters travel out, only statistics travel back."""
