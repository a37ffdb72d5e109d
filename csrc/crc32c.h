/* csrc/crc32c.h -- CRC-32C (Castagnoli, reflected polynomial 0x82f63b78), the checksum of magic-2 batches.
 * The fastest kernel this CPU has is chosen when the library is loaded.
 * Nothing here allocates, locks, or knows about Python. */
#ifndef KC_CRC32C_H
#define KC_CRC32C_H

#include <stddef.h>
#include <stdint.h>

typedef uint32_t (*kc_crc32c_function)(uint32_t value, const uint8_t *data, size_t size);

typedef struct kc_crc32c_kernel {
    const char *name; /* "avx512", "sse42", "armv8" or "table" */
    kc_crc32c_function function;
} kc_crc32c_kernel;

/* The CRC of some earlier bytes, whose CRC is `value` (0 for none), followed by data[0..size). */
uint32_t kc_crc32c(uint32_t value, const uint8_t *data, size_t size);

/* The kernels that can run here, fastest first; the last, "table", runs anywhere. */
const kc_crc32c_kernel *kc_crc32c_kernels(int *count);

#endif
