"""Hostile input on every surface: whatever comes in, it is judged; nothing crashes, leaks or is accepted half.

The examples are the same in every run. To search further, raise EXAMPLES of ``generators`` for a while.
"""
