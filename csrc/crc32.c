#include "crc32.h"

#define POLYNOMIAL 0xedb88320u
#include "crc_polynomial.h"

static uint32_t (*chosen)(uint32_t value, const uint8_t *data, size_t size);

#if defined(__x86_64__)

static uint64_t fold_512[2], fold_128[2];

SSE42 static inline __m128i load128(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }

SSE42 static inline __m128i folded(__m128i x, __m128i constants, __m128i data) {
    __m128i low = _mm_clmulepi64_si128(x, constants, 0x00);
    __m128i high = _mm_clmulepi64_si128(x, constants, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), data);
}

/* shift + 16 - n moves a lane up by n bytes, zeros coming in: _mm_shuffle_epi8 puts 0 for an index of 0x80. */
static const uint8_t shift[32] = {0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
                                  0x80, 0x80, 0x80, 0x80, 0x80, 0,    1,    2,    3,    4,    5,
                                  6,    7,    8,    9,    10,   11,   12,   13,   14,   15};

/* Tables are as quick below 64 bytes. */
SSE42 static uint32_t crc32_pclmul(uint32_t value, const uint8_t *p, size_t size) {
    uint8_t rest[16];
    if (size < 64) return crc_by_table(value, p, size);
    __m128i k = load128((const uint8_t *)fold_128);
    __m128i x = _mm_xor_si128(load128(p), _mm_cvtsi32_si128((int32_t)~value));
    /* What is more than whole lanes comes first: zeros before it change nothing, unlike zeros after the end.  Where
     * it is shorter than the register, that goes on into the next lane. */
    size_t head = size % 16;
    if (head) {
        __m128i next = load128(p + head);
        if (head < 4) next = _mm_xor_si128(next, _mm_cvtsi32_si128((int32_t)(~value >> (8 * head))));
        x = folded(_mm_shuffle_epi8(x, load128(shift + head)), k, next);
        p += head;
        size -= head;
    }
    p += 16;
    size -= 16;
    if (size >= 112) {
        __m128i k512 = load128((const uint8_t *)fold_512);
        __m128i x1 = load128(p), x2 = load128(p + 16), x3 = load128(p + 32);
        for (p += 48, size -= 48; size >= 64; p += 64, size -= 64) {
            x = folded(x, k512, load128(p));
            x1 = folded(x1, k512, load128(p + 16));
            x2 = folded(x2, k512, load128(p + 32));
            x3 = folded(x3, k512, load128(p + 48));
        }
        x = folded(folded(folded(x, k, x1), k, x2), k, x3);
    }
    for (; size; p += 16, size -= 16) x = folded(x, k, load128(p));
    /* 128 bits that have the remainder of everything, for an empty register: ~value is that. */
    _mm_storeu_si128((__m128i *)rest, x);
    return crc_by_table(UINT32_MAX, rest, sizeof rest);
}

static void choose_kernel(void) {
    make_fold(fold_512, 512);
    make_fold(fold_128, 128);
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) chosen = crc32_pclmul;
}

#else

static void choose_kernel(void) {}

#endif

__attribute__((constructor)) static void choose(void) {
    make_tables();
    chosen = crc_by_table;
    choose_kernel();
}

uint32_t kc_crc32(uint32_t value, const uint8_t *data, size_t size) { return chosen(value, data, size); }
