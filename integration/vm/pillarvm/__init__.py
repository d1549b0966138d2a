"""Boots the stock Debian kernel in QEMU and runs test cases against programs in the machines. See docs/testing.md."""
