"""One file per API: decode, check, call one method below, encode."""
