"""A follower's fetchers: what they ask, what they do with the replies, which thread does it."""
