/* Source of the three streams: Gopal et al., "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction"
 * (Intel, 2011). */
#include "crc32c.h"

#define POLYNOMIAL 0x82f63b78u
#include "crc_polynomial.h"

#if defined(__x86_64__) || defined(__aarch64__)

/* The CRC instruction takes three cycles but starts every cycle, so three independent streams keep it
 * busy; their registers are then moved to the end of the block.  Two block sizes: moving costs some 15
 * cycles, and a batch of 1 KiB should profit too. */
enum { LONG_STREAM = 1024, SHORT_STREAM = 128 };

/* What the AVX-512 kernel has fetched beforehand: it outruns the processor's own guesses, which end with each page.  A
 * segment is read at 14.4 and 16.5 GB/s with it, 10.0 and 12.4 without (batches of 1 and 16 KiB; the machine's limit is
 * 19).  That this reaches past the buffer is safe, and right where batches follow each other. */
enum { AHEAD = 4096 };

#endif

#if defined(__x86_64__)

#define AVX512 __attribute__((target("sse4.2,pclmul,avx512f,avx512vl,avx512bw,avx512dq,vpclmulqdq")))

/* Moves a register over n bits: crc32 of a 64-bit product multiplies it by x^32, and the product of two
 * reversed polynomials has a factor of x, so the constant is x^(n - 33). */
static uint64_t move_long_1, move_long_2, move_short_1, move_short_2;

SSE42 static inline uint64_t moved(uint64_t crc, uint64_t constant) {
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)crc), _mm_cvtsi64_si128((int64_t)constant), 0);
    return (uint64_t)_mm_cvtsi128_si64(product);
}

SSE42 static inline uint64_t three_streams(uint64_t crc, const uint8_t *p, size_t stream, uint64_t move_1,
                                           uint64_t move_2) {
    uint64_t a = crc, b = 0, c = 0;
    size_t i = 0;
    for (; i < stream - 8; i += 8) {
        a = _mm_crc32_u64(a, load64(p + i));
        b = _mm_crc32_u64(b, load64(p + stream + i));
        c = _mm_crc32_u64(c, load64(p + 2 * stream + i));
    }
    a = _mm_crc32_u64(a, load64(p + i));
    b = _mm_crc32_u64(b, load64(p + stream + i));
    /* The last step of c reduces the other two as well. */
    return _mm_crc32_u64(c, load64(p + 2 * stream + i) ^ moved(a, move_2) ^ moved(b, move_1));
}

SSE42 static inline uint64_t one_stream(uint64_t crc, const uint8_t *p, size_t size) {
    for (; size >= 8; p += 8, size -= 8) crc = _mm_crc32_u64(crc, load64(p));
    if (size & 4) {
        uint32_t v;
        memcpy(&v, p, sizeof v);
        crc = _mm_crc32_u32((uint32_t)crc, v);
        p += 4;
    }
    if (size & 2) {
        uint16_t v;
        memcpy(&v, p, sizeof v);
        crc = _mm_crc32_u16((uint32_t)crc, v);
        p += 2;
    }
    if (size & 1) crc = _mm_crc32_u8((uint32_t)crc, *p);
    return crc;
}

SSE42 static uint32_t crc32c_sse42(uint32_t value, const uint8_t *p, size_t size) {
    uint64_t crc = (uint32_t)~value;
    for (; size >= 3 * LONG_STREAM; p += 3 * LONG_STREAM, size -= 3 * LONG_STREAM)
        crc = three_streams(crc, p, LONG_STREAM, move_long_1, move_long_2);
    for (; size >= 3 * SHORT_STREAM; p += 3 * SHORT_STREAM, size -= 3 * SHORT_STREAM)
        crc = three_streams(crc, p, SHORT_STREAM, move_short_1, move_short_2);
    return ~(uint32_t)one_stream(crc, p, size);
}

static uint64_t fold_2048[8], fold_512[8], fold_128[8], fold_lanes[8];

AVX512 static inline __m512i folded(__m512i x, __m512i constants, __m512i data) {
    __m512i low = _mm512_clmulepi64_epi128(x, constants, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(x, constants, 0x11);
    return _mm512_ternarylogic_epi64(low, high, data, 0x96); /* xor of three */
}

AVX512 static inline __m128i folded_128(__m128i x, __m128i constants, __m128i data) {
    __m128i low = _mm_clmulepi64_si128(x, constants, 0x00);
    __m128i high = _mm_clmulepi64_si128(x, constants, 0x11);
    return _mm_ternarylogic_epi64(low, high, data, 0x96);
}

AVX512 static uint32_t crc32c_avx512(uint32_t value, const uint8_t *p, size_t size) {
    if (size < 256) return crc32c_sse42(value, p, size);
    __m512i x0 = _mm512_loadu_si512(p), x1 = _mm512_loadu_si512(p + 64);
    __m512i x2 = _mm512_loadu_si512(p + 128), x3 = _mm512_loadu_si512(p + 192);
    x0 = _mm512_xor_si512(x0, _mm512_castsi128_si512(_mm_cvtsi32_si128((int32_t)~value)));
    for (int line = 0; line < 256; line += 64) _mm_prefetch((const char *)p + AHEAD + line, _MM_HINT_T0);
    p += 256;
    size -= 256;
    __m512i k = _mm512_loadu_si512(fold_2048);
    for (; size >= 256; p += 256, size -= 256) {
        for (int line = 0; line < 256; line += 64) _mm_prefetch((const char *)p + AHEAD + line, _MM_HINT_T0);
        x0 = folded(x0, k, _mm512_loadu_si512(p));
        x1 = folded(x1, k, _mm512_loadu_si512(p + 64));
        x2 = folded(x2, k, _mm512_loadu_si512(p + 128));
        x3 = folded(x3, k, _mm512_loadu_si512(p + 192));
    }
    k = _mm512_loadu_si512(fold_512);
    x0 = folded(folded(folded(x0, k, x1), k, x2), k, x3);
    for (; size >= 64; p += 64, size -= 64) {
        _mm_prefetch((const char *)p + AHEAD, _MM_HINT_T0);
        x0 = folded(x0, k, _mm512_loadu_si512(p));
    }
    /* Lanes 0, 1, 2 move onto lane 3, whose constants are zero. */
    __m512i last = _mm512_maskz_mov_epi64(0xc0, x0);
    x0 = folded(x0, _mm512_loadu_si512(fold_lanes), last);
    __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(x0), _mm512_extracti64x4_epi64(x0, 1));
    __m128i x = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    __m128i k128 = _mm_loadu_si128((const __m128i *)fold_128);
    for (; size >= 16; p += 16, size -= 16) x = folded_128(x, k128, _mm_loadu_si128((const __m128i *)p));
    /* 128 bits that have the remainder of everything so far: the CRC instruction takes it. */
    uint64_t crc = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(x));
    crc = _mm_crc32_u64(crc, (uint64_t)_mm_extract_epi64(x, 1));
    return ~(uint32_t)one_stream(crc, p, size);
}

static int make_constants(kc_crc32c_kernel *kernels) {
    int count = 0;
    move_long_1 = power_of_x(8 * LONG_STREAM - 33);
    move_long_2 = power_of_x(16 * LONG_STREAM - 33);
    move_short_1 = power_of_x(8 * SHORT_STREAM - 33);
    move_short_2 = power_of_x(16 * SHORT_STREAM - 33);
    for (int lane = 0; lane < 8; lane += 2) {
        make_fold(fold_2048 + lane, 2048);
        make_fold(fold_512 + lane, 512);
        make_fold(fold_128 + lane, 128);
    }
    for (int lane = 0; lane < 3; lane++) make_fold(fold_lanes + 2 * lane, 128 * (3 - lane));
    __builtin_cpu_init();
    int sse42 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
    if (sse42 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("vpclmulqdq"))
        kernels[count++] = (kc_crc32c_kernel){"avx512", crc32c_avx512};
    if (sse42) kernels[count++] = (kc_crc32c_kernel){"sse42", crc32c_sse42};
    return count;
}

#elif defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__

#if defined(__linux__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

/* Spelled as assembly so that no compiler flag or header decides whether it exists. */
static inline uint32_t crc_step64(uint32_t crc, uint64_t data) {
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(data));
    return crc;
}

static inline uint32_t crc_step8(uint32_t crc, uint8_t data) {
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)data));
    return crc;
}

/* move[i][b]: byte i of a register holding b, moved over one stream. */
static uint32_t move_long[4][256], move_short[4][256];

static void make_move(uint32_t move[4][256], int stream) {
    uint32_t constant = power_of_x(8 * stream);
    for (int i = 0; i < 4; i++)
        for (uint32_t b = 0; b < 256; b++) {
            uint32_t product = 0, factor = constant;
            for (int bit = 31; bit >= 0; bit--) { /* bit 31 is x^0: shift and add */
                if ((b << 8 * i) >> bit & 1) product ^= factor;
                factor = (factor >> 1) ^ (factor & 1 ? POLYNOMIAL : 0);
            }
            move[i][b] = product;
        }
}

static inline uint32_t moved(uint32_t crc, uint32_t move[4][256]) {
    return move[0][crc & 0xff] ^ move[1][crc >> 8 & 0xff] ^ move[2][crc >> 16 & 0xff] ^ move[3][crc >> 24];
}

static inline uint32_t three_streams(uint32_t crc, const uint8_t *p, size_t stream, uint32_t move[4][256]) {
    uint32_t a = crc, b = 0, c = 0;
    for (size_t i = 0; i < stream; i += 8) {
        a = crc_step64(a, load64(p + i));
        b = crc_step64(b, load64(p + stream + i));
        c = crc_step64(c, load64(p + 2 * stream + i));
    }
    return moved(moved(a, move) ^ b, move) ^ c;
}

static uint32_t crc32c_armv8(uint32_t value, const uint8_t *p, size_t size) {
    uint32_t crc = ~value;
    for (; size >= 3 * LONG_STREAM; p += 3 * LONG_STREAM, size -= 3 * LONG_STREAM)
        crc = three_streams(crc, p, LONG_STREAM, move_long);
    for (; size >= 3 * SHORT_STREAM; p += 3 * SHORT_STREAM, size -= 3 * SHORT_STREAM)
        crc = three_streams(crc, p, SHORT_STREAM, move_short);
    for (; size >= 8; p += 8, size -= 8) crc = crc_step64(crc, load64(p));
    while (size--) crc = crc_step8(crc, *p++);
    return ~crc;
}

static int make_constants(kc_crc32c_kernel *kernels) {
#if defined(__linux__)
    if (!(getauxval(AT_HWCAP) & HWCAP_CRC32)) return 0;
#elif !defined(__APPLE__) /* every Apple CPU of this architecture has it */
    return 0;
#endif
    make_move(move_long, LONG_STREAM);
    make_move(move_short, SHORT_STREAM);
    kernels[0] = (kc_crc32c_kernel){"armv8", crc32c_armv8};
    return 1;
}

#else

static int make_constants(kc_crc32c_kernel *kernels) {
    (void)kernels;
    return 0;
}

#endif

static kc_crc32c_kernel kernels[3];
static int kernel_count;
static kc_crc32c_function chosen;

__attribute__((constructor)) static void choose(void) {
    make_tables();
    kernel_count = make_constants(kernels);
    kernels[kernel_count++] = (kc_crc32c_kernel){"table", crc_by_table};
    chosen = kernels[0].function;
}

const kc_crc32c_kernel *kc_crc32c_kernels(int *count) {
    *count = kernel_count;
    return kernels;
}

uint32_t kc_crc32c(uint32_t value, const uint8_t *data, size_t size) { return chosen(value, data, size); }
