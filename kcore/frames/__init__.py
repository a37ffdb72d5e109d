"""A topic's log files as one table, which Arrow, DuckDB and Polars query; plots of a log."""
