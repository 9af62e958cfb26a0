"""What ``scripts/soak`` runs: a whole system that breaks and recovers again and again, and is measured.

``faults`` break one instance, ``disturbances`` what all have in common; ``witness`` and ``rules`` say what is wrong,
``samples`` and ``leaks`` what grows, ``incidents`` how each fault ended, and ``report`` all of it.
"""
