// The forward pass of an encoder like BERT, in int8, bf16 or f32. Texts of any lengths follow each other without
// padding.
//
// In f32, the kernel runs on 64-bit ARM with NEON and on x86-64 with AVX2, FMA and F16C, and uses AVX-512 if it is
// compiled for AVX-512 (F, BW, DQ, VL). Int8 needs AVX-VNNI, AVX-512 VNNI or ARM's SDOT. Bf16 needs ARM's BFDOT, or
// AVX-512 VNNI and AVX-512 BF16; with these two, the kernel multiplies with AMX if the processor has AMX. library.py
// compiles the kernel for each kind of processor, weights.py arranges the weights, and kernel.py calls it.
//
// One thread computes all layers of a block of texts, so threads wait for each other only at the end of a pass. The
// weights are a stream of panels in the order of their use. A panel has the weights from one group of inputs to 48
// outputs, and stays in the caches while it is multiplied with all tokens of the block. A group is `Shape::group`
// numbers. In int8, each group of a token is rounded with a scale of its own, computed at run time. Attention
// multiplies in f32, or in bf16 with AVX-512 BF16 if the weights are not f32; norms, activations, softmax and sums are
// f32. Other texts, threads and blocks do not change the order of a text's sums, so its vectors are always the same.
//
// open_model and start_pass check the arguments from Python; all other functions rely on these checks.
#ifdef __aarch64__
#include <arm_neon.h>
#else
#include <cpuid.h>
#include <immintrin.h>
#endif
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

constexpr int PANEL_OUTPUTS = 48;
constexpr int BLOCK_TOKENS = 64;                  // approximate size of a block
constexpr int AMX_BLOCK_TOKENS = 128;             // the same with AMX, which multiplies faster than weights arrive
constexpr int AMX_ROWS = 16, AMX_BYTES = 64;      // the most rows of an AMX tile, and the bytes of a row
constexpr int CHUNK_PANELS = 8;                   // panels that stay in the second-level cache together
constexpr int MAX_GROUP = 512, MAX_SIZE = 1 << 24;
constexpr size_t LARGE_PAGE = 2 << 20;

#define UNROLL _Pragma("GCC unroll 32")
#define FORCED __attribute__((always_inline))
#define INLINE inline FORCED

enum Activation { GELU, GELU_TANH, RELU, SILU, TANH };
enum Number { INT8, BF16, F32 };  // a number has 1, 2 or 4 bytes
#if defined __AVX512BF16__ || defined __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#define HAS_BF16  // there are instructions for products in bf16
#endif

// The sizes of a model, with the fields of weights.py's `Shape`.
struct Shape {
    int32_t width, heads, layers, inner, group, num_words, num_positions, max_tokens, activation, number;
    float eps;

    int head_width() const { return width / heads; }
    int groups() const { return width / group; }
    int block_capacity() const { return std::max(max_tokens, 4 * BLOCK_TOKENS); }
    size_t panel_bytes() const { return size_t(PANEL_OUTPUTS) * group << number; }
    bool fits_tiles() const { return number != F32 && (group << number) % AMX_BYTES == 0; }
    size_t num_panels() const {
        auto of = [](int outputs) { return size_t(outputs + PANEL_OUTPUTS - 1) / PANEL_OUTPUTS; };
        size_t attention = groups() * (of(3 * width) + of(width));
        return layers * (attention + inner / group * (groups() * of(group) + of(width)));
    }
    bool is_known() const {
        for (int size : {width, heads, layers, inner, group, num_words, num_positions, max_tokens})
            if (size < 1 || size > MAX_SIZE) return false;
        return group % 16 == 0 && group <= MAX_GROUP && width % group == 0 && inner % group == 0 && width <= 1 << 13 &&
               inner <= 1 << 16 && layers <= 1 << 10 && max_tokens <= 1 << 16 && width % heads == 0 &&
               (head_width() == 32 || head_width() == 64) && activation >= GELU && activation <= TANH;
    }
};

// Memory for numbers, aligned for vectors. With the alignment LARGE_PAGE, it uses large pages if the system has them.
template <class T>
struct Array {
    T* data;

    explicit Array(size_t count, size_t alignment = 64) {
        size_t size = (count * sizeof(T) + alignment) / alignment * alignment;
        data = (T*)aligned_alloc(alignment, size);
        if (!data) throw std::bad_alloc();
        if (alignment == LARGE_PAGE) madvise(data, size, MADV_HUGEPAGE);
    }
    Array(Array&& other) : data(std::exchange(other.data, nullptr)) {}
    ~Array() { free(data); }
    operator T*() const { return data; }
};

// For each output of a panel: the scale of its weights, its bias, and the scale times the sum of its rounded weights.
struct PanelScales {
    float scale[PANEL_OUTPUTS], bias[PANEL_OUTPUTS], sum[PANEL_OUTPUTS];
};

struct Norm {
    const float *scale, *shift;
};

struct Model {
    Shape shape;
    const uint16_t* words;  // f16
    const float *positions, *norms;
    Array<uint8_t> panels;
    Array<PanelScales> scales;
    bool uses_amx;

    // Returns a norm. Number 0 follows the embeddings; then each layer has a norm after attention and one at its end.
    Norm norm(int number) const {
        const float* scale = norms + size_t(2 * number) * shape.width;
        return {scale, scale + shape.width};
    }
};

// One group of a product's inputs: a row of rounded numbers for each token. An input is `scale` times the rounded
// number, plus `shift`. `start` is the initial value of a sum, which subtracts the surplus of the weights.
struct Rounded {
    Array<uint8_t> bytes;
    Array<float> scale, shift;
    Array<int32_t> start;

    Rounded(int tokens, int group)
        : bytes(size_t(tokens + AMX_ROWS) * group * 4), scale(tokens), shift(tokens), start(tokens) {}
};

// The intermediate results of a thread. `keys`, `values`, `scores` and `shares` belong to one head at a time.
struct Scratch {
    std::vector<Rounded> input;
    Rounded inner_input;
    Array<float> state, inner, qkv, keys, values, scores;
    Array<uint16_t> shares;

    Scratch(const Shape& s, size_t tokens)
        : inner_input(tokens, s.group), state(tokens * s.width), inner(tokens * s.group), qkv(tokens * 3 * s.width),
          keys((tokens + 32) * s.head_width()), values((tokens + 32) * s.head_width()),
          scores(AMX_ROWS * (tokens + 32)), shares(AMX_ROWS * (tokens + 32)) {
        for (int g = 0; g < s.groups(); g++) input.emplace_back(tokens, s.group);
    }
};

// --- functions of vectors of numbers

// A vector of 16 numbers. `first` replaces all numbers after the first `num`. `add_int8` and `add_bf16` add the
// products of 16 times 4 bytes of weights with the same 4 bytes of numbers. SURPLUS is added to the kernel's int8
// weights, because x86 needs unsigned weights. ARM multiplies signed weights.
#ifdef __AVX512F__
using Floats = __m512;
constexpr int SURPLUS = 128;
constexpr int TILE_TOKENS = 9, TILE_VECTORS = 3, TILE_QUERIES = 6;  // the largest for which there are registers

INLINE Floats all(float x) { return _mm512_set1_ps(x); }
INLINE Floats load(const float* from) { return _mm512_loadu_ps(from); }
INLINE Floats load_f16(const uint16_t* from) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from)); }
INLINE void store(float* to, Floats x) { _mm512_storeu_ps(to, x); }
INLINE Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
INLINE Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
INLINE Floats rounded(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE Floats times_power_of_2(Floats x, Floats whole) { return _mm512_scalef_ps(x, whole); }
INLINE Floats first(Floats x, int num, float other) { return _mm512_mask_mov_ps(all(other), 0xffff >> (16 - num), x); }
INLINE float sum_of(Floats x) { return _mm512_reduce_add_ps(x); }
INLINE float highest_of(Floats x) { return _mm512_reduce_max_ps(x); }
INLINE Floats from_integers(Floats bits) { return _mm512_cvtepi32_ps((__m512i)bits); }
INLINE Floats to_integers(Floats x) { return (Floats)_mm512_cvtps_epi32(x); }
INLINE Floats add_integers(Floats a, Floats b) { return (Floats)_mm512_add_epi32((__m512i)a, (__m512i)b); }
INLINE void store_int8(void* to, Floats x) { _mm_storeu_si128((__m128i*)to, _mm512_cvtsepi32_epi8((__m512i)x)); }
INLINE Floats add_int8(Floats sums, Floats weights, Floats numbers) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(numbers));  // g++ 12 spills the sums of the intrinsic
    return sums;
}
#ifdef HAS_BF16
INLINE void store_bf16(void* to, Floats x) { _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh(x)); }
INLINE Floats add_bf16(Floats sums, Floats weights, Floats numbers) {
    return _mm512_dpbf16_ps(sums, (__m512bh)weights, (__m512bh)numbers);
}
#endif
#else
#ifdef __aarch64__
using Register = float32x4_t;
constexpr int TILE_TOKENS = 6, TILE_VECTORS = 1, TILE_QUERIES = 5, SURPLUS = 0;
INLINE Register all_lanes(float x) { return vdupq_n_f32(x); }
INLINE Register widened(const uint16_t* from) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))); }
INLINE Register max(Register a, Register b) { return vmaxnmq_f32(a, b); }
INLINE Register min(Register a, Register b) { return vminnmq_f32(a, b); }
INLINE Register rounded(Register x) { return vrndnq_f32(x); }
INLINE Register add_int8(Register sums, Register weights, Register numbers) {
    asm("sdot %0.4s, %1.16b, %2.4b[0]" : "+w"(sums) : "w"(weights), "w"(numbers[0]));
    return sums;
}
INLINE uint16x4_t to_bf16(Register x) {
    uint16x4_t numbers;
    asm("bfcvtn %0.4h, %1.4s" : "=w"(numbers) : "w"(x));
    return numbers;
}
INLINE Register add_bf16(Register sums, Register weights, Register numbers) {
    asm("bfdot %0.4s, %1.8h, %2.2h[0]" : "+w"(sums) : "w"(weights), "w"(numbers[0]));
    return sums;
}
#else
using Register = __m256;
constexpr int TILE_TOKENS = 6, TILE_VECTORS = 1, TILE_QUERIES = 6, SURPLUS = 128;
INLINE Register all_lanes(float x) { return _mm256_set1_ps(x); }
INLINE Register widened(const uint16_t* from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from)); }
INLINE Register max(Register a, Register b) { return _mm256_max_ps(a, b); }
INLINE Register min(Register a, Register b) { return _mm256_min_ps(a, b); }
INLINE Register rounded(Register x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE Register add_int8(Register sums, Register weights, Register numbers) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(weights), "x"(numbers));
    return sums;
}
#endif
typedef int32_t Integers __attribute__((vector_size(sizeof(Register))));
typedef int8_t Bytes __attribute__((vector_size(sizeof(Register) / 4)));
constexpr int LANES = sizeof(Register) / sizeof(float), REGISTERS = 16 / LANES;
struct Floats {
    Register parts[REGISTERS];
};

// Returns the vector whose register n is `make(n)`.
template <class Make>
INLINE Floats each(const Make& make) {
    Floats x;
    UNROLL for (int n = 0; n < REGISTERS; n++) x.parts[n] = make(n);
    return x;
}
INLINE Floats all(float x) { return each([&](int) FORCED { return all_lanes(x); }); }
INLINE Floats load(const float* from) {
    return each([&](int n) FORCED {
        Register x;
        memcpy(&x, from + n * LANES, sizeof x);
        return x;
    });
}
INLINE Floats load_f16(const uint16_t* from) {
    return each([&](int n) FORCED { return widened(from + n * LANES); });
}
INLINE void store(float* to, Floats x) {
    UNROLL for (int n = 0; n < REGISTERS; n++) memcpy(to + n * LANES, &x.parts[n], sizeof(Register));
}
INLINE Floats operator+(Floats a, Floats b) { return each([&](int n) FORCED { return a.parts[n] + b.parts[n]; }); }
INLINE Floats operator-(Floats a, Floats b) { return each([&](int n) FORCED { return a.parts[n] - b.parts[n]; }); }
INLINE Floats operator*(Floats a, Floats b) { return each([&](int n) FORCED { return a.parts[n] * b.parts[n]; }); }
INLINE Floats operator/(Floats a, Floats b) { return each([&](int n) FORCED { return a.parts[n] / b.parts[n]; }); }
INLINE Floats max(Floats a, Floats b) { return each([&](int n) FORCED { return max(a.parts[n], b.parts[n]); }); }
INLINE Floats min(Floats a, Floats b) { return each([&](int n) FORCED { return min(a.parts[n], b.parts[n]); }); }
INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }  // one instruction, which rounds once
INLINE Floats rounded(Floats x) { return each([&](int n) FORCED { return rounded(x.parts[n]); }); }
INLINE Floats times_power_of_2(Floats x, Floats whole) {
    return each([&](int n) FORCED {
        return (Register)((Integers)x.parts[n] + (__builtin_convertvector(whole.parts[n], Integers) << 23));
    });
}
INLINE Floats first(Floats x, int num, float other) {
    alignas(64) static constexpr float PLACES[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    Floats places = load(PLACES), others = all(other);
    return each([&](int n) FORCED { return places.parts[n] < float(num) ? x.parts[n] : others.parts[n]; });
}
template <class Combine>
INLINE float reduced(Floats x, const Combine& combine) {
    float numbers[LANES];
    UNROLL for (int size = REGISTERS / 2; size; size /= 2) UNROLL for (int n = 0; n < size; n++)
        x.parts[n] = combine(x.parts[n], x.parts[n + size]);
    memcpy(numbers, x.parts, sizeof numbers);
    UNROLL for (int size = LANES / 2; size; size /= 2) UNROLL for (int n = 0; n < size; n++)
        numbers[n] = combine(numbers[n], numbers[n + size]);
    return numbers[0];
}
using std::max;
INLINE float sum_of(Floats x) {
    return reduced(x, [](auto a, auto b) FORCED { return a + b; });
}
INLINE float highest_of(Floats x) {
    return reduced(x, [](auto a, auto b) FORCED { return max(a, b); });
}
INLINE Floats from_integers(Floats bits) {
    return each([&](int n) FORCED { return __builtin_convertvector((Integers)bits.parts[n], Register); });
}
INLINE Floats to_integers(Floats x) {
    return each([&](int n) FORCED { return (Register)__builtin_convertvector(rounded(x.parts[n]), Integers); });
}
INLINE Floats add_integers(Floats a, Floats b) {
    return each([&](int n) FORCED { return (Register)((Integers)a.parts[n] + (Integers)b.parts[n]); });
}
INLINE void store_int8(uint8_t* to, Floats x) {
    UNROLL for (int n = 0; n < REGISTERS; n++) {
        Integers numbers = (Integers)x.parts[n];
        Bytes bytes = __builtin_convertvector(numbers < 127 ? numbers : 127 - Integers{}, Bytes);
        memcpy(to + n * LANES, &bytes, LANES);
    }
}
INLINE Floats add_int8(Floats a, Floats b, Floats c) {
    return each([&](int n) FORCED { return add_int8(a.parts[n], b.parts[n], c.parts[n]); });
}
#ifdef HAS_BF16
INLINE void store_bf16(void* to, Floats x) {
    UNROLL for (int n = 0; n < REGISTERS; n++) vst1_u16((uint16_t*)to + n * LANES, to_bf16(x.parts[n]));
}
INLINE Floats add_bf16(Floats a, Floats b, Floats c) {
    return each([&](int n) FORCED { return add_bf16(a.parts[n], b.parts[n], c.parts[n]); });
}
#endif
#endif

// Returns 2^x, with x limited to the range from -100 to 100: products with subnormal numbers take ten times as long.
INLINE Floats exp2(Floats x) {
    x = min(max(x, all(-100)), all(100));
    Floats whole = rounded(x), rest = x - whole, p = all(0.009618129f);
    p = multiply_add(p, rest, all(0.055504109f));
    p = multiply_add(p, rest, all(0.240226507f));
    p = multiply_add(p, rest, all(0.693147181f));
    p = multiply_add(p, rest, all(1));
    return times_power_of_2(p, whole);
}

// Returns 1 / (1 + exp(-factor x)).
INLINE Floats sigmoid(Floats x, float factor = 1) {
    constexpr float LOG2_E = 1.44269504f;
    return all(1) / (all(1) + exp2(x * all(-factor * LOG2_E)));
}

// Returns x times the normal distribution function, with an odd polynomial between -3.6 and 3.6. The error is at most
// 0.0003 (1 + |x|).
INLINE Floats gelu(Floats x) {
    constexpr float BOUND = 3.6f;
    constexpr float COEFFICIENTS[] = {0.397163739f,     -0.0634485351f,  0.00818885433f,
                                      -0.000675021075f, 3.12385442e-05f, -6.10925704e-07f};
    constexpr int NUM = std::size(COEFFICIENTS);
    Floats y = max(min(x, all(BOUND)), all(-BOUND)), square = y * y, p = all(COEFFICIENTS[NUM - 1]);
    UNROLL for (int n = NUM - 2; n >= 0; n--) p = multiply_add(p, square, all(COEFFICIENTS[n]));
    return x * multiply_add(p, y, all(0.5f));
}

INLINE Floats gelu_tanh(Floats x) { return x * sigmoid(multiply_add(x * x * x, all(0.044715f), x), 1.59576912f); }

template <class Function>
INLINE void map(float* row, int count, const Function& function) {
    for (int n = 0; n < count; n += 16) store(row + n, function(load(row + n)));
}

void activate(float* row, int count, int activation) {
    switch (activation) {
        case GELU: return map(row, count, [](Floats x) FORCED { return gelu(x); });
        case GELU_TANH: return map(row, count, [](Floats x) FORCED { return gelu_tanh(x); });
        case RELU: return map(row, count, [](Floats x) FORCED { return max(x, all(0)); });
        case SILU: return map(row, count, [](Floats x) FORCED { return x * sigmoid(x); });
        case TANH: return map(row, count, [](Floats x) FORCED { return all(2) * sigmoid(x, 2) - all(1); });
    }
}

// --- kinds of numbers

// Numbers of a kind that need no scale. `put` writes 16 of them.
template <class Kind>
struct Unscaled {
    template <bool SHIFTED>
    static INLINE void round(const float* from, int count, const Rounded& to, int token) {
        uint8_t* out = to.bytes + size_t(token) * count * Kind::BYTES;
        for (int n = 0; n < count; n += 16) Kind::put(load(from + n), out + n * Kind::BYTES);
        to.scale[token] = to.shift[token] = 0;
        to.start[token] = 0;
    }
    static INLINE Floats finish(Floats sums, Floats, Floats bias) { return sums + bias; }
};

struct Float32 : Unscaled<Float32> {
    static constexpr int BYTES = 4;  // of a number

    static INLINE Floats add(Floats sums, Floats weights, Floats numbers) { return multiply_add(weights, numbers, sums); }
    static INLINE void put(Floats x, void* to) { store((float*)to, x); }
};

#ifdef HAS_BF16
struct Bf16 : Unscaled<Bf16> {
    static constexpr int BYTES = 2;

    static INLINE Floats add(Floats sums, Floats weights, Floats numbers) { return add_bf16(sums, weights, numbers); }
    static INLINE void put(Floats x, void* to) { store_bf16(to, x); }
};
#endif

struct Int8 {
    static constexpr int BYTES = 1;

    static INLINE Floats add(Floats sums, Floats weights, Floats numbers) { return add_int8(sums, weights, numbers); }
    static INLINE Floats finish(Floats sums, Floats scale, Floats bias) {
        return multiply_add(from_integers(sums), scale, bias);
    }

    // Rounds a group of a token. With SHIFTED, the range from the lowest to the highest number is divided into all 255
    // values; otherwise the values are symmetric around 0.
    template <bool SHIFTED>
    static INLINE void round(const float* from, int count, const Rounded& to, int token) {
        Floats lows = load(from), highs = lows, sum = all(0);
        for (int n = 16; n < count; n += 16) lows = min(lows, load(from + n)), highs = max(highs, load(from + n));
        float low = -highest_of(all(0) - lows), high = highest_of(highs), zero = 0;
        float scale = std::max(std::max(high, -low), 1e-20f) / 127.f;
        if (SHIFTED) {
            low = std::min(low, 0.f), high = std::max(high, 0.f);
            scale = std::max(high - low, 1e-20f) / 254.f;
            zero = -127.f - std::nearbyintf(low / scale);
        }
        Floats inverse = all(1 / scale), offset = all(zero);
        uint8_t* out = to.bytes + size_t(token) * count;
        for (int n = 0; n < count; n += 16) {
            Floats whole = to_integers(multiply_add(load(from + n), inverse, offset));
            sum = add_integers(sum, whole);
            store_int8(out + n, whole);
        }
        to.scale[token] = scale;
        to.shift[token] = -scale * zero;
        to.start[token] = -SURPLUS * int32_t(sum_of(from_integers(sum)));
    }
};

// Calls `call` with the kind of the number. Returns false if there are no instructions for it.
template <class Call>
bool with_number(int number, const Call& call) {
#if defined __AVX512VNNI__ || defined __AVXVNNI__ || defined __ARM_FEATURE_DOTPROD
    if (number == INT8) return call(Int8{}), true;
#endif
#ifdef HAS_BF16
    if (number == BF16) return call(Bf16{}), true;
#endif
    return number == F32 && (call(Float32{}), true);
}

// Returns the number of rows that each tile has if tiles divide the tokens evenly. The last tile may reach beyond the
// tokens, by at most 15 rows. Rows do not influence each other.
int tile_rows(int tokens) {
    int num_tiles = (tokens + AMX_ROWS - 1) / AMX_ROWS;
    return (tokens + num_tiles - 1) / num_tiles;
}

template <class Kind>
constexpr bool is_amx = false;

#ifdef __AVX512BF16__

// --- AMX, which multiplies tiles of at most 16 rows x 64 bytes

// Asks Linux, once, to permit tiles to all threads of the process. Returns false if Linux refuses, or if the processor
// lacks tiles for bf16 or int8.
bool may_use_tiles() {
    static const bool may = [] {
        constexpr unsigned BF16_TILE_INT8 = 1 << 22 | 1 << 24 | 1 << 25;
        constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
        unsigned a, b, c, d;
        return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & BF16_TILE_INT8) == BF16_TILE_INT8 &&
               !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
    }();
    return may;
}

// Numbers of a kind that AMX multiplies.
template <class Kind>
struct Amx : Kind {};

template <class Kind>
constexpr bool is_amx<Amx<Kind>> = true;

// The sizes of this thread's tiles. Tile 7 has weights, with 4 bytes of each of 16 outputs in a row. The others have
// `rows` rows: sums, or numbers of tokens.
struct Tiles {
    explicit Tiles(int rows) {
        struct alignas(64) {
            uint8_t palette = 1, start = 0, unused[14] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } config;
        for (int n = 0; n < 8; n++) config.bytes[n] = AMX_BYTES, config.rows[n] = n < 7 ? rows : AMX_ROWS;
        asm volatile("ldtilecfg %0" ::"m"(config));
    }
    ~Tiles() { asm volatile("tilerelease"); }
};

template <int TILE>
INLINE void load_tile(const void* from, size_t stride) {
    asm volatile("tileloadd (%0,%1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(TILE) : "memory");
}

// Loads weights as data that the first-level cache need not keep, so the tokens' numbers stay there: a product takes
// a fifth less time.
INLINE void load_weights(const void* from, size_t stride) {
    asm volatile("tileloaddt1 (%0,%1), %%tmm7" ::"r"(from), "r"(stride) : "memory");
}

// Clears the tiles from FIRST to LAST.
template <int FIRST, int LAST>
INLINE void clear_tiles() {
    asm volatile("tilezero %%tmm%c0" ::"i"(FIRST));
    if constexpr (FIRST < LAST) clear_tiles<FIRST + 1, LAST>();
}

// Stores the tiles from FIRST to LAST side by side.
template <int FIRST, int LAST>
INLINE void store_tiles(void* to, size_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1)" ::"r"(to), "r"(stride), "i"(FIRST) : "memory");
    if constexpr (FIRST < LAST) store_tiles<FIRST + 1, LAST>((uint8_t*)to + AMX_BYTES, stride);
}

// Adds the product of the tile NUMBERS and the weights in tile 7 to the tile SUMS.
template <class Kind, int SUMS, int NUMBERS>
INLINE void multiply_tiles() {
    if (Kind::BYTES == 1) asm volatile("tdpbsud %%tmm7, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(NUMBERS));
    else asm volatile("tdpbf16ps %%tmm7, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(NUMBERS));
}

// The kind of numbers that attention multiplies.
template <class Kind>
using Attention = std::conditional_t<is_amx<Kind>, Amx<Bf16>, std::conditional_t<Kind::BYTES == 4, Float32, Bf16>>;
#else
bool may_use_tiles() { return false; }
template <class Kind>
using Attention = Float32;
#endif

// --- products with weights

// The destination of a product's rows. If `adds`, they are added to the numbers there, otherwise they replace them.
struct Target {
    float* rows;
    int stride, outputs;
    bool adds;
};

// The position of the next panel in the stream.
struct Cursor {
    const uint8_t* weights;
    const PanelScales* scales;
};

// Scales the sums of M tokens x 16 J outputs, adds the bias, and stores the results in the target from `column` on,
// which is the output `first_output` of the panel. The last panel may have more outputs than the target; these are
// dropped.
template <class Kind, int M, int J>
INLINE void finish_tile(const Floats (&sums)[M][J], const Rounded& input, int first, const PanelScales& scales,
                        int first_output, const Target& to, int column) {
    UNROLL for (int j = 0; j < J; j++, column += 16, first_output += 16) {
        if (column >= to.outputs) return;
        Floats scale = load(scales.scale + first_output), bias = load(scales.bias + first_output);
        Floats sum = load(scales.sum + first_output);
        UNROLL for (int i = 0; i < M; i++) {
            float* out = to.rows + size_t(first + i) * to.stride + column;
            Floats offset = multiply_add(all(input.shift[first + i]), sum, bias);
            Floats factor = scale * all(input.scale[first + i]);
            Floats values = Kind::finish(sums[i][j], factor, offset);
            store(out, to.adds ? load(out) + values : values);
        }
    }
}

// Adds the products of M rows of numbers and J x 16 columns of weights to the sums. A step multiplies 4 bytes of each
// row. With FETCH, also prefetches the weights that follow into the second-level cache. In the first-level cache, a
// bf16 panel of 36 KiB would evict the current panel.
template <class Kind, bool FETCH, int M, int J>
INLINE void add_products(const uint8_t* rows, int row_bytes, const uint8_t* weights, int stride, int steps,
                         Floats (&sums)[M][J]) {
    const int following = steps * stride;
    for (int k = 0; k < steps; k++, rows += 4, weights += stride) {
        Floats own[J];
        UNROLL for (int j = 0; j < J; j++) own[j] = load((const float*)(weights + 64 * j));
        if (FETCH) UNROLL for (int j = 0; j < J; j++) __builtin_prefetch(weights + following + 64 * j, 0, 2);
        UNROLL for (int i = 0; i < M; i++) {
            float numbers;
            memcpy(&numbers, rows + i * row_bytes, sizeof numbers);
            UNROLL for (int j = 0; j < J; j++) sums[i][j] = Kind::add(sums[i][j], own[j], all(numbers));
        }
    }
}

// Multiplies M tokens with as many outputs of a panel, from `first_output` on, as there are registers for.
template <class Kind, int M, bool FETCH>
void tile(const Rounded& input, int group, int first, Cursor panel, int first_output, const Target& to, int column) {
    constexpr int J = TILE_VECTORS;
    Floats sums[M][J];
    UNROLL for (int i = 0; i < M; i++) UNROLL for (int j = 0; j < J; j++)
        sums[i][j] = all(std::bit_cast<float>(input.start[first + i]));
    const int row_bytes = group * Kind::BYTES;
    add_products<Kind, FETCH>(input.bytes + size_t(first) * row_bytes, row_bytes, panel.weights + 4 * first_output,
                              4 * PANEL_OUTPUTS, row_bytes / 4, sums);
    finish_tile<Kind, M>(sums, input, first, *panel.scales, first_output, to, column);
}

#ifdef __AVX512BF16__
// Sums that AMX has computed, for up to 32 tokens and the 48 outputs of `panel`, which begin at the output `column`.
struct Sums {
    alignas(64) int32_t rows[2 * AMX_ROWS][PANEL_OUTPUTS];
    int first, num = 0, num_finished = 0, column;
    Cursor panel;

    // Finishes the next tokens, at most `most`.
    template <class Kind>
    INLINE void finish(int most, const Rounded& input, const Target& to) {
        for (int end = std::min(num_finished + most, num); num_finished < end; num_finished++) {
            const int token = first + num_finished, *sum = rows[num_finished];
            const Floats begin = all(std::bit_cast<float>(input.start[token]));
            Floats own[1][3];
            UNROLL for (int j = 0; j < 3; j++) own[0][j] = add_integers(load((const float*)sum + 16 * j), begin);
            finish_tile<Kind, 1>(own, input, token, *panel.scales, 0, to, column);
        }
    }
};

// Part of a panel that is prefetched: `size` bytes of each 3 KiB, the weights of one step.
struct Ahead {
    const uint8_t* weights;
    int size;
};

// Multiplies the tokens of one or two tiles with a panel. Meanwhile prefetches, and finishes the sums `before`: if sums
// were finished between two products, a pass would take an eighth longer.
template <class Kind, int TILES>
void multiply_amx(const Rounded& input, int group, int rows, Ahead ahead, Sums& sums, Sums& before, const Target& to) {
    constexpr int STRIDE = PANEL_OUTPUTS * 4, STEP = AMX_ROWS * STRIDE;
    const int row_bytes = group * Kind::BYTES, num_steps = row_bytes / AMX_BYTES;
    const int most = (before.num + num_steps - 1) / num_steps;
    const uint8_t *row = input.bytes + size_t(sums.first) * row_bytes, *second = row + size_t(rows) * row_bytes;
    const uint8_t* weights = sums.panel.weights;
    clear_tiles<0, 3 * TILES - 1>();
    for (int n = 0; n < num_steps; n++, weights += STEP, row += AMX_BYTES, second += AMX_BYTES) {
        for (int i = 0; i < ahead.size; i += 64) __builtin_prefetch(ahead.weights + n * STEP + i, 0, 2);
        load_weights(weights, STRIDE);
        load_tile<6>(row, row_bytes);
        multiply_tiles<Kind, 0, 6>();
        if (TILES == 2) load_tile<6>(second, row_bytes), multiply_tiles<Kind, 3, 6>();
        load_weights(weights + 64, STRIDE);
        if (TILES == 2) multiply_tiles<Kind, 4, 6>(), load_tile<6>(row, row_bytes);
        multiply_tiles<Kind, 1, 6>();
        load_weights(weights + 128, STRIDE);
        multiply_tiles<Kind, 2, 6>();
        if (TILES == 2) load_tile<6>(second, row_bytes), multiply_tiles<Kind, 5, 6>();
        before.finish<Kind>(most, input, to);
    }
    store_tiles<0, 2>(sums.rows[0], STRIDE);
    if constexpr (TILES == 2) store_tiles<3, 5>(sums.rows[rows], STRIDE);
}

// Multiplies like `multiply_group`. A chunk of panels is multiplied with two tiles of tokens at a time. Each step
// prefetches its share of the weights that lie CHUNK_PANELS panels ahead.
template <class Kind>
void multiply_group_amx(const Rounded& input, int group, int tokens, Cursor& next, const Target& to) {
    const int rows = tile_rows(tokens), both = 2 * rows, num_pairs = (tokens + both - 1) / both;
    const int panel_bytes = PANEL_OUTPUTS * group * Kind::BYTES;
    Sums sums[2], *own = sums, *before = sums + 1;
    for (int start = 0, end; start < to.outputs; start = end) {
        end = std::min(start + CHUNK_PANELS * PANEL_OUTPUTS, to.outputs);
        const Cursor chunk = next;
        for (int n = 0; n < num_pairs; n++) {
            const int part = PANEL_OUTPUTS * n / num_pairs, size = PANEL_OUTPUTS * (n + 1) / num_pairs - part;
            next = chunk;
            for (int column = start; column < end; column += PANEL_OUTPUTS) {
                own->first = both * n, own->num = std::min(both, tokens - both * n), own->num_finished = 0;
                own->column = column, own->panel = next;
                Ahead ahead{next.weights + CHUNK_PANELS * panel_bytes + 64 * part, 64 * size};
                auto* multiply = own->num > rows ? multiply_amx<Kind, 2> : multiply_amx<Kind, 1>;
                multiply(input, group, rows, ahead, *own, *before, to);
                std::swap(own, before);
                next = {next.weights + panel_bytes, next.scales + 1};
            }
        }
    }
    before->finish<Kind>(before->num, input, to);
}
#endif

// Calls `call` with the number, from 1 to MOST, as a compile-time constant.
template <int MOST, class Call>
INLINE void with_constant(int number, const Call& call) {
    if constexpr (MOST > 1) {
        if (number < MOST) return with_constant<MOST - 1>(number, call);
    }
    call(std::integral_constant<int, MOST>{});
}

// Multiplies one group of all tokens with the next panels, until all outputs of the target are computed.
template <class Kind>
void multiply_group(const Rounded& input, int group, int tokens, Cursor& next, const Target& to) {
    if constexpr (is_amx<Kind>) return multiply_group_amx<Kind>(input, group, tokens, next, to);
    int num_tiles = (tokens + TILE_TOKENS - 1) / TILE_TOKENS;
    for (int column = 0; column < to.outputs; column += PANEL_OUTPUTS) {
        for (int output = 0; output < PANEL_OUTPUTS; output += 16 * TILE_VECTORS) for (int n = 0; n < num_tiles; n++) {
            int first = tokens * n / num_tiles, size = tokens * (n + 1) / num_tiles - first;
            with_constant<TILE_TOKENS>(size, [&](auto m) FORCED {
                if (n == 0) tile<Kind, m, true>(input, group, first, next, output, to, column + output);
                else tile<Kind, m, false>(input, group, first, next, output, to, column + output);
            });
        }
        next = {next.weights + size_t(PANEL_OUTPUTS) * group * Kind::BYTES, next.scales + 1};
    }
}

template <class Kind>
void multiply(const std::vector<Rounded>& input, int group, int tokens, Cursor& next, Target to) {
    for (const Rounded& rounded : input) {
        multiply_group<Kind>(rounded, group, tokens, next, to);
        to.adds = true;
    }
}

template <class Kind>
void round_rows(const float* from, int stride, int group, int tokens, std::vector<Rounded>& to) {
    for (int t = 0; t < tokens; t++, from += stride)
        for (size_t g = 0; g < to.size(); g++) Kind::template round<false>(from + g * group, group, to[g], t);
}

void norm_rows(float* row, int width, int tokens, Norm norm, float eps) {
    for (int t = 0; t < tokens; t++, row += width) {
        Floats sum = all(0), squares = sum;
        for (int n = 0; n < width; n += 16) sum = sum + load(row + n);
        Floats mean = all(sum_of(sum) / width);
        for (int n = 0; n < width; n += 16) {
            Floats centred = load(row + n) - mean;
            squares = multiply_add(centred, centred, squares);
        }
        Floats inverse = all(1 / std::sqrt(sum_of(squares) / width + eps));
        for (int n = 0; n < width; n += 16) {
            Floats scale = inverse * load(norm.scale + n);
            store(row + n, multiply_add(load(row + n) - mean, scale, load(norm.shift + n)));
        }
    }
}

// --- attention, with W numbers a head

// Writes 2^(score - highest score) for each score of a row as a number of the kind, and returns the sum of these
// powers. `padded` is `length`, rounded up to whole vectors. Powers in f32 may replace the scores.
template <class Kind>
INLINE float softmax(const float* row, int length, int padded, uint8_t* to) {
    const int last = padded - 16;
    Floats tail = first(load(row + last), length - last, -1e30f), most = tail;
    for (int n = 0; n < last; n += 16) most = max(most, load(row + n));
    most = all(highest_of(most));
    Floats sum = first(exp2(tail - most), length - last, 0);
    Kind::put(sum, to + last * Kind::BYTES);
    for (int n = 0; n < last; n += 16) {
        Floats powers = exp2(load(row + n) - most);
        sum = sum + powers;
        Kind::put(powers, to + n * Kind::BYTES);
    }
    return sum_of(sum);
}

// Replaces the queries of R tokens, in one head, by the results of their attention.
template <class Kind, int W, int R>
INLINE void attend(float* query, int stride, int length, int padded, Scratch& s) {
    constexpr int BYTES = Kind::BYTES, V = TILE_VECTORS > 1 ? W / 16 : 1;  // V vectors of sums have registers
    alignas(64) uint8_t rounded[R * W * BYTES];
    uint8_t* shares = BYTES == 4 ? (uint8_t*)s.scores.data : (uint8_t*)s.shares.data;
    float inverse[R];
    UNROLL for (int i = 0; i < R; i++) UNROLL for (int n = 0; n < W; n += 16)
        Kind::put(load(query + i * stride + n), rounded + (i * W + n) * BYTES);
    auto score = [&](int j, auto vectors) FORCED {
        constexpr int J = vectors;
        Floats sums[R][J] = {};
        add_products<Kind, false>(rounded, W * BYTES, (const uint8_t*)(s.keys + j), 4 * padded, W * BYTES / 4, sums);
        UNROLL for (int i = 0; i < R; i++) UNROLL for (int v = 0; v < J; v++)
            store(s.scores + i * padded + j + 16 * v, sums[i][v]);
    };
    int j = 0;
    if (V > 1) for (; j + 32 <= padded; j += 32) score(j, std::integral_constant<int, 2>{});
    for (; j < padded; j += 16) score(j, std::integral_constant<int, 1>{});
    UNROLL for (int i = 0; i < R; i++)
        inverse[i] = 1 / softmax<Kind>(s.scores + i * padded, length, padded, shares + i * padded * BYTES);
    for (int n = 0; n < W; n += 16 * V) {
        Floats sums[R][V] = {};
        const int steps = (length * BYTES + 3) / 4;
        add_products<Kind, false>(shares, padded * BYTES, (const uint8_t*)(s.values + n), 4 * W, steps, sums);
        UNROLL for (int i = 0; i < R; i++) UNROLL for (int v = 0; v < V; v++)
            store(query + i * stride + n + 16 * v, sums[i][v] * all(inverse[i]));
    }
}

#ifdef __AVX512BF16__

// Rounds two vectors of f32 to one vector of bf16, in their order.
INLINE __m512i pack(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

// Transposes each 4 x 4 block of a 16 x 16 matrix whose rows are the vectors.
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

// Writes 32 numbers of up to 16 keys as 16 rows of pairs. Row n has the numbers 2n and 2n + 1 of each key.
INLINE void transpose_pairs(const float* from, int stride_from, int num, float* to, int stride) {
    __m512 rows[16];
    UNROLL for (int i = 0; i < 16; i++) {
        const float* key = from + size_t(i) * stride_from;
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

// Writes every two numbers of a head's keys as a row of pairs, one for each key.
template <int W>
INLINE void transpose_keys(const float* key, int stride, int length, int padded, float* to) {
    for (int j = 0; j < length; j += 16) for (int n = 0; n < W; n += 32)
        transpose_pairs(key + size_t(j) * stride + n, stride, length - j, to + n / 2 * padded + j, padded);
}

// Writes the values of every two successive tokens as W pairs.
template <int W>
INLINE void pair_values(const float* value, int stride, int length, float* to) {
    alignas(64) static constexpr auto ORDER = [] {
        std::array<uint16_t, 32> order{};
        for (int n = 0; n < 32; n++) order[n] = n / 2 + n % 2 * 16;
        return order;
    }();
    __m512i order = _mm512_load_si512(ORDER.data());
    for (int t = 0; t < length; t += 2, value += 2 * stride, to += W) UNROLL for (int n = 0; n < W; n += 16) {
        __m512 next = t + 1 < length ? _mm512_load_ps(value + stride + n) : _mm512_setzero_ps();
        __m512i both = pack(_mm512_load_ps(value + n), next);
        _mm512_store_si512(to + n, _mm512_permutexvar_epi16(order, both));
    }
}

// Computes the attention scores of a tile of queries for all keys of the text.
template <int W>
INLINE void score_amx(const uint16_t* queries, const float* keys, int length, int padded, float* scores) {
    load_tile<6>(queries, 2 * W);
    if (W == 64) load_tile<5>(queries + 32, 2 * W);
    for (int j = 0; j < length; j += 16) {
        clear_tiles<0, 0>();
        load_weights(keys + j, 4 * padded);
        multiply_tiles<Bf16, 0, 6>();
        if (W == 64) load_weights(keys + 16 * padded + j, 4 * padded), multiply_tiles<Bf16, 0, 5>();
        store_tiles<0, 0>(scores + j, 4 * padded);
    }
}

// Adds the products of the values of 32 tokens and the shares in tile 6 to the tiles from TILE to LAST.
template <int TILE, int LAST>
INLINE void add_values(const float* values, size_t stride) {
    load_weights(values, stride);
    multiply_tiles<Bf16, TILE, 6>();
    if constexpr (TILE < LAST) add_values<TILE + 1, LAST>(values + 16, stride);
}

// Replaces the queries of a tile of `num` tokens, in one head, by the results of their attention.
template <int W>
INLINE void attend_amx(float* query, int stride, int num, int length, int padded, Scratch& s) {
    constexpr int LAST = W / 16 - 1;
    alignas(64) uint16_t rounded[AMX_ROWS * W];
    alignas(64) float sums[AMX_ROWS * W];
    float inverse[AMX_ROWS];
    const int scored = (length + 15) & ~15;
    for (int i = 0; i < num; i++) UNROLL for (int n = 0; n < W; n += 16)
        Bf16::put(load(query + size_t(i) * stride + n), rounded + i * W + n);
    score_amx<W>(rounded, s.keys, length, padded, s.scores);
    for (int i = 0; i < num; i++) {
        uint16_t* shares = s.shares + i * padded;
        inverse[i] = 1 / softmax<Bf16>(s.scores + i * padded, length, scored, (uint8_t*)shares);
        if (scored < padded) _mm256_store_si256((__m256i*)(shares + scored), _mm256_setzero_si256());
    }
    clear_tiles<0, LAST>();
    for (int k = 0; k < padded; k += 32) {
        load_tile<6>(s.shares + k, 2 * padded);
        add_values<0, LAST>(s.values + k / 2 * W, 4 * W);
    }
    store_tiles<0, LAST>(sums, 4 * W);
    for (int i = 0; i < num; i++, query += stride) UNROLL for (int n = 0; n < W; n += 16)
        store(query + n, load(sums + i * W + n) * all(inverse[i]));
}

#endif

// Computes the attention of one text in all heads. A tile of queries has at most `rows` with AMX, which multiplies with
// keys and values of 32 tokens at a time.
template <class Kind, int W>
void attention(float* qkv, int heads, int length, int rows, Scratch& s) {
    constexpr int STEP = is_amx<Kind> ? 32 : 16;
    const int width = heads * W, stride = 3 * width, padded = (length + STEP - 1) & -STEP;
    const int most = is_amx<Kind> ? rows : TILE_QUERIES, num_tiles = (length + most - 1) / most;
    for (int h = 0; h < heads; h++) {
        float *query = qkv + h * W, *key = query + width, *value = key + width;
        if constexpr (std::is_same_v<Kind, Float32>) {
            for (int t = 0; t < length; t++, key += stride, value += stride) {
                for (int d = 0; d < W; d++) s.keys[size_t(d) * padded + t] = key[d];
                memcpy(s.values + size_t(t) * W, value, sizeof(float) * W);
            }
        } else {
            const int even = (length + 1) & ~1;
            transpose_keys<W>(key, stride, length, padded, s.keys);
            pair_values<W>(value, stride, length, s.values);
            if (is_amx<Kind>) memset(s.values + even / 2 * W, 0, sizeof(float) * (padded - even) / 2 * W);
        }
        for (int n = 0; n < num_tiles; n++) {
            int first = length * n / num_tiles, size = length * (n + 1) / num_tiles - first;
            float* queries = query + size_t(first) * stride;
            if constexpr (is_amx<Kind>) attend_amx<W>(queries, stride, size, length, padded, s);
            else with_constant<TILE_QUERIES>(size, [&](auto r) FORCED {
                attend<Kind, W, r>(queries, stride, length, padded, s);
            });
        }
    }
}

// --- all layers for a block of texts

// Returns the number of tokens of the text that begins at `first`. The next text begins where a position is 0 again.
int text_length(const int32_t* positions, int first, int tokens) {
    int end = first + 1;
    while (end < tokens && positions[end]) end++;
    return end - first;
}

void embed(const Model& model, const int32_t* ids, const int32_t* positions, int tokens, float* state) {
    const int width = model.shape.width;
    for (int t = 0; t < tokens; t++, state += width) {
        const uint16_t* word = model.words + size_t(ids[t]) * width;
        const float* place = model.positions + size_t(positions[t]) * width;
        for (int n = 0; n < width; n += 16) store(state + n, load_f16(word + n) + load(place + n));
    }
}

// Applies a norm to the state in place, and rounds the result as input of the next product.
template <class Kind>
void norm_and_round(const Model& model, int norm, int tokens, Scratch& s) {
    const Shape& shape = model.shape;
    norm_rows(s.state, shape.width, tokens, model.norm(norm), shape.eps);
    round_rows<Kind>(s.state, shape.width, shape.group, tokens, s.input);
}

template <class Kind>
void feed_forward(const Shape& shape, int tokens, Cursor& next, Scratch& s) {
    const int width = shape.width, group = shape.group;
    for (int done = 0; done < shape.inner; done += group) {
        multiply<Kind>(s.input, group, tokens, next, {s.inner, group, group, false});
        for (int t = 0; t < tokens; t++) {
            float* row = s.inner + size_t(t) * group;
            activate(row, group, shape.activation);
            Kind::template round<true>(row, group, s.inner_input, t);
        }
        multiply_group<Kind>(s.inner_input, group, tokens, next, {s.state, width, width, true});
    }
}

template <class Kind, int W>
void encode_block(const Model& model, const int32_t* ids, const int32_t* positions, int tokens, float* out,
                  Scratch& s) {
    const Shape& shape = model.shape;
    const int width = shape.width, group = shape.group;
    Cursor next{model.panels, model.scales};
    embed(model, ids, positions, tokens, s.state);
    norm_and_round<Kind>(model, 0, tokens, s);
    for (int n = 0; n < shape.layers; n++) {
        multiply<Kind>(s.input, group, tokens, next, {s.qkv, 3 * width, 3 * width, false});
        for (int first = 0, length; first < tokens; first += length) {
            length = text_length(positions, first, tokens);
            float* own = s.qkv + size_t(first) * 3 * width;
            attention<Attention<Kind>, W>(own, shape.heads, length, tile_rows(tokens), s);
        }
        round_rows<Kind>(s.qkv, 3 * width, group, tokens, s.input);
        multiply<Kind>(s.input, group, tokens, next, {s.state, width, width, true});
        norm_and_round<Kind>(model, 1 + 2 * n, tokens, s);
        feed_forward<Kind>(shape, tokens, next, s);
        norm_and_round<Kind>(model, 2 + 2 * n, tokens, s);
    }
    memcpy(out, s.state, sizeof(float) * tokens * width);
}

// --- passes and threads

struct Pool;

// Texts that the threads of a pool compute. `left` is the number of unfinished blocks.
struct Pass {
    Pool* pool;
    const int32_t *ids, *positions;
    float* out;
    int left = 0;
};

struct Block {
    Pass* pass;
    int first, tokens;
};

// Threads that compute blocks in the order in which the blocks were added.
struct Pool {
    const Model& model;
    std::mutex mutex;
    std::condition_variable wake, done;
    std::list<Block> blocks;
    bool is_closing = false;
    std::vector<std::unique_ptr<Scratch>> scratch;
    std::vector<std::thread> threads;

    Pool(const Model& model, int num_threads) : model(model) {
        for (int n = 0; n < num_threads; n++)
            scratch.push_back(std::make_unique<Scratch>(model.shape, model.shape.block_capacity()));
        try {
            for (auto& own : scratch) threads.emplace_back([this, &own] { run(*own); });
        } catch (...) {
            close();
            throw;
        }
    }

    void close() {
        {
            std::lock_guard lock(mutex);
            is_closing = true;
        }
        wake.notify_all();
        for (auto& thread : threads) thread.join();
    }

    void run(Scratch& own) {
        std::unique_lock lock(mutex);
        for (;;) {
            wake.wait(lock, [&] { return is_closing || !blocks.empty(); });
            if (blocks.empty()) return;
            Block block = blocks.front();
            blocks.pop_front();
            lock.unlock();
            encode(block, own);
            lock.lock();
            if (!--block.pass->left) done.notify_all();
        }
    }

    void encode(const Block& block, Scratch& own) const {
        const Shape& shape = model.shape;
        const Pass& pass = *block.pass;
        float* out = pass.out + size_t(block.first) * shape.width;
        auto call = [&](auto kind, auto width) {
            encode_block<decltype(kind), width>(model, pass.ids + block.first, pass.positions + block.first,
                                                block.tokens, out, own);
        };
        auto with_kind = [&](auto kind) {
            if (shape.head_width() == 32) call(kind, std::integral_constant<int, 32>{});
            else call(kind, std::integral_constant<int, 64>{});
        };
        with_number(shape.number, [&](auto kind) {
#ifdef __AVX512BF16__
            if constexpr (decltype(kind)::BYTES < 4) if (model.uses_amx) {
                Tiles tiles(tile_rows(block.tokens));
                return with_kind(Amx<decltype(kind)>{});
            }
#endif
            with_kind(kind);
        });
    }
};

// Returns true if the texts begin at position 0, no text is too long, and the tables have all ids and positions.
bool is_valid(const Shape& shape, const int32_t* ids, const int32_t* positions, int tokens) {
    if (tokens < 1 || positions[0]) return false;
    for (int t = 0, length = 0; t < tokens; t++) {
        length = positions[t] ? length + 1 : 1;
        if (ids[t] < 0 || ids[t] >= shape.num_words || positions[t] < 0 || positions[t] >= shape.num_positions ||
            length > shape.max_tokens)
            return false;
    }
    return true;
}

// Cuts the texts, in their order, into blocks with about equal numbers of tokens. The number of blocks is a multiple of
// `parts`, or lower if there are few texts.
std::list<Block> cut(Pass* pass, const Model& model, int tokens, int parts) {
    std::list<Block> blocks{{pass, 0, 0}};
    const int capacity = model.shape.block_capacity(), block_tokens = model.uses_amx ? AMX_BLOCK_TOKENS : BLOCK_TOKENS;
    long round = long(parts) * block_tokens, wanted = parts * std::max(1L, (tokens + round - 1) / round);
    for (int first = 0, length; first < tokens; first += length) {
        length = text_length(pass->positions, first, tokens);
        bool is_full = first + length / 2 >= tokens * long(blocks.size()) / wanted;
        Block& last = blocks.back();
        if (last.tokens && (is_full || last.tokens + length > capacity)) blocks.push_back({pass, first, 0});
        blocks.back().tokens += length;
    }
    return blocks;
}

template <class Make>
auto or_null(const Make& make) -> decltype(make()) {
    try {
        return make();
    } catch (...) {  // there is too little memory, or no thread can start
        return nullptr;
    }
}

}  // namespace

extern "C" {

// Opens a model. Returns null for unsupported or contradictory sizes, or if there is too little memory. `words` is f16
// [num_words, width], `positions` f32 [num_positions, width], and `norms` f32 [2 + 4 layers, width], scale and shift of
// each norm. The caller must keep these three until the model is closed. `panels` and `scales` are copied. The model
// uses AMX if `may_use_amx`, the processor and the system allow it and a group fills whole rows of tiles.
Model* open_model(const Shape* shape, const uint16_t* words, const float* positions, const float* norms,
                  const uint8_t* panels, size_t panels_size, const uint8_t* scales, size_t scales_size,
                  int may_use_amx) {
    if (!shape->is_known() || !with_number(shape->number, [](auto) {})) return nullptr;
    size_t num = shape->num_panels();
    if (panels_size != num * shape->panel_bytes() || scales_size != num * sizeof(PanelScales)) return nullptr;
    bool uses_amx = may_use_amx && shape->fits_tiles() && may_use_tiles();
    return or_null([&] {
        auto model = std::make_unique<Model>(Model{*shape, words, positions, norms,
                                                   Array<uint8_t>(panels_size, LARGE_PAGE), Array<PanelScales>(num),
                                                   uses_amx});
        memcpy(model->panels.data, panels, panels_size);
        if (shape->number == INT8) for (size_t n = 0; n < panels_size; n++) model->panels[n] -= 128 - SURPLUS;
        memcpy((void*)model->scales.data, scales, scales_size);
        return model.release();
    });
}

// Returns 1 if AMX multiplies for the model.
int uses_amx(const Model* model) { return model->uses_amx; }

void close_model(Model* model) { delete model; }

// Starts threads, which wait for passes. Returns null if there is too little memory or a thread cannot start. The model
// must stay open until the pool is closed.
Pool* open_pool(const Model* model, int num_threads) {
    return or_null([&] { return new Pool(*model, num_threads); });
}

// Ends the threads. No pass may be open.
void close_pool(Pool* pool) {
    pool->close();
    delete pool;
}

// Starts computing the vectors `out`, [tokens, width], in blocks for `parts` threads. The caller must keep ids, positions
// and vectors until the pass is closed. Returns null if the model does not accept a text, or if there is too little
// memory.
Pass* start_pass(Pool* pool, const int32_t* ids, const int32_t* positions, int tokens, float* out, int parts) {
    const Shape& shape = pool->model.shape;
    if (parts < 1 || parts > MAX_SIZE || tokens > MAX_SIZE || !is_valid(shape, ids, positions, tokens)) return nullptr;
    return or_null([&] {
        auto pass = std::make_unique<Pass>(Pass{pool, ids, positions, out});
        std::list<Block> blocks = cut(pass.get(), pool->model, tokens, parts);
        int num = pass->left = blocks.size();
        {
            std::lock_guard lock(pool->mutex);
            pool->blocks.splice(pool->blocks.end(), blocks);
        }
        num > 1 ? pool->wake.notify_all() : pool->wake.notify_one();
        return pass.release();
    });
}

// Waits at most `seconds` for the end of a pass. Returns 1 if the pass has ended.
int wait_pass(Pass* pass, double seconds) {
    Pool& pool = *pass->pool;
    std::unique_lock lock(pool.mutex);
    return pool.done.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return !pass->left; });
}

// Waits for the end of a pass, and deletes the pass.
void close_pass(Pass* pass) {
    {
        std::unique_lock lock(pass->pool->mutex);
        pass->pool->done.wait(lock, [&] { return !pass->left; });
    }
    delete pass;
}

}
