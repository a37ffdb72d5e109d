/* csrc/file_faults.h -- a simulated disk: lets chosen system calls on log directories fail, or writes down what
 * they change, so that a test can make the directory of any moment.  For tests only: process-wide; reads
 * /proc, so only on Linux for what is chosen by path or written down. */
#ifndef KC_FILE_FAULTS_H
#define KC_FILE_FAULTS_H

#include <stdint.h>

typedef enum kc_file_call {
    KC_CALL_OPEN,
    KC_CALL_OPEN_WRITE, /* an open that may write or create */
    KC_CALL_STAT,
    KC_CALL_PREAD,
    KC_CALL_PWRITE,
    KC_CALL_FTRUNCATE,
    KC_CALL_FSYNC,
    KC_CALL_MMAP,
    KC_CALL_MSYNC,
    KC_CALL_RENAME,
    KC_CALL_UNLINK,
    KC_CALL_MKDIR,
    KC_CALL_RMDIR,
    KC_CALL_OPENDIR,
    KC_CALL_READDIR,
    KC_CALL_COUNT,
    /* Not calls: what a mapping held when the next call was made, and a file that an open made. */
    KC_STORES = KC_CALL_COUNT,
    KC_CREATED,
} kc_file_call;

/* What becomes of a call: it fails; it is made, and writes with the lowest bit of its last byte flipped; it says that
 * it was made, and is not; it is made after a while. */
typedef enum kc_file_effect { KC_FAULT_FAIL, KC_FAULT_FLIP, KC_FAULT_LOSE, KC_FAULT_WAIT } kc_file_effect;

/* Which calls have a fault: those whose bit (1 << kc_file_call) is set and whose path, or one of whose paths, begins
 * with `under` and ends with `ending` ("": all), and that `thread` makes (a pthread_t; 0: any); the first `skip` of them
 * are spared, the next `times` (negative: all) have the `effect`.
 * KC_FAULT_FAIL: with `error` after the first `after_bytes` bytes went through, in a call that comes back short if need
 * be; error 0: only the short call, nothing fails.  KC_FAULT_FLIP is for pwrite, KC_FAULT_LOSE for fsync and msync,
 * KC_FAULT_WAIT, of `wait_ms`, for these three.
 * Where several are for a call, the one that was made last has it; the one that was made before it has the next call when
 * the last one has had its `times`, or was ended.
 * hits: how many calls had the fault so far.  id, hits: kc_file_fail() sets them. */
typedef struct kc_file_fault {
    int64_t id;
    uint32_t calls;
    int error;
    int64_t skip;
    int64_t times;
    int64_t after_bytes;
    uint64_t thread;
    kc_file_effect effect;
    int64_t wait_ms;
    int64_t hits;
    char under[512];
    char ending[16];
} kc_file_fault;

/* One more fault.  Its id, above 0; 0 if there was no room for it. */
int64_t kc_file_fail(const kc_file_fault *fault);

/* End the fault with this id, if there is one; how many calls had it. */
int64_t kc_file_end_fault(int64_t id);

/* How many calls had it so far; 0 if there is none with this id. */
int64_t kc_file_fault_hits(int64_t id);

/* Such calls wait, when they are counted and it is decided whether they fail, until kc_file_clear_faults. */
void kc_file_hold(kc_file_call call);

/* Back to libc. */
void kc_file_clear_faults(void);

/* How many calls of this kind were made since kc_file_count_calls or the first fault. */
int64_t kc_file_calls(kc_file_call call);
void kc_file_count_calls(void);

/* Append a kc_file_entry to the file `fd` for each call that changed something, until kc_file_clear_faults. */
void kc_file_record(int fd);

typedef struct kc_file_entry { /* followed by the path, a NUL, for a rename the other path and a NUL, and the data */
    int32_t call;
    int32_t path_size;
    int64_t inode;
    int64_t position; /* of a pwrite or the size of an ftruncate */
    int64_t size;     /* of the data: what was written, or what a mapping holds */
} kc_file_entry;

#endif
