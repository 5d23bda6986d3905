"""RLlib's old API stack, member by member, on RLlib's classes and on those of `fastmarl.legacy`."""
