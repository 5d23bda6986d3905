"""Random cases for the standalone runner beside RLlib's real one, see test_standalone_fuzz.py."""
