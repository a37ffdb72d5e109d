#include "file_faults.h"

#include <errno.h>
#include <string.h>

#include "file.h"

static struct {
    int error;
    int64_t after_bytes;
    int64_t times;
    int64_t calls;
} faults[KC_CALL_MSYNC + 1];

/* How many of `size` bytes the call may move; -1 when it has to fail, errno set. */
static int64_t allowed(kc_file_call call, int64_t size) {
    faults[call].calls++;
    if (faults[call].times == 0) return size;
    if (faults[call].after_bytes > 0) {
        int64_t n = size < faults[call].after_bytes ? size : faults[call].after_bytes;
        faults[call].after_bytes -= n;
        if (faults[call].after_bytes == 0 && faults[call].error == 0) faults[call].times = 0;
        return n;
    }
    faults[call].times--;
    errno = faults[call].error;
    return -1;
}

static ssize_t faulty_pread(int fd, void *buf, size_t size, off_t position) {
    int64_t n = allowed(KC_CALL_PREAD, (int64_t)size);
    return n < 0 ? -1 : kc_file_ops_libc.pread(fd, buf, (size_t)n, position);
}

static ssize_t faulty_pwrite(int fd, const void *buf, size_t size, off_t position) {
    int64_t n = allowed(KC_CALL_PWRITE, (int64_t)size);
    return n < 0 ? -1 : kc_file_ops_libc.pwrite(fd, buf, (size_t)n, position);
}

static int faulty_ftruncate(int fd, off_t size) {
    return allowed(KC_CALL_FTRUNCATE, 0) < 0 ? -1 : kc_file_ops_libc.ftruncate(fd, size);
}

static int faulty_fsync(int fd) { return allowed(KC_CALL_FSYNC, 0) < 0 ? -1 : kc_file_ops_libc.fsync(fd); }

static int faulty_msync(void *address, size_t size, int flags) {
    return allowed(KC_CALL_MSYNC, 0) < 0 ? -1 : kc_file_ops_libc.msync(address, size, flags);
}

static const kc_file_ops faulty = {faulty_pread, faulty_pwrite, faulty_ftruncate, faulty_fsync, faulty_msync};

void kc_file_fail_next(kc_file_call call, int error, int64_t after_bytes, int64_t times) {
    kc_file_ops_now = &faulty;
    faults[call].error = error;
    faults[call].after_bytes = after_bytes;
    faults[call].times = times;
}

void kc_file_count_calls(void) {
    memset(faults, 0, sizeof faults);
    kc_file_ops_now = &faulty;
}

void kc_file_clear_faults(void) {
    memset(faults, 0, sizeof faults);
    kc_file_ops_now = &kc_file_ops_libc;
}

int64_t kc_file_calls(kc_file_call call) { return faults[call].calls; }
