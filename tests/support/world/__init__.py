"""The world of a Controller in memory and in the loop's time: pods, engines, Coordinators, stores, and their troubles.

NodeManagers keep guard, fence and retirement with the rules of the real one. A Controller can be killed: from then on
nothing of it gets through to anybody, as after SIGKILL, and a new one begins with what is stored.
"""
