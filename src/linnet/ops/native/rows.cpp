// Products of a few rows in float32 with matrices of 32, 16, 8 and 4 bits.
//
// Decoding a stream reads every weight once for each token and does little else, so all of these read the weights once,
// in the order in which they lie, and keep up with the memory. `ops.native.rows` says what each function computes.
//
// A row that meets weights of 8 or 4 bits is written in fixed point, with two digits of 7 bits: bytes times bytes are
// the fastest products there are, and sums of whole numbers are exact, so a row gives the same on every processor,
// with any number of threads, and whatever stands beside it.

#include <algorithm>
#include <vector>

#include "functions.hpp"
#include "vectors.hpp"

namespace {

constexpr int64_t BYTES = 32;        // of a vector
constexpr int64_t SCALE_BYTES = 16;  // of a group of a block of 4 bits
constexpr int SIDE_BY_SIDE = 2;      // vectors of an output whose sums do not wait for each other
constexpr float SMALLEST = 1e-30f;   // a row without a larger element counts as zeros
constexpr float LARGEST = 8127.0f;   // stands for a row's largest element: 63 * 128 + 63
constexpr int BASE = 128;            // of the two digits

// Eight sums of whole numbers, each with four more products of bytes. The unsigned ones are at most 127 where the signed
// ones may be as large, so that two products have room in 16 bits.
inline __m256i with_products(__m256i sum, __m256i unsigned_bytes, __m256i signed_bytes) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return _mm256_dpbusd_epi32(sum, unsigned_bytes, signed_bytes);
#elif defined(__AVXVNNI__)
  return _mm256_dpbusd_avx_epi32(sum, unsigned_bytes, signed_bytes);
#else
  const __m256i pairs = _mm256_maddubs_epi16(unsigned_bytes, signed_bytes);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}

// What stands for a row: `(BASE * high + low) * step`, digits from -64 to 63.
struct Fixed {
  std::vector<int8_t> high, low;
  std::vector<int32_t> group_sums;  // of the whole numbers in each group of inputs
  float step;
};

void fix(Fixed& fixed, const float* x, int64_t inputs, int64_t group) {
  const int64_t groups = (inputs + group - 1) / group;
  float largest = SMALLEST, nothing = 0.0f;
#pragma omp simd reduction(max : largest) reduction(+ : nothing)
  for (int64_t i = 0; i < inputs; ++i) {
    largest = std::max(largest, std::fabs(x[i]));
    nothing += 0.0f * x[i];
  }
  fixed.step = largest / LARGEST;
  fixed.high.resize(groups * group);
  fixed.low.resize(groups * group);
  fixed.group_sums.resize(groups);
  if (!(nothing == 0.0f)) {  // what is not finite has no whole numbers, and stays so
    fixed.step = std::nanf("");
    std::fill(fixed.high.begin(), fixed.high.end(), 0);
    std::fill(fixed.low.begin(), fixed.low.end(), 0);
    std::fill(fixed.group_sums.begin(), fixed.group_sums.end(), 0);
    return;
  }
  const float reciprocal = LARGEST / largest;
  for (int64_t g = 0; g < groups; ++g) {
    int8_t *high = fixed.high.data() + g * group, *low = fixed.low.data() + g * group;
    const int64_t own = std::min(group, inputs - g * group);
    int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < own; ++i) {
      const int32_t whole = static_cast<int32_t>(std::nearbyintf(x[g * group + i] * reciprocal));
      const int32_t upper = (whole + BASE / 2) >> 7;
      high[i] = static_cast<int8_t>(upper);
      low[i] = static_cast<int8_t>(whole - upper * BASE);
      sum += whole;
    }
    std::fill(high + own, high + group, 0);
    std::fill(low + own, low + group, 0);
    fixed.group_sums[g] = sum;
  }
}

// Rows in fixed point, kept from call to call: what is allocated anew is cleared by the system first.
std::vector<Fixed>& fixed_rows(const float* x, int64_t rows, int64_t inputs, int64_t group) {
  thread_local std::vector<Fixed> kept;
  if (static_cast<int64_t>(kept.size()) < rows) kept.resize(rows);
  for (int64_t r = 0; r < rows; ++r) fix(kept[r], x + r * inputs, inputs, group);
  return kept;
}

struct Result {
  const float *bias, *added;  // either may be null
  float* out;
  int64_t outputs;

  void set(int64_t row, int64_t output, float value) const {
    const int64_t place = row * outputs + output;
    out[place] = value + (bias ? bias[output] : 0.0f) + (added ? added[place] : 0.0f);
  }
};

// An output of bfloat16: weights of even places meet `even`, those of odd places `odd`, both halves of the row `x`.
inline float bfloat16_output(const uint16_t* weights, const float* even, const float* odd, const float* x,
                             int64_t inputs) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  __m256 sums[2 * SIDE_BY_SIDE];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  const auto add = [&](int64_t i, int n) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + i));
    const __m256 x_even = _mm256_loadu_ps(even + i / 2), x_odd = _mm256_loadu_ps(odd + i / 2);
    sums[2 * n] = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(v, 16)), x_even, sums[2 * n]);
    sums[2 * n + 1] = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(v, upper)), x_odd, sums[2 * n + 1]);
  };
  int64_t i = 0;
  for (; i + SIDE_BY_SIDE * 2 * LANES <= inputs; i += SIDE_BY_SIDE * 2 * LANES)
    for (int n = 0; n < SIDE_BY_SIDE; ++n) add(i + n * 2 * LANES, n);
  for (; i + 2 * LANES <= inputs; i += 2 * LANES) add(i, 0);
  for (int n = 1; n < 2 * SIDE_BY_SIDE; ++n) sums[0] = _mm256_add_ps(sums[0], sums[n]);
  float sum = sum_of(sums[0]);
  for (; i < inputs; ++i) sum += float_of_bfloat16(weights[i]) * x[i];
  return sum;
}

inline float float32_output(const float* weights, const float* x, int64_t inputs) {
  __m256 sums[2 * SIDE_BY_SIDE];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  const auto add = [&](int64_t i, int n) {
    sums[n] = _mm256_fmadd_ps(_mm256_loadu_ps(weights + i), _mm256_loadu_ps(x + i), sums[n]);
  };
  int64_t i = 0;
  for (; i + 2 * SIDE_BY_SIDE * LANES <= inputs; i += 2 * SIDE_BY_SIDE * LANES)
    for (int n = 0; n < 2 * SIDE_BY_SIDE; ++n) add(i + n * LANES, n);
  for (; i + LANES <= inputs; i += LANES) add(i, 0);
  for (int n = 1; n < 2 * SIDE_BY_SIDE; ++n) sums[0] = _mm256_add_ps(sums[0], sums[n]);
  float sum = sum_of(sums[0]);
  for (; i < inputs; ++i) sum += weights[i] * x[i];
  return sum;
}

// An output of 8 bits, its scale and the row's step left out. `width` is a multiple of `BYTES`.
inline float int8_output(const int8_t* weights, const Fixed& row, int64_t width) {
  __m256i high[SIDE_BY_SIDE], low[SIDE_BY_SIDE];
  for (int n = 0; n < SIDE_BY_SIDE; ++n) high[n] = low[n] = _mm256_setzero_si256();
  const auto add = [&](int64_t i, int n) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + i));
    const __m256i x_high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row.high.data() + i));
    const __m256i x_low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row.low.data() + i));
    const __m256i size = _mm256_abs_epi8(v);  // one of two bytes has to be without a sign: the digit takes it
    high[n] = with_products(high[n], size, _mm256_sign_epi8(x_high, v));
    low[n] = with_products(low[n], size, _mm256_sign_epi8(x_low, v));
  };
  int64_t i = 0;
  for (; i + SIDE_BY_SIDE * BYTES <= width; i += SIDE_BY_SIDE * BYTES)
    for (int n = 0; n < SIDE_BY_SIDE; ++n) add(i + n * BYTES, n);
  for (; i < width; i += BYTES) add(i, 0);
  for (int n = 1; n < SIDE_BY_SIDE; ++n) {
    high[0] = _mm256_add_epi32(high[0], high[n]);
    low[0] = _mm256_add_epi32(low[0], low[n]);
  }
  return static_cast<float>(sum_of(high[0])) * BASE + static_cast<float>(sum_of(low[0]));
}

// Eight outputs of 4 bits. Of each group the numbers, `group / 8` vectors, and then the scales: apart from each other,
// in two streams, they are read at a third of the speed.
inline __m256 int4_outputs(const uint8_t* weights, const Fixed& row, int64_t groups, int64_t group) {
  const __m256i nibble = _mm256_set1_epi8(15);
  __m256 out = _mm256_setzero_ps();
  const int8_t *x_high = row.high.data(), *x_low = row.low.data();
  const auto four = [](const int8_t* digits) {
    int32_t bytes;
    __builtin_memcpy(&bytes, digits, sizeof bytes);
    return _mm256_set1_epi32(bytes);
  };
  for (int64_t g = 0; g < groups; ++g) {
    __m256i high = _mm256_setzero_si256(), low = _mm256_setzero_si256();
    for (int64_t i = 0; i < group; i += LANES, weights += BYTES, x_high += LANES, x_low += LANES) {
      const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights));
      const __m256i first = _mm256_and_si256(v, nibble), second = _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
      high = with_products(with_products(high, first, four(x_high)), second, four(x_high + 4));
      low = with_products(with_products(low, first, four(x_low)), second, four(x_low + 4));
    }
    const __m256i middle = _mm256_set1_epi32(8 * row.group_sums[g]);
    const __m256i total = _mm256_sub_epi32(_mm256_add_epi32(_mm256_slli_epi32(high, 7), low), middle);
    const __m256 scales = float_of_bfloat16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights)));
    out = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), scales, out);
    weights += SCALE_BYTES;
  }
  return _mm256_mul_ps(out, _mm256_set1_ps(row.step));
}

}  // namespace

extern "C" {

void linnet_bfloat16_rows(const float* x, int64_t rows, int64_t inputs, const uint16_t* weights, int64_t outputs,
                          const float* bias, const float* added, float* out, int threads) {
  const Result result{bias, added, out, outputs};
  thread_local std::vector<float> kept;
  const int64_t half = inputs / 2 + LANES;
  kept.resize(2 * rows * half);
  float* const parts = kept.data();
  for (int64_t r = 0; r < rows; ++r) {
    float *even = parts + 2 * r * half, *odd = even + half;
    for (int64_t i = 0; i < inputs / 2; ++i) {
      even[i] = x[r * inputs + 2 * i];
      odd[i] = x[r * inputs + 2 * i + 1];
    }
  }
  divided(outputs, threads, [&](int64_t o) {
    for (int64_t r = 0; r < rows; ++r) {
      const float *even = parts + 2 * r * half, *row = x + r * inputs;
      result.set(r, o, bfloat16_output(weights + o * inputs, even, even + half, row, inputs));
    }
  });
}

void linnet_float32_rows(const float* x, int64_t rows, int64_t inputs, const float* weights, int64_t outputs,
                         const float* bias, const float* added, float* out, int threads) {
  const Result result{bias, added, out, outputs};
  divided(outputs, threads, [&](int64_t o) {
    for (int64_t r = 0; r < rows; ++r)
      result.set(r, o, float32_output(weights + o * inputs, x + r * inputs, inputs));
  });
}

void linnet_int8_rows(const float* x, int64_t rows, int64_t inputs, const int8_t* weights, int64_t width,
                      const uint16_t* scales, int64_t outputs, const float* bias, const float* added, float* out,
                      int threads) {
  const Result result{bias, added, out, outputs};
  const std::vector<Fixed>& fixed = fixed_rows(x, rows, inputs, width);
  divided(outputs, threads, [&](int64_t o) {
    const float scale = float_of_bfloat16(scales[o]);
    for (int64_t r = 0; r < rows; ++r)
      result.set(r, o, int8_output(weights + o * width, fixed[r], width) * (fixed[r].step * scale));
  });
}

void linnet_int4_rows(const float* x, int64_t rows, int64_t inputs, const uint8_t* weights, int64_t group,
                      int64_t outputs, const float* bias, const float* added, float* out, int threads) {
  const Result result{bias, added, out, outputs};
  const std::vector<Fixed>& fixed = fixed_rows(x, rows, inputs, group);
  const int64_t groups = (inputs + group - 1) / group;
  const int64_t bytes = groups * (group / LANES * BYTES + SCALE_BYTES);
  divided((outputs + LANES - 1) / LANES, threads, [&](int64_t block) {
    for (int64_t r = 0; r < rows; ++r) {
      float sums[LANES];
      _mm256_storeu_ps(sums, int4_outputs(weights + block * bytes, fixed[r], groups, group));
      for (int64_t o = block * LANES; o < std::min((block + 1) * LANES, outputs); ++o)
        result.set(r, o, sums[o - block * LANES]);
    }
  });
}

// A row of a matrix, its weights and its scale.
void linnet_float32_matrix(const float* weights, int64_t inputs, float* out, int threads) {
  divided(inputs, threads, [&](int64_t i) { out[i] = weights[i]; });
}

void linnet_bfloat16_matrix(const uint16_t* weights, int64_t inputs, float* out, int threads) {
  divided(inputs, threads, [&](int64_t i) { out[i] = float_of_bfloat16(weights[i]); });
}

void linnet_int8_matrix(const int8_t* weights, const uint16_t* scales, int64_t inputs, float* out, int threads) {
  const float scale = float_of_bfloat16(*scales);
  divided(inputs, threads, [&](int64_t i) { out[i] = static_cast<float>(weights[i]) * scale; });
}

// Rows `[count, groups * group]` of the matrix that blocks of 4 bits stand for, from output `first` on.
void linnet_int4_matrix(const uint8_t* weights, int64_t groups, int64_t group, int64_t first, int64_t count, float* out,
                        int threads) {
  const int64_t bytes = groups * (group / LANES * BYTES + SCALE_BYTES);
  divided(count, threads, [&](int64_t row) {
    const int64_t output = first + row, lane = output % LANES;
    const uint8_t* numbers = weights + output / LANES * bytes;
    float* place = out + row * groups * group;
    for (int64_t g = 0; g < groups; ++g, numbers += SCALE_BYTES) {
      const auto* scales = reinterpret_cast<const uint16_t*>(numbers + group / LANES * BYTES);
      const float scale = float_of_bfloat16(scales[lane]);
      for (int64_t i = 0; i < group; i += LANES, numbers += BYTES, place += LANES) {
        const uint8_t* four = numbers + 4 * lane;
        for (int n = 0; n < 4; ++n) {
          place[n] = static_cast<float>((four[n] & 15) - 8) * scale;
          place[n + 4] = static_cast<float>((four[n] >> 4) - 8) * scale;
        }
      }
    }
  });
}

}  // extern "C"
