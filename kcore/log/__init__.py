"""One partition directory, then all of them."""
