/* csrc/zstd_frame.h -- how much a zstd frame can hold, without unpacking it.
 *
 *   magic number  0xfd2fb528, little-endian as all of zstd
 *   descriptor    bits 0-1: size of the dictionary id, 2: a checksum ends the frame, 5: single segment, 6-7: size of
 *                 the content size
 *   window        exponent and mantissa, not in a single segment
 *   dictionary id 0, 1, 2 or 4 bytes
 *   content size  0, 1, 2, 4 or 8 bytes; what streams leaves it out, as Kafka's Java client does
 *   blocks        three bytes each (bit 0: the last, 1-2: raw, one byte repeated, compressed; then a size) and contents
 *   checksum      4 bytes
 *
 * Source: RFC 8878, 3.1.1.  Nothing here allocates, locks, or knows about Python. */
#ifndef KC_ZSTD_FRAME_H
#define KC_ZSTD_FRAME_H

#include <stdint.h>

/* The most bytes that can come out of data[0..size), and never fewer than do: exactly one frame, whole.  -1 when it is
 * anything else, a frame that claims more than its blocks can hold, or one that would need so much more room than it
 * takes itself (1 MiB and 64 times its size) that it is better unpacked piece by piece. */
int64_t kc_zstd_most(const uint8_t *data, int64_t size);

#endif
