"""What several tests share: small data, small games, small configurations. No test imports another test."""
