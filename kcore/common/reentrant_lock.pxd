cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_mutexattr_t:
        pass
    int PTHREAD_MUTEX_RECURSIVE
    int pthread_mutexattr_init(pthread_mutexattr_t *attributes)
    int pthread_mutexattr_settype(pthread_mutexattr_t *attributes, int kind)
    int pthread_mutexattr_destroy(pthread_mutexattr_t *attributes)
    int pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)
    int pthread_mutex_trylock(pthread_mutex_t *mutex)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)


cdef class ReentrantLock:
    cdef pthread_mutex_t _mutex
    cdef long _depth

    cdef int enter(self) except -1
    cdef int leave(self) except -1
