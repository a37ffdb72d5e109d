/* csrc/file_faults.h -- lets the next system calls of some kinds on a log's files fail.  For tests only:
 * process-wide, not thread-safe. */
#ifndef KC_FILE_FAULTS_H
#define KC_FILE_FAULTS_H

#include <stdint.h>

typedef enum kc_file_call {
    KC_CALL_PREAD,
    KC_CALL_PWRITE,
    KC_CALL_FTRUNCATE,
    KC_CALL_FSYNC,
    KC_CALL_MSYNC,
} kc_file_call;

/* The next `times` calls of this kind fail with `error` after the first `after_bytes` bytes went through,
 * in a call that comes back short if need be.  error 0: only the short call, nothing fails. */
void kc_file_fail_next(kc_file_call call, int error, int64_t after_bytes, int64_t times);

/* Back to libc. */
void kc_file_clear_faults(void);

/* How many calls of this kind were made since kc_file_count_calls or the first fault. */
int64_t kc_file_calls(kc_file_call call);
void kc_file_count_calls(void);

#endif
