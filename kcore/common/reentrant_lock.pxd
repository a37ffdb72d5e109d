from cpython.pythread cimport PyThread_type_lock


cdef class ReentrantLock:
    cdef PyThread_type_lock _lock
    cdef unsigned long _owner  # thread ident; looked at only to ask "is it me?", which no other thread can change
    cdef long _depth

    cdef int enter(self) except -1
    cdef int leave(self) except -1
