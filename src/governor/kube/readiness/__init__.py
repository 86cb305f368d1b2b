"""Whether an object of a cluster does what it is there for, judged from the object alone, in the manner of kstatus.

``table`` judges one object, by the rule of its kind or by the caller's own (``rules``); ``summary`` makes one verdict
of many. Everything is pure: fetching objects, and how long to wait for them, is the caller's.
"""
