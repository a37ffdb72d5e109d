/* csrc/status.h -- the outcomes of every function in csrc, and the only way C reports failure.
 * A function that can fail takes a kc_error and fills it before it returns a negative status;
 * kcore/common/status.pyx turns it into an exception, in that one place. */
#ifndef KC_STATUS_H
#define KC_STATUS_H

#include <stdint.h>

typedef enum kc_status {
    KC_OK = 0,
    KC_TRUNCATED = -1,          /* bytes end inside a batch or record: not corrupt by itself at a buffer's tail */
    KC_CORRUPT = -2,            /* a length, count or CRC that cannot be right */
    KC_UNSUPPORTED_MAGIC = -3,  /* a record format that this function does not read */
    KC_INVALID_RECORD = -4,     /* well-formed bytes that break a rule for records */
    KC_INVALID_TIMESTAMP = -5,
    KC_INDEX_FULL = -6,
    KC_INVALID_OFFSET = -7,     /* an offset that does not ascend */
    KC_OFFSET_OVERFLOW = -8,    /* offset - base offset does not fit in 31 bits */
    KC_CORRUPT_INDEX = -9,
    KC_IO = -10,                /* actual holds errno */
    KC_INVALID_ARGUMENT = -11,
    KC_NO_MEMORY = -12,
} kc_status;

/* What went wrong and where.  `what` is a static string that names the field or the system call;
 * `position` counts bytes from the start of the buffer or file; expected and actual are the two
 * values that disagree (for a limit: the limit and the value found). */
typedef struct kc_error {
    kc_status status;
    const char *what;
    int64_t position;
    int64_t expected;
    int64_t actual;
} kc_error;

__attribute__((cold)) static inline kc_status kc_fail(kc_error *err, kc_status status, const char *what, int64_t position,
                                int64_t expected, int64_t actual) {
    err->status = status;
    err->what = what;
    err->position = position;
    err->expected = expected;
    err->actual = actual;
    return status;
}

#endif
