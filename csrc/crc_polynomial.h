/* csrc/crc_polynomial.h -- what the CRCs of 32 bits share, for one polynomial: the file that includes this has
 * defined POLYNOMIAL, reflected.  A register holds a polynomial mod P of degree < 32 with its coefficients
 * reversed: bit 31 is that of x^0.  Carry-less multiplication keeps that order but for a factor of x, which the
 * constants absorb.
 * Source: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ" (Intel, 2009). */
#ifndef KC_CRC_POLYNOMIAL_H
#define KC_CRC_POLYNOMIAL_H

#include "bytes.h"

/* tables[0] is the byte-at-a-time table; tables[k][b] is the CRC of b followed by k zero bytes. */
static uint32_t tables[8][256];

static void make_tables(void) {
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? POLYNOMIAL : 0);
        tables[0][b] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t b = 0; b < 256; b++)
            tables[k][b] = (tables[k - 1][b] >> 8) ^ tables[0][tables[k - 1][b] & 0xff];
}

/* Slice-by-8: eight bytes a step, one table look-up each.  Byte order does not matter to it. */
static uint32_t crc_by_table(uint32_t value, const uint8_t *p, size_t size) {
    uint32_t crc = ~value;
    for (; size >= 8; p += 8, size -= 8) {
        uint32_t a = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        crc = tables[7][a & 0xff] ^ tables[6][a >> 8 & 0xff] ^ tables[5][a >> 16 & 0xff] ^ tables[4][a >> 24] ^
              tables[3][p[4]] ^ tables[2][p[5]] ^ tables[1][p[6]] ^ tables[0][p[7]];
    }
    while (size--) crc = (crc >> 8) ^ tables[0][(crc ^ *p++) & 0xff];
    return ~crc;
}

#if defined(__x86_64__) || defined(__aarch64__)

static inline uint64_t load64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

#endif

#if defined(__x86_64__)

#include <immintrin.h>

#define SSE42 __attribute__((target("sse4.2,pclmul")))

#endif

/* x^n mod P. */
static inline uint32_t power_of_x(int n) {
    uint32_t v = 0x80000000u;
    while (n-- > 0) v = (v >> 1) ^ (v & 1 ? POLYNOMIAL : 0);
    return v;
}

/* Folding: a 128-bit lane, moved over `bits` and added to the data there, leaves the remainder the same.
 * Each half is multiplied by a constant of its own; {low, high} of a lane. */
static inline void make_fold(uint64_t *lane, int bits) {
    lane[0] = (uint64_t)power_of_x(bits + 32) << 1;
    lane[1] = (uint64_t)power_of_x(bits - 32) << 1;
}

#endif
