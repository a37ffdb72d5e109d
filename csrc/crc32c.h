/* csrc/crc32c.h -- CRC-32C (Castagnoli, reflected polynomial 0x82f63b78), the checksum of magic-2 batches.
 * Nothing here allocates, locks, or knows about Python. */
#ifndef KC_CRC32C_H
#define KC_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The CRC of some earlier bytes, whose CRC is `value` (0 for none), followed by data[0..size). */
uint32_t kc_crc32c(uint32_t value, const uint8_t *data, size_t size);

#endif
