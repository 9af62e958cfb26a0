"""The Controller, except that it remembers few instances that are gone.

What it keeps of them is bounded; here that bound is reached early, so that memory which grows afterwards is a leak.
"""

import sys

from controller.__main__ import main
from controller.fault_manager import board, history

KEPT_DELETED = 5

if __name__ == "__main__":
    vars(board).update(KEPT_DELETED=KEPT_DELETED)
    vars(history).update(KEPT_DELETED=KEPT_DELETED)
    sys.exit(main())
