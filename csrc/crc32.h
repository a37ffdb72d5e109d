/* csrc/crc32.h -- CRC-32 (IEEE 802.3, reflected polynomial 0xedb88320), the checksum of messages of magic 0 and 1.
 * The fastest kernel this CPU has is chosen when the library is loaded.
 * Nothing here allocates, locks, or knows about Python. */
#ifndef KC_CRC32_H
#define KC_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* The CRC of some earlier bytes, whose CRC is `value` (0 for none), followed by data[0..size). */
uint32_t kc_crc32(uint32_t value, const uint8_t *data, size_t size);

#endif
