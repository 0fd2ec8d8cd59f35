// A forward pass of all-MiniLM-L6-v2 in int8 or bf16, over texts of any lengths one behind the other: no padding.
//
// An experiment that Shoal does not use: docs/performance.md, "What was tried". native.py compiles, loads and feeds it.
//
// It runs on x86-64 processors with AVX-512 (F, BW, DQ, VL), AVX-512 VNNI and AVX-512 BF16: AMD from Zen 4 on, Intel
// from Sapphire Rapids on. It uses no AMX. It knows one model, whose sizes are the constants below, and the mean of the
// tokens with length 1: no other widths, activations or poolings, no vectors of tokens, no rerankers, no f32. It does
// not check its arguments; native.py does.
//
// A block of texts goes through all layers on one thread, so that threads wait for each other only at the end. Weights
// are a stream of panels in the order of their use, each of 48 outputs x 384 inputs, which stays in the caches while
// all tokens of the block pass it. A product has a multiple of 384 inputs; each 384 of a token have a scale of their
// own, which is measured as the numbers come. Attention multiplies in bf16; norms, GELU, softmax and sums are f32.
#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace {

constexpr int WIDTH = 384, HEADS = 12, HEAD_WIDTH = 32, LAYERS = 6;
constexpr int PANEL_OUTPUTS = 48, ROW_VECTORS = WIDTH / 16;
constexpr int QKV_WIDTH = 3 * WIDTH;
constexpr int INNER_GROUPS = 4;  // of 384 numbers, in the feed-forward network
constexpr int WIDTH_PANELS = WIDTH / PANEL_OUTPUTS;
constexpr int LAYER_PANELS = (3 + 1 + 2 * INNER_GROUPS) * WIDTH_PANELS;
constexpr int MAX_BLOCK_TOKENS = 1024;
constexpr int TILE_TOKENS = 9, TILE_QUERIES = 6;  // as many as there are registers for
constexpr size_t HUGE_PAGE = 2 << 20;
constexpr float NORM_EPSILON = 1e-12f;

#define UNROLL _Pragma("GCC unroll 32")
#define FORCED __attribute__((always_inline))
#define INLINE inline FORCED

// Of the outputs of a panel: the scale of the weights, the bias, and the scale times the sum of the rounded weights.
struct PanelScales {
    float scale[PANEL_OUTPUTS], bias[PANEL_OUTPUTS], sum[PANEL_OUTPUTS];
};

struct Norm {
    const float *scale, *shift;
};

struct Model {
    const float *words, *positions;
    Norm embedding_norm, attention_norm[LAYERS], output_norm[LAYERS];
    uint8_t* panels;
    PanelScales* scales;
    bool is_bf16;
};

// The input of a product: rows of 384 rounded numbers. A number is `scale` times the rounded one, plus `shift`. Weights
// are stored with 128 added, since one side of VPDPBUSD has no sign; `start` takes off what this adds to the sums.
struct Rounded {
    alignas(64) uint8_t bytes[MAX_BLOCK_TOKENS * WIDTH * 2];
    float scale[MAX_BLOCK_TOKENS], shift[MAX_BLOCK_TOKENS];
    int32_t start[MAX_BLOCK_TOKENS];
};

// What a thread computes on the way. The last four are of one head.
struct Scratch {
    Rounded input, inner_input;
    alignas(64) float state[MAX_BLOCK_TOKENS * WIDTH];
    alignas(64) float inner[MAX_BLOCK_TOKENS * WIDTH];
    alignas(64) float qkv[MAX_BLOCK_TOKENS * QKV_WIDTH];
    alignas(64) float keys[HEAD_WIDTH / 2 * MAX_BLOCK_TOKENS];    // pairs of bf16
    alignas(64) float values[HEAD_WIDTH / 2 * MAX_BLOCK_TOKENS];  // pairs of bf16
    alignas(64) float scores[TILE_QUERIES * MAX_BLOCK_TOKENS];
    alignas(64) uint16_t shares[TILE_QUERIES * MAX_BLOCK_TOKENS];
};

// --- products with weights

struct Int8 {
    using Sum = __m512i;
    static constexpr int STEPS = WIDTH / 4, ROW_BYTES = WIDTH, PANEL_BYTES = PANEL_OUTPUTS * WIDTH;

    static INLINE Sum start(int32_t value) { return _mm512_set1_epi32(value); }
    static INLINE Sum multiply_add(Sum sum, __m512i weights, __m512i numbers) {
        asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(numbers));  // g++ 12 spills the sums of the intrinsic
        return sum;
    }
    static INLINE __m512 finish(Sum sum, __m512 scale, __m512 bias) {
        return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, bias);
    }
};

struct Bf16 {
    using Sum = __m512;
    static constexpr int STEPS = WIDTH / 2, ROW_BYTES = 2 * WIDTH, PANEL_BYTES = PANEL_OUTPUTS * WIDTH * 2;

    static INLINE Sum start(int32_t) { return _mm512_setzero_ps(); }
    static INLINE Sum multiply_add(Sum sum, __m512i weights, __m512i numbers) {
        return _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)numbers);
    }
    static INLINE __m512 finish(Sum sum, __m512, __m512 bias) { return _mm512_add_ps(sum, bias); }
};

INLINE __m512i broadcast(const void* four_bytes) {
    int32_t value;
    memcpy(&value, four_bytes, 4);
    return _mm512_set1_epi32(value);
}

// Scales the sums of M tokens x 48 outputs, adds the bias, and calls `store(token, vector of the panel, values)`.
template <class Kind, int M, bool SHIFTED, class Store>
INLINE void finish_tile(const typename Kind::Sum (&sums)[M][3], const Rounded& input, int first,
                        const PanelScales& scales, const Store& store) {
    UNROLL for (int j = 0; j < 3; j++) {
        __m512 scale = _mm512_loadu_ps(scales.scale + 16 * j), bias = _mm512_loadu_ps(scales.bias + 16 * j);
        __m512 sum = _mm512_loadu_ps(scales.sum + 16 * j);
        UNROLL for (int i = 0; i < M; i++) {
            __m512 of_token = SHIFTED ? _mm512_fmadd_ps(_mm512_set1_ps(input.shift[first + i]), sum, bias) : bias;
            __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(input.scale[first + i]));
            store(first + i, j, Kind::finish(sums[i][j], factor, of_token));
        }
    }
}

// Multiplies M tokens with a panel. With FETCH, asks for the next panel meanwhile.
template <class Kind, int M, bool FETCH, bool SHIFTED, class Store>
INLINE void tile(const Rounded& input, int first, const uint8_t* panel, const PanelScales& scales, const Store& store) {
    typename Kind::Sum sums[M][3];
    UNROLL for (int i = 0; i < M; i++) UNROLL for (int j = 0; j < 3; j++)
        sums[i][j] = Kind::start(input.start[first + i]);
    const uint8_t* row = input.bytes + size_t(first) * Kind::ROW_BYTES;
    for (int k = 0; k < Kind::STEPS; k++, row += 4, panel += 192) {
        __m512i w0 = _mm512_load_si512(panel), w1 = _mm512_load_si512(panel + 64), w2 = _mm512_load_si512(panel + 128);
        if (FETCH) UNROLL for (int j = 0; j < 3; j++) _mm_prefetch(panel + Kind::PANEL_BYTES + 64 * j, _MM_HINT_T0);
        UNROLL for (int i = 0; i < M; i++) {
            __m512i numbers = broadcast(row + i * Kind::ROW_BYTES);
            sums[i][0] = Kind::multiply_add(sums[i][0], w0, numbers);
            sums[i][1] = Kind::multiply_add(sums[i][1], w1, numbers);
            sums[i][2] = Kind::multiply_add(sums[i][2], w2, numbers);
        }
    }
    finish_tile<Kind, M, SHIFTED>(sums, input, first, scales, store);
}

// Calls `call` with the number as a constant of the type, from 1 to MOST.
template <int MOST, class Call>
INLINE void with_constant(int number, const Call& call) {
    if constexpr (MOST > 1) {
        if (number < MOST) return with_constant<MOST - 1>(number, call);
    }
    call(std::integral_constant<int, MOST>{});
}

// Multiplies all tokens with `num` panels and calls `store(token, column, values)`; returns the next panel's number.
template <class Kind, bool SHIFTED, class Store>
INLINE int multiply(const Rounded& input, int tokens, const Model& model, int panel, int num, const Store& store) {
    int num_tiles = (tokens + TILE_TOKENS - 1) / TILE_TOKENS;
    for (int p = 0; p < num; p++, panel++) {
        const uint8_t* weights = model.panels + size_t(panel) * Kind::PANEL_BYTES;
        const PanelScales& scales = model.scales[panel];
        auto store_at = [&](int t, int j, __m512 values) FORCED { store(t, p * PANEL_OUTPUTS + 16 * j, values); };
        for (int n = 0; n < num_tiles; n++) {
            int first = tokens * n / num_tiles, size = tokens * (n + 1) / num_tiles - first;
            with_constant<TILE_TOKENS>(size, [&](auto m) FORCED {
                if (n == 0) tile<Kind, m, true, SHIFTED>(input, first, weights, scales, store_at);
                else tile<Kind, m, false, SHIFTED>(input, first, weights, scales, store_at);
            });
        }
    }
    return panel;
}

// --- rounding and layer norms

template <class Kind>
INLINE uint8_t* row_of(Rounded& to, int token) { return to.bytes + size_t(token) * Kind::ROW_BYTES; }

INLINE void load_row(__m512* row, const float* from) {
    UNROLL for (int v = 0; v < ROW_VECTORS; v++) row[v] = _mm512_load_ps(from + 16 * v);
}

INLINE void round_to_bf16(const __m512* row, Rounded& to, int token) {
    auto* out = (__m256i*)row_of<Bf16>(to, token);
    UNROLL for (int v = 0; v < ROW_VECTORS; v++) _mm256_store_si256(out + v, (__m256i)_mm512_cvtneps_pbh(row[v]));
}

// Rounds a row to int8. With SHIFTED, all 255 values stand for the range from the lowest number to the highest.
template <bool SHIFTED>
INLINE void round_to_int8(const __m512* row, Rounded& to, int token) {
    __m512 lows = row[0], highs = row[0];
    UNROLL for (int v = 1; v < ROW_VECTORS; v++) {
        lows = _mm512_min_ps(lows, row[v]);
        highs = _mm512_max_ps(highs, row[v]);
    }
    float low = _mm512_reduce_min_ps(lows), high = _mm512_reduce_max_ps(highs), zero = 0;
    float scale = std::max(std::max(high, -low), 1e-20f) / 127.f;
    if (SHIFTED) {
        low = std::min(low, 0.f), high = std::max(high, 0.f);
        scale = std::max(high - low, 1e-20f) / 254.f;
        zero = -127.f - std::nearbyintf(low / scale);
    }
    __m512 inverse = _mm512_set1_ps(1 / scale), offset = _mm512_set1_ps(zero);
    __m512i sum = _mm512_setzero_si512();
    auto* out = (__m128i*)row_of<Int8>(to, token);
    UNROLL for (int v = 0; v < ROW_VECTORS; v++) {
        __m512i rounded = _mm512_cvtps_epi32(_mm512_fmadd_ps(row[v], inverse, offset));
        sum = _mm512_add_epi32(sum, rounded);
        _mm_store_si128(out + v, _mm512_cvtsepi32_epi8(rounded));
    }
    to.scale[token] = scale;
    to.shift[token] = -scale * zero;
    to.start[token] = -128 * _mm512_reduce_add_epi32(sum);
}

template <class Kind, bool SHIFTED>
INLINE void round_row(const __m512* row, Rounded& to, int token) {
    if constexpr (std::is_same_v<Kind, Bf16>) round_to_bf16(row, to, token);
    else round_to_int8<SHIFTED>(row, to, token);
}

template <class Kind, bool SHIFTED>
INLINE void round_rows(const float* from, int stride, int tokens, Rounded& to) {
    for (int t = 0; t < tokens; t++) {
        __m512 row[ROW_VECTORS];
        load_row(row, from + size_t(t) * stride);
        round_row<Kind, SHIFTED>(row, to, t);
    }
}

// Normalises a row, and stores it both as f32 and rounded.
template <class Kind>
INLINE void norm_row(__m512* row, const Norm& norm, float* state, Rounded& to, int token) {
    __m512 sum = row[0], squares = _mm512_setzero_ps();
    UNROLL for (int v = 1; v < ROW_VECTORS; v++) sum = _mm512_add_ps(sum, row[v]);
    __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / WIDTH);
    UNROLL for (int v = 0; v < ROW_VECTORS; v++) {
        row[v] = _mm512_sub_ps(row[v], mean);
        squares = _mm512_fmadd_ps(row[v], row[v], squares);
    }
    __m512 inverse = _mm512_set1_ps(1 / std::sqrt(_mm512_reduce_add_ps(squares) / WIDTH + NORM_EPSILON));
    UNROLL for (int v = 0; v < ROW_VECTORS; v++) {
        __m512 scale = _mm512_mul_ps(inverse, _mm512_loadu_ps(norm.scale + 16 * v));
        row[v] = _mm512_fmadd_ps(row[v], scale, _mm512_loadu_ps(norm.shift + 16 * v));
        _mm512_store_ps(state + 16 * v, row[v]);
    }
    round_row<Kind, false>(row, to, token);
}

template <class Kind>
void norm_rows(float* state, int tokens, const Norm& norm, Rounded& to) {
    for (int t = 0; t < tokens; t++) {
        __m512 row[ROW_VECTORS];
        load_row(row, state + size_t(t) * WIDTH);
        norm_row<Kind>(row, norm, state + size_t(t) * WIDTH, to, t);
    }
}

// --- functions of a vector of numbers

// x times the normal distribution function, by an odd polynomial between -3.6 and 3.6; at most 0.0003 (1 + |x|) off.
INLINE __m512 gelu(__m512 x) {
    constexpr float BOUND = 3.6f;
    constexpr float COEFFICIENTS[] = {0.397163739f,     -0.0634485351f,  0.00818885433f,
                                      -0.000675021075f, 3.12385442e-05f, -6.10925704e-07f};
    constexpr int NUM = std::size(COEFFICIENTS);
    __m512 bound = _mm512_set1_ps(BOUND);
    __m512 y = _mm512_max_ps(_mm512_min_ps(x, bound), _mm512_sub_ps(_mm512_setzero_ps(), bound));
    __m512 square = _mm512_mul_ps(y, y), p = _mm512_set1_ps(COEFFICIENTS[NUM - 1]);
    UNROLL for (int n = NUM - 2; n >= 0; n--) p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(COEFFICIENTS[n]));
    return _mm512_mul_ps(x, _mm512_fmadd_ps(p, y, _mm512_set1_ps(0.5f)));
}

INLINE __m512 exp2(__m512 x) {
    constexpr int NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    x = _mm512_max_ps(x, _mm512_set1_ps(-126));
    __m512 whole = _mm512_roundscale_ps(x, NEAREST), rest = _mm512_sub_ps(x, whole);
    __m512 p = _mm512_set1_ps(0.009618129f);
    p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(0.055504109f));
    p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(0.240226507f));
    p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(0.693147181f));
    p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(1));
    return _mm512_scalef_ps(p, whole);
}

// --- attention

// Rounds two vectors of f32 to one of bf16, in their order.
INLINE __m512i pack(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

INLINE __m512 multiply_add(__m512 sum, __m512 pairs, __m512i pair) {
    return _mm512_dpbf16_ps(sum, (__m512bh)pairs, (__m512bh)pair);
}

// Transposes 16 x 16 numbers inside each quarter of the vectors.
INLINE void transpose_quarters(__m512* rows) {
    __m512 halves[16];
    auto pd = [](__m512 a) FORCED { return _mm512_castps_pd(a); };
    UNROLL for (int i = 0; i < 16; i += 2) {
        halves[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        halves[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    UNROLL for (int i = 0; i < 16; i += 4) UNROLL for (int n = 0; n < 2; n++) {
        rows[i + 2 * n] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(halves[i + n]), pd(halves[i + n + 2])));
        rows[i + 2 * n + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(halves[i + n]), pd(halves[i + n + 2])));
    }
}

// Writes up to 16 keys of 32 numbers as 16 rows of pairs: row n has the numbers 2n and 2n + 1 of each key.
INLINE void transpose_keys(const float* from, int num, float* to, int stride) {
    __m512 rows[16];
    UNROLL for (int i = 0; i < 16; i++) {
        const float* key = from + size_t(i) * QKV_WIDTH;
        rows[i] = _mm512_setzero_ps();
        if (i < num) rows[i] = _mm512_castsi512_ps(pack(_mm512_load_ps(key), _mm512_load_ps(key + 16)));
    }
    transpose_quarters(rows);
    UNROLL for (int i = 0; i < 4; i++) {
        __m512 a = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0x88);
        __m512 b = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0x88);
        __m512 c = _mm512_shuffle_f32x4(rows[i], rows[i + 4], 0xdd);
        __m512 d = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], 0xdd);
        _mm512_store_ps(to + i * stride, _mm512_shuffle_f32x4(a, b, 0x88));
        _mm512_store_ps(to + (i + 8) * stride, _mm512_shuffle_f32x4(a, b, 0xdd));
        _mm512_store_ps(to + (i + 4) * stride, _mm512_shuffle_f32x4(c, d, 0x88));
        _mm512_store_ps(to + (i + 12) * stride, _mm512_shuffle_f32x4(c, d, 0xdd));
    }
}

// Writes the values of each two tokens as 32 pairs.
INLINE void pair_values(const float* value, int length, float* to) {
    alignas(64) static constexpr auto ORDER = [] {
        std::array<uint16_t, 32> order{};
        for (int n = 0; n < 32; n++) order[n] = n / 2 + n % 2 * 16;
        return order;
    }();
    __m512i order = _mm512_load_si512(ORDER.data());
    for (int t = 0; t < length; t += 2, value += 2 * QKV_WIDTH) UNROLL for (int half = 0; half < 32; half += 16) {
        __m512 next = t + 1 < length ? _mm512_load_ps(value + QKV_WIDTH + half) : _mm512_setzero_ps();
        __m512i both = pack(_mm512_load_ps(value + half), next);
        _mm512_store_si512(to + 16 * t + half, _mm512_permutexvar_epi16(order, both));
    }
}

// Computes the scores of R queries for J x 16 keys.
template <int R, int J>
INLINE void score(const uint16_t* query, const float* keys, int padded, float* scores) {
    __m512 sums[R][J];
    UNROLL for (int i = 0; i < R; i++) UNROLL for (int j = 0; j < J; j++) sums[i][j] = _mm512_setzero_ps();
    for (int d = 0; d < HEAD_WIDTH / 2; d++) {
        __m512 key[J];
        UNROLL for (int j = 0; j < J; j++) key[j] = _mm512_load_ps(keys + d * padded + 16 * j);
        UNROLL for (int i = 0; i < R; i++) {
            __m512i pair = broadcast(query + i * HEAD_WIDTH + 2 * d);
            UNROLL for (int j = 0; j < J; j++) sums[i][j] = multiply_add(sums[i][j], key[j], pair);
        }
    }
    UNROLL for (int i = 0; i < R; i++) UNROLL for (int j = 0; j < J; j++)
        _mm512_store_ps(scores + i * padded + 16 * j, sums[i][j]);
}

// Writes 2 to the power of each score less the highest, as bf16, and returns their sum.
INLINE float softmax(const float* row, int length, int padded, uint16_t* to) {
    __mmask16 last = 0xffff >> (padded - length);
    const float* end = row + padded - 16;
    auto store = [&](const float* x, __m512 shares) FORCED {
        _mm256_store_si256((__m256i*)(to + (x - row)), (__m256i)_mm512_cvtneps_pbh(shares));
    };
    __m512 tail = _mm512_mask_mov_ps(_mm512_set1_ps(-1e30f), last, _mm512_load_ps(end)), most = tail;
    for (const float* x = row; x < end; x += 16) most = _mm512_max_ps(most, _mm512_load_ps(x));
    most = _mm512_set1_ps(_mm512_reduce_max_ps(most));
    __m512 sum = _mm512_maskz_mov_ps(last, exp2(_mm512_sub_ps(tail, most)));
    store(end, sum);
    for (const float* x = row; x < end; x += 16) {
        __m512 shares = exp2(_mm512_sub_ps(_mm512_load_ps(x), most));
        sum = _mm512_add_ps(sum, shares);
        store(x, shares);
    }
    return _mm512_reduce_add_ps(sum);
}

// Computes the scores of R queries for all keys of the text.
template <int R>
INLINE void score_all(const float* query, int padded, Scratch& s) {
    alignas(64) uint16_t rounded[R * HEAD_WIDTH];
    UNROLL for (int i = 0; i < R; i++) {
        const float* q = query + size_t(i) * QKV_WIDTH;
        _mm512_store_si512(rounded + i * HEAD_WIDTH, pack(_mm512_load_ps(q), _mm512_load_ps(q + 16)));
    }
    int j = 0;
    for (; j + 32 <= padded; j += 32) score<R, 2>(rounded, s.keys + j, padded, s.scores + j);
    if (j < padded) score<R, 1>(rounded, s.keys + j, padded, s.scores + j);
}

// Puts what R tokens of one head attend to in the place of their queries.
template <int R>
INLINE void attend(float* query, int length, int padded, Scratch& s) {
    score_all<R>(query, padded, s);
    __m512 sums[R][2], inverse[R];
    UNROLL for (int i = 0; i < R; i++) {
        inverse[i] = _mm512_set1_ps(1 / softmax(s.scores + i * padded, length, padded, s.shares + i * padded));
        sums[i][0] = sums[i][1] = _mm512_setzero_ps();
    }
    for (int k = 0; k < length; k += 2) {
        __m512 v0 = _mm512_load_ps(s.values + 16 * k), v1 = _mm512_load_ps(s.values + 16 * k + 16);
        UNROLL for (int i = 0; i < R; i++) {
            __m512i pair = broadcast(s.shares + i * padded + k);
            sums[i][0] = multiply_add(sums[i][0], v0, pair);
            sums[i][1] = multiply_add(sums[i][1], v1, pair);
        }
    }
    UNROLL for (int i = 0; i < R; i++) UNROLL for (int half = 0; half < 2; half++)
        _mm512_store_ps(query + size_t(i) * QKV_WIDTH + 16 * half, _mm512_mul_ps(sums[i][half], inverse[i]));
}

// Computes the attention of one text, all heads.
void attention(float* qkv, int length, Scratch& s) {
    int padded = (length + 15) & ~15, num_tiles = (length + TILE_QUERIES - 1) / TILE_QUERIES;
    for (int h = 0; h < HEADS; h++) {
        float *query = qkv + h * HEAD_WIDTH, *key = query + WIDTH, *value = key + WIDTH;
        for (int j = 0; j < length; j += 16)
            transpose_keys(key + size_t(j) * QKV_WIDTH, length - j, s.keys + j, padded);
        pair_values(value, length, s.values);
        for (int n = 0; n < num_tiles; n++) {
            int first = length * n / num_tiles, size = length * (n + 1) / num_tiles - first;
            float* queries = query + size_t(first) * QKV_WIDTH;
            with_constant<TILE_QUERIES>(size, [&](auto r) FORCED { attend<r>(queries, length, padded, s); });
        }
    }
}

// --- a block of texts through the model

template <class Kind>
void embed(const Model& model, const int32_t* ids, const int32_t* lengths, int texts, Scratch& s) {
    for (int n = 0, t = 0; n < texts; n++)
        for (int position = 0; position < lengths[n]; position++, t++) {
            __m512 row[ROW_VECTORS];
            const float* word = model.words + size_t(ids[t]) * WIDTH;
            const float* place = model.positions + size_t(position) * WIDTH;
            UNROLL for (int v = 0; v < ROW_VECTORS; v++)
                row[v] = _mm512_add_ps(_mm512_loadu_ps(word + 16 * v), _mm512_loadu_ps(place + 16 * v));
            norm_row<Kind>(row, model.embedding_norm, s.state + size_t(t) * WIDTH, s.input, t);
        }
}

template <class Kind>
void layer(const Model& model, int n, const int32_t* lengths, int texts, int tokens, Scratch& s) {
    constexpr bool IS_INT8 = std::is_same_v<Kind, Int8>;
    auto store_qkv = [&](int t, int column, __m512 values) FORCED {
        _mm512_store_ps(s.qkv + size_t(t) * QKV_WIDTH + column, values);
    };
    auto store_inner = [&](int t, int column, __m512 values) FORCED {
        _mm512_store_ps(s.inner + size_t(t) * WIDTH + column, gelu(values));
    };
    auto add_to_state = [&](int t, int column, __m512 values) FORCED {
        float* to = s.state + size_t(t) * WIDTH + column;
        _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), values));
    };
    int panel = multiply<Kind, false>(s.input, tokens, model, n * LAYER_PANELS, 3 * WIDTH_PANELS, store_qkv);
    for (int text = 0, t = 0; text < texts; t += lengths[text++])
        attention(s.qkv + size_t(t) * QKV_WIDTH, lengths[text], s);
    round_rows<Kind, false>(s.qkv, QKV_WIDTH, tokens, s.input);
    panel = multiply<Kind, false>(s.input, tokens, model, panel, WIDTH_PANELS, add_to_state);
    norm_rows<Kind>(s.state, tokens, model.attention_norm[n], s.input);
    for (int group = 0; group < INNER_GROUPS; group++) {
        panel = multiply<Kind, false>(s.input, tokens, model, panel, WIDTH_PANELS, store_inner);
        round_rows<Kind, true>(s.inner, WIDTH, tokens, s.inner_input);
        panel = multiply<Kind, IS_INT8>(s.inner_input, tokens, model, panel, WIDTH_PANELS, add_to_state);
    }
    norm_rows<Kind>(s.state, tokens, model.output_norm[n], s.input);
}

// Writes the mean of the tokens' vectors, with length 1.
void pool(const float* state, int length, float* to) {
    __m512 sum[ROW_VECTORS], squares = _mm512_setzero_ps();
    load_row(sum, state);
    for (int t = 1; t < length; t++) UNROLL for (int v = 0; v < ROW_VECTORS; v++)
        sum[v] = _mm512_add_ps(sum[v], _mm512_load_ps(state + size_t(t) * WIDTH + 16 * v));
    UNROLL for (int v = 0; v < ROW_VECTORS; v++) squares = _mm512_fmadd_ps(sum[v], sum[v], squares);
    __m512 inverse = _mm512_set1_ps(1 / std::sqrt(_mm512_reduce_add_ps(squares)));
    UNROLL for (int v = 0; v < ROW_VECTORS; v++) _mm512_storeu_ps(to + 16 * v, _mm512_mul_ps(sum[v], inverse));
}

template <class Kind>
void encode_block(const Model& model, const int32_t* ids, const int32_t* lengths, int texts, float* out, Scratch& s) {
    int tokens = 0;
    for (int n = 0; n < texts; n++) tokens += lengths[n];
    embed<Kind>(model, ids, lengths, texts, s);
    for (int n = 0; n < LAYERS; n++) layer<Kind>(model, n, lengths, texts, tokens, s);
    for (int n = 0, t = 0; n < texts; t += lengths[n++])
        pool(s.state + size_t(t) * WIDTH, lengths[n], out + size_t(n) * WIDTH);
}

// --- memory and threads

// Returns memory that begins at a large page and, where the system has them, is made of such.
void* allocate(size_t size) {
    size = (size + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void* memory = aligned_alloc(HUGE_PAGE, size);
    if (!memory) abort();
    madvise(memory, size, MADV_HUGEPAGE);
    return memory;
}

// Returns the scratch of this thread, which stays for as long as the process.
Scratch& scratch() {
    thread_local auto* own = (Scratch*)memset(allocate(sizeof(Scratch)), 0, sizeof(Scratch));
    return *own;
}

// Threads that wait for `run`, in which the calling thread takes part. They stay for as long as the process.
struct Threads {
    std::mutex running_alone, mutex;
    std::condition_variable wake, done;
    void (*work)(void*) = nullptr;
    void* context = nullptr;
    int num = 0, round = 0, wanted = 0, running = 0;

    void run(int num_wanted, void (*function)(void*), void* with) {
        std::lock_guard alone(running_alone);
        {
            std::lock_guard lock(mutex);
            for (; num < num_wanted - 1; num++) std::thread([this, n = num] { wait(n); }).detach();
            work = function, context = with, wanted = running = num_wanted - 1, round++;
        }
        if (num_wanted > 1) wake.notify_all();
        function(with);
        std::unique_lock lock(mutex);
        done.wait(lock, [&] { return !running; });
    }

    void wait(int number) {
        std::unique_lock lock(mutex);
        for (int seen = 0;;) {
            wake.wait(lock, [&] { return round != seen; });
            seen = round;
            if (number >= wanted) continue;
            lock.unlock();
            work(context);
            lock.lock();
            if (!--running) done.notify_one();
        }
    }
};

Threads& threads() {
    static auto* all = new Threads;
    return *all;
}

// Texts to encode. `text` and `token` say where each block begins, and have their end as the last.
struct Job {
    const Model* model;
    const int32_t *ids, *lengths;
    float* out;
    std::vector<int> text{0}, token{0};
    std::atomic<int> next{0};
};

void take_blocks(void* with) {
    Job& job = *(Job*)with;
    auto* encode = job.model->is_bf16 ? encode_block<Bf16> : encode_block<Int8>;
    for (int n; (n = job.next++) + 1 < int(job.text.size());) {
        int first = job.text[n], texts = job.text[n + 1] - first;
        float* out = job.out + size_t(first) * WIDTH;
        encode(*job.model, job.ids + job.token[n], job.lengths + first, texts, out, scratch());
    }
}

// Cuts the texts, in their order, into blocks of about the same number of tokens: as many for each thread.
void cut(Job& job, int texts, int num_threads, int block_tokens) {
    long total = 0, seen = 0, round = long(num_threads) * block_tokens;
    for (int n = 0; n < texts; n++) total += job.lengths[n];
    long blocks = num_threads * std::max(1L, (total + round - 1) / round);
    for (int n = 0; n < texts; n++) {
        long bound = total * long(job.text.size()) / blocks, length = job.lengths[n];
        bool is_full = seen + length / 2 >= bound || seen + length - job.token.back() > MAX_BLOCK_TOKENS;
        if (n > job.text.back() && is_full) job.text.push_back(n), job.token.push_back(seen);
        seen += length;
    }
    job.text.push_back(texts), job.token.push_back(seen);
}

}  // namespace

extern "C" {

// Opens a model. `words`, `positions` and `norms` must stay until it is closed; panels and scales are copied. `norms`
// are scale and shift of the embeddings' norm, then those of the norms after attention and at the end of each layer.
Model* open_model(const float* words, const float* positions, const float* norms, const uint8_t* panels,
                  const float* scales, int is_bf16) {
    size_t num = LAYERS * LAYER_PANELS, size = num * (is_bf16 ? Bf16::PANEL_BYTES : Int8::PANEL_BYTES);
    size_t beyond = Bf16::PANEL_BYTES;  // the last panel asks for one behind it
    auto* model = new Model{words, positions, {norms, norms + WIDTH}, {}, {}, nullptr, nullptr, bool(is_bf16)};
    model->panels = (uint8_t*)memcpy(allocate(size + beyond), panels, size);
    model->scales = (PanelScales*)memcpy(allocate(num * sizeof(PanelScales)), scales, num * sizeof(PanelScales));
    for (int n = 0; n < LAYERS; n++) {
        const float* first = norms + (2 + 4 * n) * WIDTH;
        model->attention_norm[n] = {first, first + WIDTH};
        model->output_norm[n] = {first + 2 * WIDTH, first + 3 * WIDTH};
    }
    return model;
}

void close_model(Model* model) {
    free(model->panels);
    free(model->scales);
    delete model;
}

// Writes the vectors `[texts, 384]`. Every text must have 1 to 512 ids of the vocabulary.
void encode(const Model* model, const int32_t* ids, const int32_t* lengths, int texts, float* out, int num_threads,
            int block_tokens) {
    Job job{model, ids, lengths, out};
    cut(job, texts, num_threads, block_tokens);
    threads().run(std::min(num_threads, int(job.text.size()) - 1), take_blocks, &job);
}
}
