"""Operations that wait for a condition or a deadline."""
